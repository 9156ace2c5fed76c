"""The only door to the disk: interfaces. The real one is `real_files.py`.

No file descriptor leaves this floor. A `File` is a logical handle: the real one opens its
descriptor when first needed and gives it back under pressure (a bounded LRU), so a holder of 40,000
`File`s holds no descriptors. All calls are synchronous; who must not block the loop hands them to
`Offload`. Every failure is an `OSError` with its errno (ENOSPC, EIO, EROFS, …); nothing is retried.
Misuse (a closed handle, a map past the end) is a ValueError, a map dropped under a view a BufferError:
bugs of the caller's. A handle belongs to one writer; reading and `sync` may run beside it in threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Protocol

from odradek.seams.values import value_class

Buffer = bytes | bytearray | memoryview
Path = PurePosixPath


class WouldBlock(Exception):
    """`read_at(nowait=True)` found the bytes not in memory; read again through `Offload`."""


class OutOfDescriptors(OSError):
    """No descriptor to be had (EMFILE, ENFILE): back-pressure, never a failed directory."""


@value_class
class DiskUsage:
    total_bytes: int
    free_bytes: int


class Source(Protocol):
    """What a `FileSlice` is of: a file, mostly."""

    @property
    def path(self) -> Path: ...

    def read_at(self, position: int, size: int, *, nowait: bool = False) -> Buffer: ...

    def is_in_memory(self, position: int, size: int) -> bool: ...

    def pin(self) -> None: ...

    def unpin(self) -> None: ...


class File(Protocol):
    """A file open for reading, and for writing where it was opened so."""

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int:
        """Bytes, as this handle knows them: kept by its own writes, no system call.

        What is preallocated counts, so appends go after it: such a file is written by `write_at`.
        """
        ...

    def append_v(self, parts: Sequence[Buffer]) -> int:
        """Write all parts (buffers of bytes) at the end; returns the position of the first byte.

        A write cut short is carried on; on an error the file may hold a part of the bytes past the
        old `size`, which stays what it was: the next append writes over them, and who will not
        append truncates or goes offline.
        """
        ...

    def append_slice(self, part: FileSlice) -> int:
        """Write bytes of another file at the end, through this process only where the kernel cannot
        do without; how many, fewer than asked only where that file ends. The source must be pinned
        (or sure to stay). Errors as with `append_v`, of either file.
        """
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Write all of `data`; past the end the file grows and `size` with it."""
        ...

    def read_at(self, position: int, size: int, *, nowait: bool = False) -> bytes:
        """At most `size` bytes; fewer only at the end of the file.

        `nowait` raises WouldBlock unless all of them are in memory; where the file system cannot
        tell (tmpfs), they are taken to be.
        """
        ...

    def is_in_memory(self, position: int, size: int) -> bool:
        """Whether those bytes (one or more, of this file) are in memory, by a probe of both ends, and of
        many places in between where they are more than a MiB; true where the file system cannot tell."""
        ...

    def map_read(self, size: int) -> memoryview:
        """A read-only map of the first `size` bytes, which must lie within `size` of the file.

        The map is kept in a bounded LRU and shared: hold the view for one synchronous call only
        (while it is held the map cannot go). What `write_at` and `append_v` write later shows in
        it. Reading past bytes that were written is forbidden (a hole on a full disk is SIGBUS).
        """
        ...

    def unmap(self) -> None:
        """Drop the map; called before a trim or a delete. BufferError while a view is held."""
        ...

    def sync(self) -> None:
        """Make the content durable, whichever handle wrote it; not the name. Never retried: what a
        failed sync was to save is lost though the next one succeeds. Of several at once none returns
        before what it found written is durable, and all fail if the one that they wait for does."""
        ...

    def write_out(self, position: int, size: int, *, wait: bool) -> None:
        """Have these bytes go to the disk now, in so far as the platform can without a `sync`; with
        `wait` they are there on return, but not promised durable. An error is final, as one of `sync`
        is: what it was about is lost."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes; never grows it. Drops the map first, as `unmap` does."""
        ...

    def preallocate(self, size: int) -> None:
        """Grow the file to `size` bytes with zeros where it is smaller.

        Really allocated: later writes within it find no full disk. ENOSPC leaves it as it was.
        """
        ...

    def moved(self, path: Path) -> None:
        """The file or a directory above it was renamed: from now on it is at `path`.

        Told by whoever renamed, for every open handle; pinned ones, closed or not, follow by
        themselves.
        """
        ...

    def pin(self) -> None:
        """Keep the bytes reachable until `unpin`: through eviction, close, rename and removal.

        Costs no descriptor until the file is read or removed. Taken while the file is there: who
        removes it in a thread makes sure that nobody pins it meanwhile.
        """
        ...

    def unpin(self) -> None: ...

    @property
    def pins(self) -> int: ...

    def close(self) -> None:
        """Give up the descriptor and the map (once unpinned and idle). Idempotent."""
        ...


@value_class
class FileSlice:
    """`size` bytes of `file` from `position`: what a connection sends without reading it.

    Whoever makes a slice that outlives the present synchronous call pins the file; whoever has
    sent or dropped it unpins.
    """

    file: Source
    position: int
    size: int

    def read(self) -> bytes:
        return bytes(self.file.read_at(self.position, self.size))

    def is_in_memory(self) -> bool:
        return self.file.is_in_memory(self.position, self.size)


class Lock(Protocol):
    def release(self) -> None: ...

    def check(self) -> None:
        """Raises OSError unless the file that is held is still at its path, and its directory one
        where files can be made: not unmounted, not remounted read-only, not taken away."""
        ...


class Files(Protocol):
    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        """Open a file. `create` makes a new, empty one and fails if there is one (implies write).

        A missing file is a FileNotFoundError here, even where the descriptor comes later; whether
        it may be written is found out by the first write.
        """
        ...

    def read(self, path: Path) -> bytes:
        """The whole of a small file."""
        ...

    def write_new(self, path: Path, data: bytes) -> None:
        """Replace a small file at once: `path` + `.tmp`, sync, rename, sync of the directory."""
        ...

    def exists(self, path: Path) -> bool:
        """False where nothing is there. A disk that does not answer raises: a file where a
        directory should be (ENOTDIR), no permission and a failing medium are not absence."""
        ...

    def is_directory(self, path: Path) -> bool:
        """As `exists`."""
        ...

    def file_size(self, path: Path) -> int: ...

    def list(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_directory(self, path: Path) -> None:
        """With its parents; no error if it is there."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """A file or a directory; a file that is at `new` is replaced at once.

        EXDEV from one file system to another, as log directories usually are.
        """
        ...

    def remove(self, path: Path, *, missing_ok: bool = False) -> None: ...

    def remove_tree(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        ...

    def lock(self, path: Path) -> Lock:
        """Take the lock file, made if missing; BlockingIOError if it is held, by another process
        (a JVM's Kafka too) or within this one."""
        ...

    def disk_usage(self, path: Path) -> DiskUsage: ...
