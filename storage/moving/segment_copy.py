"""Copy of one segment: the data in whole batches, then the indexes.

`copy_slice` copies one slice in a thread while the source is appended to or truncated. It pins the source's file, so
that a truncation writes a new file instead of truncating this one. A slice counts only if no truncation was reported
meanwhile (`source_truncated`). Therefore the first `copied` bytes are always equal to those of the source, and bytes
after them are ignored.

A file that exists already, because a move continues after a restart, is compared with the source slice by slice. It
is used up to the first difference.
"""

from __future__ import annotations

import threading

from odradek.protocol.errors import KafkaError
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
from odradek.storage.log.read import LogEnd
from odradek.storage.log.segment import Segment
from odradek.storage.log.segment_files import SegmentHandles
from odradek.storage.log.time_index import TimeIndex
from odradek.storage.log.transaction_index import TransactionIndex

_CHUNK_BYTES = 1 << 20


class SegmentCopy(SegmentHandles):
    """Copy of one segment of the source in the directory of the future replica."""

    def __init__(self, files: Files, directory: Path, source: Segment) -> None:
        """Create the file, or reuse an existing one. Raises OSError."""
        super().__init__()
        self.directory = directory
        self.base_offset = source.base_offset
        self.source = source
        self.copied = 0
        """Number of bytes, in whole batches, that are equal to the source."""
        self._written_out = (0, 0)
        """Start and end of the piece whose writeback was started last."""
        self.end_offset = source.base_offset
        """End offset of the copied part."""
        self.is_finished = False
        """An inactive segment is copied with its indexes, and durable."""
        self._files = files
        self._truncations = 0
        self._lock = threading.Lock()
        self.has_transaction_index = False
        self.synced_offset = source.base_offset
        """Offset below which the copied data is durable."""
        self._indexed: Segment | None = None
        """Segment whose entries the indexes contain."""
        path = self.path(LOG)
        if not files.exists(path):
            self._file = files.open(path, create=True)

    def path(self, kind: str) -> Path:
        return self.directory / file_name(self.base_offset, kind)

    @property
    def file(self) -> File:
        """Data file; opened when needed, closed after the segment is finished."""
        if self._file is None:
            self._file = self._files.open(self.path(LOG), write=True)
        return self._file

    # Data

    def copy_slice(self, size: int, log_end: LogEnd, next_base: int | None) -> int:
        """Copy, or compare, a slice of about `size` bytes. Return its bytes; 0: there are no more now.

        `log_end` is the end of the log. `next_base` is the base offset of the next segment; None for the last one.
        Raises OSError of the destination, SourceFailed, and ValueError if the source was replaced.
        """
        with self._lock:
            source, start, truncations = self.source, self.copied, self._truncations
        limit = log_end.position if source is log_end.segment else source.size
        if start >= limit:
            return 0
        file = source.file
        file.pin()
        try:
            end, end_offset = self._end_of_slice(source, start, size, limit, log_end, next_base)
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
        log_end: LogEnd,
        next_base: int | None,
    ) -> tuple[int, int]:
        """Return the end position and end offset of about `size` bytes of whole batches."""
        end = limit
        try:
            if limit - start > size:
                end = source.offset_index.floor_of_position(start + size)
                if end <= start:  # the batch at `start` is larger than `size`
                    end = start + next(headers(source.file, start, limit)).size
            if not start < end < limit:
                last = log_end.end_offset if source is log_end.segment else next_base
                return limit, log_end.end_offset if last is None else last
            return end, next(headers(source.file, end, limit)).base_offset
        except KafkaError:  # the index is wrong, or the records are: copy them all, unchanged
            last = log_end.end_offset if source is log_end.segment else next_base
            return limit, log_end.end_offset if last is None else last
        except OSError as error:
            raise SourceFailed(source.path(LOG), error) from error

    def _is_copied_already(self, file: File, start: int, end: int) -> bool:
        """Return whether an earlier run copied this slice; otherwise truncate the file to `start`."""
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
                    raise ValueError(f"{file.path} ends at position {position}, expected {end}")
                position += copied
        except OSError:
            # If reading fails too, it is an error of the source
            for piece in range(start, end, _CHUNK_BYTES):
                _read(file, piece, min(_CHUNK_BYTES, end - piece))
            raise

    def write_out(self) -> None:
        """Start writeback of the bytes copied since the last call, and wait for those of the call before.

        So at most two pieces are waiting to be written. Raises OSError.
        """
        before, last = self._written_out
        self._written_out = (last, self.copied)
        if last < self.copied:
            self.file.write_out(last, self.copied - last, wait=False)
        if before < last:
            self.file.write_out(before, last - before, wait=True)

    def write(self, data: memoryview, log_end: LogEnd) -> None:
        """Append `data`, which was just appended to the source, whose end is `log_end`. Raises OSError."""
        if self.file.size != self.copied:
            self.file.truncate(self.copied)
        self.file.append_v((data,))
        self.copied, self.end_offset = log_end.position, log_end.end_offset

    # Changes of the source

    def source_truncated(self, old: Segment, new: Segment, log_end: LogEnd) -> None:
        """Apply a truncation that replaced `old` by `new`, the last segment, which ends at `log_end`. Runs in its thread."""
        with self._lock:
            if self.source is old:
                self._restart(new)
                if self.copied > log_end.position:
                    self.copied, self.end_offset = log_end.position, log_end.end_offset
                self.synced_offset = min(self.synced_offset, log_end.end_offset)

    def source_replaced(self, new: Segment) -> None:
        """Continue with another source segment, from the start."""
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
        """Remove the indexes, to rebuild them. Raises OSError."""
        self._close_indexes()
        for kind in SEGMENT_FILES:
            if kind != LOG:
                self._files.remove(self.path(kind), missing_ok=True)

    def follow_indexes(self) -> None:
        """Add the entries that are new in the source's indexes. Raises OSError."""
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
                self._files,
                self.path(TRANSACTION_INDEX),
                exists=False,
                base_offset=self.base_offset,
            )
        self._offset_index.catch_up(source.offset_index)
        self._time_index.catch_up(source.time_index)
        self._transaction_index.catch_up(source.transaction_index)
        self.has_transaction_index = self._transaction_index.exists

    def sync(self) -> None:
        """Sync data and indexes, but not their directory entries. Raises OSError."""
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
        """Return whether the whole source segment, as it is now, is copied and durable."""
        is_whole = self.is_finished or self.copied == self.source.size
        return is_whole and self.synced_offset == self.end_offset

    def finish(self) -> None:
        """Complete the copy of an inactive segment: indexes, sync, close. Raises OSError."""
        with self._lock:
            truncations = self._truncations
        self.follow_indexes()
        self.trim()
        self.sync()
        self.close()
        with self._lock:
            self.is_finished = truncations == self._truncations

    def trim(self) -> None:
        """Release the preallocated space of the indexes of an inactive segment. Raises OSError."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.trim()

    # Handover and removal

    def moved(self, directory: Path) -> None:
        """Use the new path of the renamed directory."""
        self.directory = directory
        self._moved()

    def in_place(self) -> Segment:
        """Return a segment of these files, with the open handles if they are not durable yet."""
        if self.is_finished:
            fresh = self.source.with_own_files_in(self.directory)
            fresh.has_transaction_index = self.has_transaction_index
            return fresh
        assert self._offset_index is not None
        assert self._time_index is not None
        assert self._transaction_index is not None
        return self.source.with_open_files(
            self.directory,
            self.file,
            self._offset_index,
            self._time_index,
            self._transaction_index,
        )

    def close(self) -> None:
        """Close the files; the next access opens them again."""
        self._let_go()
        self._indexed = self._transaction_index = None

    def _close_indexes(self) -> None:
        for index in (self._offset_index, self._time_index, self._transaction_index):
            if index is not None:
                index.close()
        self._offset_index = self._time_index = self._transaction_index = None

    def remove(self) -> None:
        """Remove all files of the segment. Raises OSError."""
        self.close()
        for kind in SEGMENT_FILES:
            self._files.remove(self.path(kind), missing_ok=True)


def _read(file: File, position: int, size: int) -> bytes:
    try:
        return file.read_at(position, size)
    except OSError as error:
        raise SourceFailed(file.path, error) from error
