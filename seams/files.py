"""The only door to the disk: interfaces. The real one is `real_files.py`.

No file descriptor leaves this floor. A `File` is a logical handle: the real one opens its
descriptor when first needed and gives it back under pressure (a bounded LRU), so a holder of 40,000
`File`s holds no descriptors. All calls are synchronous; who must not block the loop hands them to
`Offload`. Every failure is an `OSError` with its errno (ENOSPC, EIO, EROFS, …); nothing is retried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

Buffer = bytes | bytearray | memoryview
Path = PurePosixPath


class WouldBlock(Exception):
    """`read_at(nowait=True)` found the bytes not in memory; read again through `Offload`."""


class OutOfDescriptors(OSError):
    """No descriptor to be had (EMFILE, ENFILE): back-pressure, never a failed directory."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    total_bytes: int
    free_bytes: int


class File(Protocol):
    """A file open for reading, and for writing where it was opened so."""

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int:
        """Bytes, as this handle knows them: kept by its own writes, no system call."""
        ...

    def append_v(self, parts: Sequence[Buffer]) -> int:
        """Write all parts at the end, in order; returns the position of the first byte.

        A write cut short is carried on; on an error the file may hold a part of the bytes past the
        old `size`, which stays what it was: the caller truncates or goes offline.
        """
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Write all of `data`; past the end the file grows and `size` with it."""
        ...

    def read_at(self, position: int, size: int, *, nowait: bool = False) -> bytes:
        """At most `size` bytes; fewer only at the end of the file. `nowait` raises WouldBlock."""
        ...

    def map_read(self, size: int) -> memoryview:
        """A read-only map of the first `size` bytes, which must lie within `size` of the file.

        The map is kept in a bounded LRU and shared: hold the view for one synchronous call only.
        Reading past bytes that were written is forbidden (a hole on a full disk is SIGBUS).
        """
        ...

    def unmap(self) -> None:
        """Drop the map; called before a truncate, a trim or a delete."""
        ...

    def sync(self) -> None: ...

    def truncate(self, size: int) -> None: ...

    def preallocate(self, size: int) -> None:
        """Grow the file to `size` bytes of zeros where it is smaller; really allocated, or ENOSPC."""
        ...

    def moved(self, path: Path) -> None:
        """The file's directory was renamed: from now on it is at `path`."""
        ...

    def pin(self) -> None:
        """Keep the descriptor and the bytes reachable until `unpin`, through close and removal."""
        ...

    def unpin(self) -> None: ...

    @property
    def pins(self) -> int: ...

    def close(self) -> None:
        """Give up the descriptor and the map (once unpinned). Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class FileSlice:
    """`size` bytes of `file` from `position`: what a connection sends without reading it.

    Whoever makes a slice that outlives the present synchronous call pins the file; whoever has
    sent or dropped it unpins.
    """

    file: File
    position: int
    size: int

    def read(self) -> bytes:
        return self.file.read_at(self.position, self.size)


class Lock(Protocol):
    def release(self) -> None: ...


class Files(Protocol):
    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        """Open a file. `create` makes a new, empty one and fails if there is one (implies write).

        A missing file is a FileNotFoundError here, even where the descriptor comes later.
        """
        ...

    def read(self, path: Path) -> bytes:
        """The whole of a small file."""
        ...

    def write_new(self, path: Path, data: bytes) -> None:
        """Replace a small file at once: `path` + `.tmp`, sync, rename, sync of the directory."""
        ...

    def exists(self, path: Path) -> bool: ...

    def is_directory(self, path: Path) -> bool: ...

    def file_size(self, path: Path) -> int: ...

    def list(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_directory(self, path: Path) -> None:
        """With its parents; no error if it is there."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """A file or a directory; a file that is at `new` is replaced at once."""
        ...

    def remove(self, path: Path, *, missing_ok: bool = False) -> None: ...

    def remove_tree(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        ...

    def lock(self, path: Path) -> Lock:
        """Take the lock file for this process; BlockingIOError if another holds it."""
        ...

    def disk_usage(self, path: Path) -> DiskUsage: ...
