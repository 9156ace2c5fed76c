"""One segment's copy: its data, batch by whole batch, and its indexes at the end.

`take` does one slice in a thread, beside appends to the source and beside a truncation of it: it pins
the source's file, so that a truncation copies it away in place of cutting it, and what was copied
counts only if no truncation came in between (`cut`). So the first `copied` bytes are always those of
the source as it is, and what the file has past them is not believed.

A file that was there before (a move that goes on after a restart) is compared, slice by slice, with
the source, and used as far as it is the same: whatever a crash or another life made of either.
"""

from __future__ import annotations

import threading

from odradek.seams.files import File, Files, FileSlice, Path
from odradek.storage.errors import SourceFailed
from odradek.storage.log.batch_scan import headers
from odradek.storage.log.file_names import (
    LOG,
    OFFSET_INDEX,
    SEGMENT_FILES,
    TIME_INDEX,
    TRANSACTION_INDEX,
    file_name,
)
from odradek.storage.log.offset_index import OffsetIndex
from odradek.storage.log.read import Tip
from odradek.storage.log.segment import Segment
from odradek.storage.log.segment_files import SegmentHandles
from odradek.storage.log.time_index import TimeIndex
from odradek.storage.log.transaction_index import TransactionIndex

_CHUNK_BYTES = 1 << 20


