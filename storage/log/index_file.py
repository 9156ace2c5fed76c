"""File of fixed-size entries that only grows: the common part of offset index and time index.

- The file is opened on demand. Entries are read through a read-only map of the entries (a store, or a
  hole on a full disk, would kill the process), and written with `write_at`.
- Space is reserved in steps of 4 KiB (`reserve`) before the data of an entry is written, so that a full
  disk is detected while there is nothing to undo. Kafka reserves `segment.index.bytes` as a hole; really
  allocated, 4,000 partitions would need 80 GB. The file contains zeros after the last entry, as Kafka's
  does, until it is trimmed (roll, close).
- Bytes that a map may cover are never changed or removed in place: a truncation writes the kept entries
  to a new file that replaces the old one (`take_place`), which readers may continue to use. Only
  `restore` truncates in place, for recovery, when there are no readers.
- `trim` may run in a worker thread while the loop searches: `search` and `trim` of one file exclude each
  other.
- After a crash the number of entries does not follow from the size; recovery.py determines it from the
  entries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from odradek.seams.files import Buffer, File, Files, Path
from odradek.storage.errors import SourceFailed
from odradek.storage.log.file_names import DELETED

T = TypeVar("T")

STEP_BYTES = 4096


class CorruptIndex(Exception):
    """An index is inconsistent with itself or its segment, and must be rebuilt."""


def replace_file(files: Files, path: Path, parts: Sequence[Buffer]) -> File:
    """Write a new file of `parts`, sync it, and atomically replace the file at `path`."""
    # A start removes such a file. A `.cleaned` file would have the name of one of the log cleaner.
    fresh_path = path.with_name(f"{path.name}.new{DELETED}")
    files.remove(fresh_path, missing_ok=True)
    fresh = files.open(fresh_path, create=True)
    fresh.append_v(parts)
    fresh.sync()
    files.rename(fresh_path, path)
    fresh.moved(path)
    return fresh


class IndexFile:
    """Entries 0 to `count`, each `entry_size` bytes."""

    __slots__ = ("_file", "_files", "_mapping", "capacity", "count", "entry_size", "path")

    def __init__(self, files: Files, path: Path, entry_size: int) -> None:
        self._files = files
        self.path = path
        self.entry_size = entry_size
        self._file: File | None = None
        self._mapping = threading.Lock()
        """Held during a search of the map, and while the file is trimmed."""
        self.count = 0
        self.capacity = 0
        """Number of entries that fit into the reserved space."""

    @property
    def file(self) -> File:
        """The open file. Raises ValueError once closed."""
        file = self._file  # another thread may close it at any time
        if file is None:
            raise ValueError(f"{self.path} is closed")
        return file

    def create(self) -> None:
        """Create an empty file, replacing an existing one."""
        self._files.remove(self.path, missing_ok=True)
        self._use(self._files.open(self.path, create=True), 0)

    def open(self) -> None:
        """Open a trimmed file. Raises CorruptIndex unless it holds whole entries, FileNotFoundError."""
        file = self._files.open(self.path, write=True)
        self._use(file, 0)
        count, rest = divmod(file.size, self.entry_size)
        if rest:
            raise CorruptIndex(
                f"index file {self.path} is corrupt, found {file.size} bytes, which is not a "
                f"multiple of {self.entry_size}"
            )
        self.count = count

    def open_raw(self) -> None:
        """Open or create a file without reading its entries."""
        if self._file is None:
            if not self._files.exists(self.path):
                return self.create()
            self._use(self._files.open(self.path, write=True), 0)
        return None

    def _use(self, file: File, count: int) -> None:
        self._file = file
        self.count = count
        self.capacity = file.size // self.entry_size

    def search(self, find: Callable[[Buffer], T], *, mapped: bool) -> T:
        """Result of `find` over the entries, to which it must not keep a reference.

        `mapped`, for the loop, uses the map; other threads read the file, to avoid blocking the loop.
        """
        size_bytes = self.count * self.entry_size
        if not mapped:
            return find(self.file.read_at(0, size_bytes))
        with self._mapping, self.file.map_read(size_bytes) as view:
            return find(view)

    def entry(self, number: int) -> bytes:
        return self.file.read_at(number * self.entry_size, self.entry_size)

    def reserve(self, count: int) -> None:
        """Reserve space for `count` more entries. Raises OSError (ENOSPC) with nothing changed."""
        needed = self.count + count
        if needed > self.capacity:
            reserved_bytes = -(-needed * self.entry_size // STEP_BYTES) * STEP_BYTES
            capacity = reserved_bytes // self.entry_size
            self.file.preallocate(capacity * self.entry_size)
            self.capacity = capacity

    def add(self, entries: bytes) -> None:
        """Write entries after the existing ones; their space must be reserved."""
        self.file.write_at(self.count * self.entry_size, entries)
        self.count += len(entries) // self.entry_size

    def catch_up(self, other: IndexFile) -> None:
        """Add the entries that `other` has in addition; this index is a prefix of it.

        Raises OSError for this file, SourceFailed for the other.
        """
        count = other.count
        missing = count - self.count
        if missing > 0:
            start = self.count * self.entry_size
            try:
                entries = other.file.read_at(start, missing * self.entry_size)
            except OSError as error:
                raise SourceFailed(other.path, error) from error
            self.reserve(missing)
            self.file.write_at(start, entries)
            self.count = count
        self._read_last()

    def _read_last(self) -> None:
        """Read the last entry."""
        raise NotImplementedError

    def trim(self) -> None:
        """Free the reserved space after the last entry."""
        size_bytes = self.count * self.entry_size
        if self.file.size != size_bytes:
            with self._mapping:
                self.file.truncate(size_bytes)
        self.capacity = self.count

    def take_place(self, entries: Buffer) -> None:
        """Start with `entries`, in a new file that atomically replaces the one at `path`.

        It is synced before, because recovery trusts entries below the recovery point.
        """
        fresh = replace_file(self._files, self.path, (entries,))
        self._use(fresh, len(entries) // self.entry_size)

    def restore(self, keep: int, entries: Buffer) -> None:
        """Keep the first `keep` entries, write `entries` after them, and truncate the file
        (recovery)."""
        kept_bytes = keep * self.entry_size
        self.file.unmap()
        if self.file.size != kept_bytes:
            self.file.truncate(kept_bytes)
        if entries:
            self.file.append_v((entries,))
        self._use(self.file, keep + len(entries) // self.entry_size)

    def sync(self) -> None:
        """Sync the file. Raises OSError, and ValueError if it is closed meanwhile."""
        file = self._file
        if file is not None:
            file.sync()

    def moved(self, path: Path) -> None:
        self.path = path
        if self._file is not None:
            self._file.moved(path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
