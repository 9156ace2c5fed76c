"""Open files of a segment: its data and its indexes, opened on demand.

Common part of `Segment` and of the copy of a segment in a future replica.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence

from odradek.seams.files import File, Files, Path
from odradek.storage.log.file_names import LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX
from odradek.storage.log.offset_index import OffsetIndex
from odradek.storage.log.time_index import TimeIndex
from odradek.storage.log.transaction_index import TransactionIndex

Handle = File | OffsetIndex | TimeIndex | TransactionIndex


class SegmentHandles:
    """Handles of a segment, as attributes of its own because appends access them."""

    __slots__ = ("_file", "_offset_index", "_refused", "_time_index", "_transaction_index")

    def __init__(self) -> None:
        self._file: File | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transaction_index: TransactionIndex | None = None
        self._refused: list[OffsetIndex | TimeIndex] = []
        """Replaced indexes, which readers in other threads may still use."""

    def path(self, kind: str) -> Path:
        """Path of the file of this kind, one of SEGMENT_FILES."""
        raise NotImplementedError

    def _handles(self) -> Iterator[tuple[str, Handle]]:
        """Open files by kind."""
        if self._file is not None:
            yield LOG, self._file
        if self._offset_index is not None:
            yield OFFSET_INDEX, self._offset_index
        if self._time_index is not None:
            yield TIME_INDEX, self._time_index
        if self._transaction_index is not None:
            yield TRANSACTION_INDEX, self._transaction_index

    def _moved(self) -> None:
        """Set the current `path` of each open file."""
        for kind, handle in self._handles():
            handle.moved(self.path(kind))

    def sync_indexes(self) -> None:
        """Sync the open indexes. Raises OSError."""
        for index in (self._offset_index, self._time_index, self._transaction_index):
            if index is not None:
                index.sync()

    def _keep_open(self, refused: Sequence[OffsetIndex | TimeIndex | None]) -> None:
        """Close these indexes together with the others."""
        self._refused += [index for index in refused if index is not None]

    def _let_go(self) -> None:
        """Close all open files; nothing is written. A pinned slice keeps its own handle.

        The transaction index object is kept, because it knows whether its file exists.
        """
        for _, handle in self._handles():
            handle.close()
        for index in self._refused:
            index.close()
        self._refused.clear()
        self._file = self._offset_index = self._time_index = None


def rename_together(files: Files, names: Sequence[tuple[Path, Path]]) -> None:
    """Rename all files or none. Raises OSError; EIO if a rename could not be undone."""
    done: list[tuple[Path, Path]] = []
    try:
        for old, new in names:
            files.rename(old, new)
            done.append((old, new))
    except OSError:
        try:
            for old, new in reversed(done):
                files.rename(new, old)
        except OSError as error:
            raise OSError(
                errno.EIO,
                f"only some files were renamed, and this could not be undone ({error})",
                str(done[0][0]),
            ) from error
        raise