class SegmentCopy(SegmentHandles):
    """See the module."""

    def __init__(self, files: Files, directory: Path, source: Segment) -> None:
        """Continues a file that is there. Raises OSError."""
        super().__init__()
        self.directory = directory
        self.base_offset = source.base_offset
        self.source = source
        self.copied = 0
        """Bytes, of whole batches, that are the source's."""
        self._written_out = (0, 0)
        """The piece that the kernel was last told to write out."""
        self.end_offset = source.base_offset
        """Where the copied part ends, as an offset."""
        self.is_finished = False
        """All of a sealed segment is here, with its indexes, and durable."""
        self._files = files
        self._truncations = 0
        self._lock = threading.Lock()
        self.has_transaction_index = False
        self.synced_offset = source.base_offset
        """All of it below this offset is durable."""
        self._indexed: Segment | None = None
        """Whose entries the indexes have."""
        path = self.path(LOG)
        if not files.exists(path):
            self._file = files.open(path, create=True)

    def path(self, kind: str) -> Path:
        return self.directory / file_name(self.base_offset, kind)

    @property
    def file(self) -> File:
        """The data; opened when needed, closed once finished."""
        if self._file is None:
            self._file = self._files.open(self.path(LOG), write=True)
        return self._file

    # Data

    def copy_slice(self, size: int, tip: Tip, next_base: int | None) -> int:
        """Copy (or compare) a slice of about `size` bytes; how many. 0: there is no more now.

        `tip` is the log's end, `next_base` where the next segment begins; None if there is none.
        Raises OSError of the destination, SourceFailed; ValueError where the source was replaced.
        """
        with self._lock:
            source, start, truncations = self.source, self.copied, self._truncations
        limit = tip.position if source is tip.segment else source.size
        if start >= limit:
            return 0
        file = source.file
        file.pin()
        try:
            end, end_offset = self._end_of_slice(source, start, size, limit, tip, next_base)
            if not self._is_copied_already(file, start, end):
                self._copy(file, start, end)
        finally:
            file.unpin()
        with self._lock:
            if truncations != self._truncations:
                return 0
            self.copied, self.end_offset = end, end_offset
        return end - start

    def _end_of_slice(
        self,
        source: Segment,
        start: int,
        size: int,
        limit: int,
        tip: Tip,
        next_base: int | None,
    ) -> tuple[int, int]:
        """Where about `size` bytes of whole batches end: position and offset."""
        end = limit
        try:
            if limit - start > size:
                end = source.offset_index.floor_of_position(start + size)
                if end <= start:  # the batch here is larger than that
                    end = start + next(headers(source.file, start, limit)).size
            if not start < end < limit:
                last = tip.end_offset if source is tip.segment else next_base
                return limit, tip.end_offset if last is None else last
            return end, next(headers(source.file, end, limit)).base_offset
        except OSError as error:
            raise SourceFailed(source.path(LOG), error) from error

    def _is_copied_already(self, file: File, start: int, end: int) -> bool:
        """Whether what a former life copied is what is to be copied; what is not is cut off."""
        if self.file.size >= end and self._is_same(file, start, end):
            return True
        if self.file.size != start:
            self.file.truncate(start)
        return False

    def _is_same(self, file: File, start: int, end: int) -> bool:
        for position in range(start, end, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, end - position)
            if self.file.read_at(position, size) != _read(file, position, size):
                return False
        return True

    def _copy(self, file: File, start: int, end: int) -> None:
        position = start
        try:
            while position < end:
                copied = self.file.append_slice(FileSlice(file, position, end - position))
                if not copied:
                    raise ValueError(f"{file.path} ends at {position}, before {end}")
                position += copied
        except OSError:
            for piece in range(start, end, _CHUNK_BYTES):  # if that fails, too, it is the source's
                _read(file, piece, min(_CHUNK_BYTES, end - piece))
            raise

    def write_out(self) -> None:
        """Have the kernel write what was copied since the last call, and wait until what it was told
        then is written: so no more than two pieces are on the way to the disk. Raises OSError."""
        before, last = self._written_out
        self._written_out = (last, self.copied)
        if last < self.copied:
            self.file.write_out(last, self.copied - last, wait=False)
        if before < last:
            self.file.write_out(before, last - before, wait=True)

    def write(self, data: memoryview, tip: Tip) -> None:
        """What was just appended to the source, which ends at `tip` now. Raises OSError."""
        if self.file.size != self.copied:
            self.file.truncate(self.copied)
        self.file.append_v((data,))
        self.copied, self.end_offset = tip.position, tip.end_offset

    # What happens to the source meanwhile

    def source_truncated(self, old: Segment, new: Segment, tip: Tip) -> None:
        """In the truncation's thread: what is left of `old` is `new`, the log's last, up to `tip`."""
        with self._lock:
            if self.source is old:
                self._restart(new)
                if self.copied > tip.position:
                    self.copied, self.end_offset = tip.position, tip.end_offset
                self.synced_offset = min(self.synced_offset, tip.end_offset)

    def source_replaced(self, new: Segment) -> None:
        """The source is another segment, of which nothing is known."""
        with self._lock:
            self._restart(new)
            self.copied, self.end_offset = 0, self.base_offset
            self.synced_offset = self.base_offset

    def _restart(self, new: Segment) -> None:
        self._truncations += 1
        self.source = new
        self.is_finished = False

    # Indexes

    def forget_indexes(self) -> None:
        """They are made anew. Raises OSError."""
        self._close_indexes()
        for kind in SEGMENT_FILES:
            if kind != LOG:
                self._files.remove(self.path(kind), missing_ok=True)

    def follow_indexes(self) -> None:
        """Add the entries that the source's indexes have gained. Raises OSError."""
        source = self.source
        if self._indexed is not source or self._offset_index is None or self._time_index is None:
            self.forget_indexes()
            offset_index = OffsetIndex(self._files, self.path(OFFSET_INDEX), self.base_offset)
            offset_index.create()
            self._offset_index = offset_index
            time_index = TimeIndex(self._files, self.path(TIME_INDEX), self.base_offset)
            time_index.create()
            self._time_index, self._indexed = time_index, source
        if self._transaction_index is None:
            self._transaction_index = TransactionIndex(
                self._files, self.path(TRANSACTION_INDEX), exists=False
            )
        self._offset_index.catch_up(source.offset_index)
        self._time_index.catch_up(source.time_index)
        self._transaction_index.catch_up(source.transaction_index)
        self.has_transaction_index = self._transaction_index.exists

    def sync(self) -> None:
        """All that is here is durable, but for its names. Raises OSError."""
        with self._lock:
            truncations, end_offset = self._truncations, self.end_offset
        if self.file.size != self.copied:
            self.file.truncate(self.copied)
        self.file.sync()
        self.sync_indexes()
        with self._lock:
            if truncations == self._truncations:
                self.synced_offset = end_offset

    @property
    def is_durable(self) -> bool:
        """Whether all that the source has is, as of now."""
        is_whole = self.is_finished or self.copied == self.source.size
        return is_whole and self.synced_offset == self.end_offset

    def finish(self) -> None:
        """All of a sealed segment was copied: its indexes, and sync. Raises OSError."""
        with self._lock:
            truncations = self._truncations
        self.follow_indexes()
        self.trim()
        self.sync()
        self.close()
        with self._lock:
            self.is_finished = truncations == self._truncations

    def trim(self) -> None:
        """The segment is sealed: its indexes give back their room. Raises OSError."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.trim()

    # Its end

    def moved(self, directory: Path) -> None:
        """The directory was renamed."""
        self.directory = directory
        self._moved()

    def in_place(self) -> Segment:
        """The segment of these files, which are complete; whoever flushes it needs the handles of those
        that are not durable."""
        if self.is_finished:
            fresh = self.source.relative(self.directory)
            fresh.has_transaction_index = self.has_transaction_index
            return fresh
        assert self._offset_index is not None
        assert self._time_index is not None
        assert self._transaction_index is not None
        return self.source.continued(
            self.directory,
            self.file,
            self._offset_index,
            self._time_index,
            self._transaction_index,
        )

    def close(self) -> None:
        """Give up the handles; what is done next opens them anew."""
        self._let_go()
        self._indexed = self._transaction_index = None

    def _close_indexes(self) -> None:
        for index in (self._offset_index, self._time_index, self._transaction_index):
            if index is not None:
                index.close()
        self._offset_index = self._time_index = self._transaction_index = None

    def remove(self) -> None:
        """Raises OSError."""
        self.close()
        for kind in SEGMENT_FILES:
            self._files.remove(self.path(kind), missing_ok=True)


def _read(file: File, position: int, size: int) -> bytes:
    try:
        return file.read_at(position, size)
    except OSError as error:
        raise SourceFailed(file.path, error) from error
