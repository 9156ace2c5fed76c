"""A segment: consecutive batches in one data file, with its indexes.

- Files are opened on demand, and even the size is read on demand: at start 40,000 segments are 40,000
  file names.
- Only the active segment is appended to. Bytes below `size` never change; a truncation creates a new
  `Segment` (truncation.py), so that readers of the old one are not affected.
- Order of an append: space in the indexes, then the data, then the index entries. A full disk fails one
  of the first two steps, which leave everything unchanged.
- Reads may run in other threads than appends (`nowait=False`); they use a snapshot of `size`, the tail
  and the last index entry.
- The last located batch is remembered: a sequential read needs the next one, and then only its header
  is read.
- No checksum protects the indexes. An entry is compared with the batch to which it leads when it is used,
  so a wrong one skips no records. The indexes of a segment that is not appended to are then rebuilt.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Sequence

from odradek.protocol.errors import KafkaError
from odradek.protocol.records.batch import NO_TIMESTAMP, Batch
from odradek.seams.files import Buffer, File, Files, OutOfDescriptors, Path, WouldBlock
from odradek.storage.errors import CorruptRecords
from odradek.storage.log.batch_scan import BatchPosition, headers, locate
from odradek.storage.log.file_names import (
    INDEX_FILES,
    LOG,
    OFFSET_INDEX,
    SEGMENT_FILES,
    TIME_INDEX,
    TRANSACTION_INDEX,
    file_name,
)
from odradek.storage.log.index_builder import IndexBuilder, build, write_indexes
from odradek.storage.log.index_file import CorruptIndex
from odradek.storage.log.offset_index import OffsetIndex
from odradek.storage.log.segment_files import SegmentHandles, rename_together
from odradek.storage.log.time_index import TimeIndex
from odradek.storage.log.transaction_index import AbortedTransaction, TransactionIndex

_TAIL_MAX = 128
_CHECKED_BYTES = 64 << 10
"""Bytes after the batch of the last time index entry in which larger timestamps are searched."""
_ENTRIES_TRIED = 8
"""Index entries that a lookup tries, from the last one back, if they are wrong."""

_logger = logging.getLogger("odradek.log")


class Segment(SegmentHandles):
    """One segment. `suffix` is the second suffix of its files during a swap (`.cleaned`, `.swap`)."""

    # fmt: off
    __slots__ = (
        "_files", "_found", "_is_closed", "_is_wrong_logged", "_max_timestamp", "_offset_of_max_timestamp", "_opening",
        "_ready", "_size", "_tail", "base_offset", "created_ms", "directory", "first_timestamp", "has_transaction_index",
        "index_interval_bytes", "roll_jitter_ms", "suffix",
    )
    # fmt: on

    def __init__(
        self,
        files: Files,
        directory: Path,
        base_offset: int,
        *,
        index_interval_bytes: int,
        created_ms: int,
        roll_jitter_ms: int = 0,
        has_transaction_index: bool = False,
        suffix: str = "",
    ) -> None:
        super().__init__()
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.created_ms = created_ms
        """Time (ms) when the segment was created, or loaded by this process."""
        self.roll_jitter_ms = roll_jitter_ms
        self.suffix = suffix
        self.first_timestamp: int | None = None
        """Largest timestamp of the first batch, once known."""
        self.has_transaction_index = has_transaction_index
        """Whether the file existed when the segment was loaded."""
        self._opening = threading.Lock()
        """Held while files are opened, renamed or closed: a reader in another thread could otherwise
        open a file under an old name, or after the close. There is one lock per segment, because
        another segment may be on a slow disk."""
        self._is_closed = False
        self._size = -1
        self._max_timestamp: int | None = None
        self._offset_of_max_timestamp = base_offset
        self._tail: list[tuple[int, int, int, int]] = []
        """Fields of `BatchPosition` of the last batches, as plain tuples, which are cheaper."""
        self._found: BatchPosition | None = None
        """Result of the last lookup before the tail."""
        self._ready = False
        self._is_wrong_logged = False
        """Whether a wrong entry of an index that cannot be rebuilt yet was logged."""

    @classmethod
    def create(
        cls,
        files: Files,
        directory: Path,
        base_offset: int,
        *,
        index_interval_bytes: int,
        created_ms: int,
        roll_jitter_ms: int = 0,
        suffix: str = "",
    ) -> Segment:
        """Create an empty segment; existing files are replaced. After a failure no file remains."""
        segment = cls(
            files,
            directory,
            base_offset,
            index_interval_bytes=index_interval_bytes,
            created_ms=created_ms,
            roll_jitter_ms=roll_jitter_ms,
            suffix=suffix,
        )
        for kind in SEGMENT_FILES:
            files.remove(segment.path(kind), missing_ok=True)
        try:
            segment._file = files.open(segment.path(LOG), create=True)
            segment._size = 0
            segment._offset_index = OffsetIndex(files, segment.path(OFFSET_INDEX), base_offset)
            segment._offset_index.create()
            segment._time_index = TimeIndex(files, segment.path(TIME_INDEX), base_offset)
            segment._time_index.create()
        except OSError:
            segment.close()
            for kind in SEGMENT_FILES:
                files.remove(segment.path(kind), missing_ok=True)
            raise
        segment._max_timestamp = NO_TIMESTAMP
        segment._ready = True
        return segment

    def path(self, kind: str) -> Path:
        return self.directory / (file_name(self.base_offset, kind) + self.suffix)

    def __repr__(self) -> str:
        return f"Segment({self.path(LOG)}, {self._size} bytes)"

    @property
    def file(self) -> File:
        """The data file. Raises ValueError once the segment is closed."""
        file = self._file
        return self._open_file() if file is None else file

    def _open_file(self) -> File:
        with self._opening:
            self._check_open()
            file = self._file
            if file is None:
                file = self._files.open(self.path(LOG), write=True)
                self._size = file.size
                self._file = file
            return file

    def _check_open(self) -> None:
        """Raise ValueError if the segment is closed: a reader must not open the files again after a
        truncation or deletion."""
        if self._is_closed:
            raise ValueError(f"{self} is closed")

    @property
    def size(self) -> int:
        """Size of the data file in bytes."""
        if self._size < 0:
            _ = self.file
        return self._size

    @property
    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        return self._load_indexes()[0] if index is None else index

    @property
    def time_index(self) -> TimeIndex:
        index = self._time_index
        return self._load_indexes()[1] if index is None else index

    @property
    def transaction_index(self) -> TransactionIndex:
        index = self._transaction_index
        return self._new_transaction_index() if index is None else index

    def _new_transaction_index(self) -> TransactionIndex:
        with self._opening:
            index = self._transaction_index
            if index is None:
                path = self.path(TRANSACTION_INDEX)
                index = TransactionIndex(
                    self._files,
                    path,
                    exists=self.has_transaction_index,
                    base_offset=self.base_offset,
                )
                self._transaction_index = index
            return index

    def _load_indexes(self, *, nowait: bool = False) -> tuple[OffsetIndex, TimeIndex]:
        """Open both indexes; rebuild them from the headers if one is missing or corrupt.

        Rebuilding takes long for a large segment: `nowait` raises WouldBlock instead.
        """
        size, file = self.size, self.file
        indexes = self._open_indexes(size)
        if indexes is None:
            if nowait:
                raise WouldBlock
            # Outside of the lock, so that renames and closes need not wait.
            made = build(file, size, self.base_offset, self.index_interval_bytes)
            indexes = self._open_indexes(size, made)
            assert indexes is not None
        return indexes

    def _open_indexes(
        self, size: int, made: IndexBuilder | None = None
    ) -> tuple[OffsetIndex, TimeIndex] | None:
        """Open indexes, rebuilt from `made` if they are missing or corrupt; None if `made` is None then."""
        with self._opening:
            self._check_open()
            offset_index, time_index = self._offset_index, self._time_index
            if offset_index is None or time_index is None:
                offset_index, time_index = self._new_indexes()
                try:
                    offset_index.load(size)
                    time_index.load(size)
                except (CorruptIndex, FileNotFoundError) as error:
                    if made is None:
                        offset_index.close()
                        time_index.close()
                        return None
                    _logger.warning("rebuilding index files of segment %s: %s", self, error)
                    write_indexes(offset_index, time_index, made)
                self._offset_index, self._time_index = offset_index, time_index
            return offset_index, time_index

    def open_raw_indexes(self) -> None:
        """Open (or create) the indexes without checking their content, for recovery."""
        self._offset_index, self._time_index = self._new_indexes()
        self._offset_index.open_raw()
        self._time_index.open_raw()

    def _new_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        return (
            OffsetIndex(self._files, self.path(OFFSET_INDEX), self.base_offset),
            TimeIndex(self._files, self.path(TIME_INDEX), self.base_offset),
        )

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp of the segment; -1 if there is none."""
        if self._max_timestamp is None:
            self._check_last_time_entry()
            self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last
        return self._max_timestamp

    def _check_last_time_entry(self) -> None:
        """Rebuild the indexes if the last entry of the time index is wrong or lost: retention and lookups
        by timestamp would use a wrong largest timestamp.

        The batch of the entry must have its timestamp. No later batch in the last `_CHECKED_BYTES`, or
        after the last entry of the offset index, may have a larger one.
        """
        if not self.time_index.count:
            return
        timestamp, offset = self.time_index.last
        try:
            found = self.batch_with_timestamp(timestamp, offset)
            if found is not None:
                largest, start = timestamp, found.end
                if self.size - start > _CHECKED_BYTES:
                    start = max(start, self.offset_index.last[1])
                for batch in headers(self.file, start, self.size):
                    largest = max(largest, batch.max_timestamp)
                if largest == timestamp:
                    return
        except KafkaError:  # reads report corrupt records
            return
        self.rebuild_wrong_indexes(
            CorruptIndex(
                f"the last entry of its time index has timestamp {timestamp} and offset {offset}, but a batch "
                f"has a larger timestamp, or this one has another"
            )
        )

    def batch_with_timestamp(self, timestamp: int, offset: int) -> BatchPosition | None:
        """Batch that has `offset`, if `timestamp` is its largest one."""
        found = self.locate(offset)
        if found is None or found.base_offset > offset:
            return None
        header = next(headers(self.file, found.position, found.end))
        return found if header.max_timestamp == timestamp else None

    @property
    def offset_of_max_timestamp(self) -> int:
        """Last offset of the first batch with the largest timestamp."""
        _ = self.max_timestamp
        return self._offset_of_max_timestamp

    @property
    def offset_entries(self) -> int:
        index = self._offset_index
        return self.offset_index.count if index is None else index.count

    @property
    def time_entries(self) -> int:
        index = self._time_index
        return self.time_index.count if index is None else index.count

    # Appending

    def write(self, data: Buffer, batch_count: int) -> int:
        """Write `data`, `batch_count` batches with offsets and epochs; returns the position of the first.
        The caller must call `index_batches` next.

        Raises OSError. If the disk is full or no descriptor is free, the segment is unchanged, on the
        disk too: after a power failure no bytes may remain below later writes, because no CRC covers the
        leader epoch of a batch.
        """
        if not self._ready:
            self.prepare()
        offset_index = self._offset_index or self.offset_index
        time_index = self._time_index or self.time_index
        if offset_index.count + batch_count > offset_index.capacity:
            offset_index.reserve(batch_count)
        if time_index.count + batch_count >= time_index.capacity:  # one more for `seal`
            time_index.reserve(batch_count + 1)
        file = self._file or self.file
        try:
            return file.append_v((data,))
        except OutOfDescriptors:
            raise
        except OSError:
            file.truncate(self._size)
            file.sync()
            raise

    def index_batches(self, batches: Sequence[Batch], position: int) -> None:
        """Index batches written at `position`. After an OSError the indexes are incomplete; without a
        file descriptor, entries are skipped without an error."""
        tail, max_timestamp = self._tail, self.max_timestamp
        offsets: list[tuple[int, int]] = []
        times: list[tuple[int, int]] = []
        indexed = self.offset_index.last[1]
        if position == 0:
            self.first_timestamp = batches[0].max_timestamp
        for batch in batches:
            last_offset = batch.last_offset
            if batch.max_timestamp > max_timestamp:
                self._max_timestamp = max_timestamp = batch.max_timestamp
                self._offset_of_max_timestamp = last_offset
            if position - indexed > self.index_interval_bytes:
                offsets.append((last_offset, position))
                times.append((max_timestamp, self._offset_of_max_timestamp))
                indexed = position
            end = position + batch.size
            tail.append((last_offset, position, end, batch.base_offset))
            position = end
        if len(tail) > _TAIL_MAX:
            self._tail = tail[-_TAIL_MAX // 2 :]
        self._size = position
        if offsets:
            # The data is written. Index entries only speed up lookups, so they may be missing.
            try:
                self.offset_index.append(offsets)
                self.time_index.append(times)
            except OutOfDescriptors:
                _logger.warning(
                    "index entries of segment %s were skipped: no file descriptor is free", self
                )

    def prepare(self) -> None:
        """Prepare the first append after a start: the result is the same as without the restart.

        The time index entry that the clean close wrote is removed, as a rebuilt index would not have it;
        its timestamp is kept in memory.
        """
        if self._ready:
            return
        _ = self.max_timestamp
        if self.offset_index.count:
            self.check_entry(*self.offset_index.last)
        with self._opening:  # not while a reader replaces the indexes
            offset_index, time_index = self._offset_index, self._time_index
            assert offset_index is not None
            assert time_index is not None
            if time_index.count:
                time_index.reopen(offset_index.last[0] if offset_index.count else -1)
            self._ready = True

    # Reading

    def locate(self, offset: int, *, nowait: bool = False) -> BatchPosition | None:
        """First batch that ends at or past `offset`; None if the segment ends before.

        `nowait`, for calls on the loop, raises WouldBlock if headers are not in memory, or if an index
        is corrupt.
        """
        tail = self._tail
        if tail and offset >= tail[0][3]:
            slot = bisect_left(tail, (offset,))
            return BatchPosition(*tail[slot]) if slot < len(tail) else None
        found = self._found
        if found is not None and found.base_offset <= offset <= found.last_offset + 1:
            if offset <= found.last_offset:
                return found
            found = locate(self.file, offset, found.end, self.size, nowait=nowait)
        else:
            found = self._locate_by_index(offset, nowait=nowait)
        if found is not None:
            self._found = found
        return found

    def _locate_by_index(self, offset: int, *, nowait: bool) -> BatchPosition | None:
        """`locate` from the position of an index entry. With `nowait`, raises WouldBlock if the entry is
        wrong; otherwise tries earlier entries, and then the start of the segment."""
        size = self.size
        index = self._offset_index or self._load_indexes(nowait=nowait)[0]
        entry_offset, start = index.lookup(offset, mapped=nowait)
        for _ in range(_ENTRIES_TRIED):
            if not start:
                break
            try:
                return locate(self.file, offset, start, size, nowait=nowait, ends_at=entry_offset)
            except CorruptIndex as error:
                if nowait:
                    raise WouldBlock from error
                self.rebuild_wrong_indexes(error)
            entry_offset, start = self.offset_index.lookup(entry_offset - 1, mapped=False)
        return locate(self.file, offset, 0, size, nowait=nowait)

    def check_entry(self, offset: int, position: int, *, nowait: bool = False) -> bool:
        """Whether a batch at `position` ends at `offset`: then this entry of the offset index is right.

        If not, the indexes are rebuilt, or with `nowait` WouldBlock is raised.
        """
        try:
            found = locate(self.file, offset, position, self.size, nowait=nowait, ends_at=offset)
        except CorruptIndex as error:
            if nowait:
                raise WouldBlock from error
            self.rebuild_wrong_indexes(error)
            return False
        except CorruptRecords:  # the batch is corrupt, not the entry
            return True
        return found is not None

    def next_offset(self, *, indexed: bool = True) -> int:
        """Offset after the last batch; the base offset of an empty segment."""
        start = self.offset_index.last[1] if indexed else 0
        try:
            return self._end_from(start)
        except KafkaError:
            if not start or self.check_entry(*self.offset_index.last):
                raise
        return self._end_from(0)

    def _end_from(self, position: int) -> int:
        last = self.base_offset
        for batch in headers(self.file, position, self.size):
            last = batch.last_offset + 1
        return last

    def first_batch_timestamp(self) -> int:
        """Largest timestamp of the first batch; -1 if there is none."""
        if self.first_timestamp is None:
            for batch in headers(self.file, 0, self.size):
                self.first_timestamp = batch.max_timestamp
                break
        return NO_TIMESTAMP if self.first_timestamp is None else self.first_timestamp

    # Rebuilding

    def rebuild_wrong_indexes(self, error: CorruptIndex) -> None:
        """Rebuild the offset and time indexes, one of which has a wrong entry (`error`).

        While the segment is appended to, the wrong entry remains until the segment is rolled; lookups use another one.
        """
        if self._ready:
            if not self._is_wrong_logged:
                _logger.warning(
                    "an index of segment %s is wrong, ignoring its entry: %s", self, error
                )
            self._is_wrong_logged = True
            return
        size, wrong = self.size, (self._offset_index, self._time_index)
        made = build(self.file, size, self.base_offset, self.index_interval_bytes)
        with self._opening:
            self._check_open()
            if self._ready or size != self._size or wrong != (self._offset_index, self._time_index):
                return  # appended to, or rebuilt, meanwhile
            _logger.warning("rebuilding index files of segment %s: %s", self, error)
            offset_index, time_index = self._new_indexes()
            offset_index.replace(made.offsets)
            time_index.replace(made.times)
            # Readers in other threads may still use the wrong ones.
            self._keep_open(wrong)
            self._offset_index, self._time_index = offset_index, time_index

    def repair_transaction_index(
        self, entries: Sequence[AbortedTransaction], end: int, problem: str | None
    ) -> None:
        """Rebuild the transaction index from `entries`, those of all batches below offset `end`. Appends may
        continue. Raises OSError, and ValueError if the segment was closed or truncated."""
        with self._opening:
            self._check_open()
            index = self._transaction_index
            if index is None:  # it was compared with the log, so it is there
                raise ValueError(f"{self} has no transaction index")
            if problem is not None:
                _logger.warning("rebuilding transaction index of segment %s: %s", self, problem)
            index.repair(entries, end)

    def restore_indexes(self, builder: IndexBuilder, *, sealed: bool) -> None:
        """Write the index entries of recovery's `builder`; `sealed` adds the entry of the largest
        timestamp."""
        if sealed:
            builder.seal()
        self.offset_index.rebuild(builder.kept_offsets, builder.offsets)
        self.time_index.rebuild(builder.kept_times, builder.times)
        self._max_timestamp = builder.max_timestamp
        self._offset_of_max_timestamp = builder.offset_of_max_timestamp
        self._ready = False

    def cut_file(self, size: int) -> None:
        """Truncate the data file in place, for recovery, when there are no readers."""
        self.file.truncate(size)
        self._size = size
        self._tail = []
        self._found = None
        self.first_timestamp = None

    def truncated(self, offset: int, position: int, file: File, now_ms: int) -> Segment:
        """The segment of the batches below `offset`, which are the first `position` bytes of `file`.

        Its index files replace the old ones. The old segment stays readable below `offset`.
        """
        fresh = self.with_own_files_in(self.directory)
        fresh.created_ms = self.created_ms if position else now_ms
        fresh._offset_index = index = self.offset_index.truncated(offset)
        # This removes the entry that `seal` wrote, too.
        fresh._time_index = self.time_index.truncated(index.last[0] + 1 if index.count else -1)
        fresh._transaction_index = self.transaction_index.truncated(offset)
        fresh._file = file
        fresh._size = position
        if not position:
            fresh.first_timestamp = None
        fresh._find_max_timestamp()
        return fresh

    def with_own_files_in(self, directory: Path) -> Segment:
        """Segment with the same offsets and age in `directory`, with files of its own, opened on demand."""
        fresh = Segment(
            self._files,
            directory,
            self.base_offset,
            index_interval_bytes=self.index_interval_bytes,
            created_ms=self.created_ms,
            roll_jitter_ms=self.roll_jitter_ms,
            has_transaction_index=self.has_transaction_index,
        )
        fresh.first_timestamp = self.first_timestamp
        return fresh

    def with_open_files(
        self,
        directory: Path,
        file: File,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        transaction_index: TransactionIndex,
    ) -> Segment:
        """A segment that continues with these files, which have the same content."""
        fresh = self.with_own_files_in(directory)
        fresh._file, fresh._size = file, self._size
        fresh._offset_index, fresh._time_index = offset_index, time_index
        fresh._transaction_index = transaction_index
        fresh._max_timestamp = self.max_timestamp
        fresh._offset_of_max_timestamp = self._offset_of_max_timestamp
        fresh._tail, fresh._ready = list(self._tail), self._ready
        return fresh

    def _find_max_timestamp(self) -> None:
        """Largest timestamp, from the time index and the batches after its last entry."""
        index = self.offset_index
        start = index.last[1] if index.count and self.check_entry(*index.last) else 0
        timestamp, offset = self.time_index.last
        if timestamp >= 0 and self.batch_with_timestamp(timestamp, offset) is None:
            start, timestamp, offset = 0, NO_TIMESTAMP, self.base_offset
        for batch in headers(self.file, start, self._size):
            if batch.max_timestamp > timestamp:
                timestamp, offset = batch.max_timestamp, batch.last_offset
        self._max_timestamp, self._offset_of_max_timestamp = timestamp, offset

    # Seal, rename, close

    def seal(self) -> None:
        """End appends: write the time index entry of the largest timestamp and trim the indexes.

        Also called on closing, so that the largest timestamp is known without a scan. The space of the
        entry was reserved before the data was written.
        """
        time_index = self.time_index
        if self.max_timestamp > time_index.last[0]:
            time_index.reserve(1)
            time_index.append([(self.max_timestamp, self.offset_of_max_timestamp)])
        self.offset_index.trim()
        time_index.trim()
        self._tail = []
        self._ready = False

    def sync(self) -> None:
        """Sync the data, then the indexes."""
        self.file.sync()
        self.sync_indexes()

    def rename(self, suffix: str) -> None:
        """Change the suffix of all files, the data file first.

        Raises OSError after the renames were undone; EIO if one could not be undone.
        """
        with self._opening:
            old = {kind: self.path(kind) for kind in SEGMENT_FILES}
            there = [kind for kind in SEGMENT_FILES if kind == LOG or self._files.exists(old[kind])]
            before, self.suffix = self.suffix, suffix
            try:
                rename_together(self._files, [(old[kind], self.path(kind)) for kind in there])
            except OSError:
                self.suffix = before
                raise
            self._moved()

    def move_to(self, directory: Path) -> None:
        """Use the files in a renamed directory."""
        with self._opening:
            self.directory = directory
            self._moved()

    def disown_file(self) -> None:
        """Leave the data file open: it belongs to another segment now (`truncated`)."""
        self._file = None

    def close(self) -> None:
        """Close all files for good; nothing is written. A pinned slice keeps its file."""
        with self._opening:
            self._is_closed = True
            self._let_go()

    def remove(self) -> None:
        """Close the segment and unlink its files."""
        self.close()
        for kind in (LOG, *INDEX_FILES):
            self._files.remove(self.path(kind), missing_ok=True)
