"""Interfaces to files and directories. All disk access goes through them; `real_files.py` implements them.

No file descriptor leaves the layer `seams`. A `File` is a logical handle: the real one opens its descriptor when it is
first needed, and a bounded LRU closes it, so 40,000 open `File`s need few descriptors. All calls are synchronous; code
on the loop passes blocking calls to `Offload`. Every failure is an `OSError` with its errno (ENOSPC, EIO, EROFS, …);
nothing is retried. Errors of the caller are a ValueError (a closed handle, a map past the end) or a BufferError (a
map dropped while a view is held). A handle has one writer; other threads may read and `sync` at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Protocol

from odradek.seams.values import value_class

Buffer = bytes | bytearray | memoryview
Path = PurePosixPath


class WouldBlock(Exception):
    """`read_at(nowait=True)` did not find the bytes in the page cache; read them through `Offload`."""


class OutOfDescriptors(OSError):
    """No file descriptor is available (EMFILE, ENFILE). The caller retries; the log directory stays online."""


@value_class
class DiskUsage:
    total_bytes: int
    free_bytes: int


class Source(Protocol):
    """Source of the bytes of a `FileSlice`, usually a file."""

    @property
    def path(self) -> Path: ...

    def read_at(self, position: int, size: int, *, nowait: bool = False) -> Buffer: ...

    def is_in_memory(self, position: int, size: int) -> bool: ...

    def pin(self) -> None: ...

    def unpin(self) -> None: ...


class File(Protocol):
    """A file open for reading and, if requested, for writing."""

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int:
        """Size in bytes, which this handle updates on its own writes without a system call.

        It includes preallocated bytes. Appends go after them, so a preallocated file is written with `write_at`.
        """
        ...

    def append_v(self, parts: Sequence[Buffer]) -> int:
        """Write all parts (buffers of bytes) at the end; returns the position of the first byte.

        A partial write is continued. After an error the file may contain some of the bytes past `size`, which does
        not change. The next append overwrites them; a caller that does not append again truncates the file or marks
        the log directory offline.
        """
        ...

    def append_slice(self, part: FileSlice) -> int:
        """Append bytes of another file, copied by the kernel where it can; returns the number of bytes.

        It is less than requested only at the end of the source, which must be pinned or sure to stay. Raises
        OSError for either file; the effect of an error is that of `append_v`.
        """
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`. A write past the end increases `size`."""
        ...

    def read_at(self, position: int, size: int, *, nowait: bool = False) -> bytes:
        """Read `size` bytes, or fewer at the end of the file.

        `nowait` raises WouldBlock unless all of them are in the page cache. A file system that cannot report this
        (tmpfs) counts as in memory.
        """
        ...

    def is_in_memory(self, position: int, size: int) -> bool:
        """Whether the bytes, at least one, are in the page cache. True if the file system cannot report it.

        Probes the first and the last byte, and more positions in between for more than 1 MiB.
        """
        ...

    def map_read(self, size: int) -> memoryview:
        """A read-only memory map of the first `size` bytes; the file must have that many.

        Maps are shared and kept in a bounded LRU, so hold the view for one synchronous call only: while it is held, the
        map cannot be dropped. Later writes of `write_at` and `append_v` are visible in it. Do not read bytes that were
        never written: a hole on a full disk may be a SIGBUS.
        """
        ...

    def unmap(self) -> None:
        """Drop the memory map before truncation or deletion. Raises BufferError while a view is held."""
        ...

    def sync(self) -> None:
        """Flush the file's content, by whichever handle it was written, but not its name.

        Never retry it: after a failed sync the data may be lost although the next sync succeeds. Each of several
        concurrent calls returns after the bytes written before it are durable; all fail if the one they wait for fails.
        """
        ...

    def write_out(self, position: int, size: int, *, wait: bool) -> None:
        """Start writing these bytes to the disk, if the platform can do so without a `sync`.

        With `wait` they are written on return, but not guaranteed to be durable. An error is final, as with `sync`: the
        data may be lost.
        """
        ...

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes, and never extend it. Drops the map first, as `unmap` does."""
        ...

    def preallocate(self, size: int) -> None:
        """Extend the file with zeros to `size` bytes if it is smaller.

        The space is allocated, so later writes within it cannot fail with ENOSPC. If this call fails with ENOSPC, the
        file does not change.
        """
        ...

    def moved(self, path: Path) -> None:
        """Set the new path after a rename of the file or of a directory above it.

        The caller of the rename calls it for every open handle. Pinned handles are updated automatically.
        """
        ...

    def pin(self) -> None:
        """Keep the bytes readable until `unpin`, even after eviction, close, rename and removal.

        It needs no descriptor until the file is read or removed. The file must exist. Code that removes it in a thread
        ensures that no other thread pins it at the same time.
        """
        ...

    def unpin(self) -> None: ...

    @property
    def pins(self) -> int: ...

    def close(self) -> None:
        """Release the descriptor and the map once the handle is unpinned and idle. Idempotent."""
        ...


@value_class
class FileSlice:
    """`size` bytes of `file` from `position`, which a connection sends without reading them.

    The creator pins the file if the slice outlives the current synchronous call. The code that sends or drops the
    slice unpins the file.
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
        """Raises OSError unless the locked file is still at its path and its directory is writable.

        It detects a directory that was unmounted, remounted read-only, or removed.
        """
        ...


class Files(Protocol):
    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        """Open a file. `create` makes a new, empty file for writing and fails if it exists.

        A missing file raises FileNotFoundError here, even if the descriptor is opened later. The first write checks
        the permission to write.
        """
        ...

    def read(self, path: Path) -> bytes:
        """Read all bytes of a small file."""
        ...

    def write_new(self, path: Path, data: bytes) -> None:
        """Replace a small file atomically: write `path` + `.tmp`, sync, rename, sync the directory."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether a file or directory exists.

        Raises OSError if the check fails: a file in the path where a directory is expected (ENOTDIR), missing
        permission or an I/O error do not mean that it is missing.
        """
        ...

    def is_directory(self, path: Path) -> bool:
        """Whether the path exists and is a directory. Raises OSError as `exists` does."""
        ...

    def file_size(self, path: Path) -> int: ...

    def list(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents. An existing directory is no error."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or a directory. An existing file at `new` is replaced atomically.

        Raises OSError with EXDEV between two file systems, which is usual between log directories.
        """
        ...

    def remove(self, path: Path, *, missing_ok: bool = False) -> None: ...

    def remove_tree(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None:
        """Flush the entries of a directory to disk."""
        ...

    def lock(self, path: Path) -> Lock:
        """Lock the file, which is created if it is missing.

        Raises BlockingIOError if this process or another one, including a Kafka broker on a JVM, holds the lock.
        """
        ...

    def disk_usage(self, path: Path) -> DiskUsage: ...


IOV_MAX = max(16, os.sysconf("SC_IOV_MAX"))
"""Maximum number of buffers of one writev or sendmsg."""


def rest_after(parts: Sequence[Buffer], taken: int) -> list[Buffer]:
    """Return the buffers of `parts` after the first `taken` bytes, without empty ones."""
    rest: list[Buffer] = []
    for part in parts:
        size = len(part)
        if taken >= size:
            taken -= size
        elif taken:
            rest.append(memoryview(part)[taken:])
            taken = 0
        else:
            rest.append(part)
    return rest
