"""A file of entries of one size that only grows: what offset and time index have in common.

- The file is opened when first used. Entries are read through a read-only map of the entries alone
  (a store or a hole on a full disk would kill the process), and written with `write_at`.
- Room is taken in steps of 4 KiB, or the whole entries that fit in (`reserve`), **before** the data
  that an entry points to is written: a full disk shows itself while there is nothing to undo. Kafka
  takes `segment.index.bytes` at once, as a hole; really taken, 4,000 partitions would need 80 GB.
  Past the last entry the file holds zeros, as Kafka's does, until it is trimmed (roll, close).
- Bytes that a map may cover are never changed or cut off in place: a truncation writes the entries
  it keeps to a new file that replaces the old (`take_place`), and whoever still looks into the old
  one finds it whole. Only `restore` cuts in place; it is for recovery, when nobody reads yet.
- Room is given back (`trim`) in a thread, too, where a log is closed, while the loop looks entries up:
  neither may find the other half way, a map of what is being cut off or a view that keeps it from
  going. So `search` and `trim` of the same file exclude each other.
- After a crash the number of entries is not known from the size. Whoever opens a log that was not
  closed cleanly finds it out from the entries (recovery.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from odradek.seams.files import Buffer, File, Files, Path
from odradek.storage.errors import SourceFailed
from odradek.storage.log.file_names import CLEANED

T = TypeVar("T")

STEP_BYTES = 4096


class CorruptIndex(Exception):
    """An index contradicts itself or its segment: it is rebuilt."""


def replace_file(files: Files, path: Path, parts: Sequence[Buffer]) -> File:
    """A new file of `parts`, synced, that takes the place of the one at `path` at once."""
    fresh_path = path.with_name(path.name + CLEANED)
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
        """Held while its map is looked into, and while the file is trimmed."""
        self.count = 0
        self.capacity = 0
        """How many entries there is room for, those there are included."""

    @property
    def file(self) -> File:
        """The file, which `create`, `open` or `open_raw` has opened. Raises ValueError once closed."""
        file = self._file  # which may be closed from another thread meanwhile: so here, and below
        if file is None:
            raise ValueError(f"{self.path} is closed")
        return file

    def create(self) -> None:
        """A new, empty file, instead of one that may be there."""
        self._files.remove(self.path, missing_ok=True)
        self._use(self._files.open(self.path, create=True), 0)

    def open(self) -> None:
        """Open a trimmed file. Raises CorruptIndex unless it holds whole entries, FileNotFoundError."""
        file = self._files.open(self.path, write=True)
        self._use(file, 0)
        count, rest = divmod(file.size, self.entry_size)
        if rest:
            raise CorruptIndex(f"{self.path} has {file.size} bytes: {rest} too many")
        self.count = count

    def open_raw(self) -> None:
        """Open a file, whatever is in it, with no entries as yet; a missing one is created."""
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
        """What `find` makes of the entries, which it must not keep.

        Mapped on the loop; read where another thread asks: it would hold the loop up.
        """
        size_bytes = self.count * self.entry_size
        if not mapped:
            return find(self.file.read_at(0, size_bytes))
        with self._mapping, self.file.map_read(size_bytes) as view:
            return find(view)

    def entry(self, number: int) -> bytes:
        return self.file.read_at(number * self.entry_size, self.entry_size)

    def reserve(self, count: int) -> None:
        """Take room for `count` more entries. Raises OSError (ENOSPC) and changes nothing."""
        needed = self.count + count
        if needed > self.capacity:
            room_bytes = -(-needed * self.entry_size // STEP_BYTES) * STEP_BYTES
            capacity = room_bytes // self.entry_size
            self.file.preallocate(capacity * self.entry_size)
            self.capacity = capacity

    def add(self, entries: bytes) -> None:
        """Write whole entries behind those there are; room must have been reserved."""
        self.file.write_at(self.count * self.entry_size, entries)
        self.count += len(entries) // self.entry_size

    def catch_up(self, other: IndexFile) -> None:
        """Add the entries that `other`, of which ours are a prefix, has and we do not.

        Raises OSError of ours, SourceFailed."""
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
        """Learn what the last entry says."""
        raise NotImplementedError

    def trim(self) -> None:
        """Give back the room past the last entry."""
        size_bytes = self.count * self.entry_size
        if self.file.size != size_bytes:
            with self._mapping:
                self.file.truncate(size_bytes)
        self.capacity = self.count

    def take_place(self, entries: Buffer) -> None:
        """Begin with `entries`, in a new file that takes the place of the one at `path` at once.

        Synced before: recovery believes what is below its point, which the old file held.
        """
        fresh = replace_file(self._files, self.path, (entries,))
        self._use(fresh, len(entries) // self.entry_size)

    def restore(self, keep: int, entries: Buffer) -> None:
        """Keep the first `keep` entries, write `entries` after them, and end there (recovery)."""
        kept_bytes = keep * self.entry_size
        self.file.unmap()
        if self.file.size != kept_bytes:
            self.file.truncate(kept_bytes)
        if entries:
            self.file.append_v((entries,))
        self._use(self.file, keep + len(entries) // self.entry_size)

    def sync(self) -> None:
        """Raises OSError, and ValueError where it is closed meanwhile."""
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
