"""`Files` on the file systems of the machine, with descriptors that are opened when needed and evicted.

Writes are positional (pwritev(2) at the handle's `size`), never O_APPEND. So a descriptor can be closed and opened again
between two writes, and the next append overwrites one that failed partially. Every call borrows its descriptor, so an
eviction on the loop cannot close it during a `sync` in a thread.

A pin costs nothing until the file is read. `remove`, `remove_tree` and a rename onto the file would make the bytes
unreachable, so they first open the pinned handles of the file and keep them open. A rename updates the path of pinned
handles, because their owner may have closed them already. `File.moved` updates handles that are not pinned.

Assumptions about the file system: `sync_data` covers the writes of all descriptors of a file; a rename is atomic; names
are durable once their directory is synced. If writeback fails while a file has no descriptor, the next `sync`
reports the error (Linux keeps it with the inode while the inode is in memory).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import threading
from collections.abc import Sequence
from functools import partial

from odradek.seams.descriptors import Descriptor, DescriptorPool, PoolStatistics
from odradek.seams.files import (
    IOV_MAX,
    Buffer,
    DiskUsage,
    FileSlice,
    OutOfDescriptors,
    Path,
    WouldBlock,
    rest_after,
)
from odradek.seams.system_calls import (
    READ_NOWAIT,
    allocate,
    copy,
    lock_file,
    sync_all,
    sync_data,
    write_out,
    write_vector,
)

WRITE_BYTES_MAX = 64 << 10
"""Bytes per write call when a large buffer is appended.

Linux allocates page cache in blocks as large as the write. A virtual machine may have returned its large free blocks
to the host, and then the first access to each page is a fault in the host. Measured on such a machine, alternating: to
write 1 GB takes 0.2 to 3 s of CPU (median 1.1) in writes of 1 MiB, 0.25 to 0.46 s (median 0.29) in writes of 64 KiB, and
always 0.5 s in writes of 16 KiB.
"""
_BUFFER_BYTES = 256 << 10
_spare_buffers: list[memoryview] = []  # at most one for each thread that reads concurrently
_PROBE = [bytearray(1)]  # the bytes read into it are not used
_PROBED_AT_ITS_ENDS_BYTES = 1 << 20  # a connection sends this much before it yields
_PROBE_EVERY_BYTES = 256 << 10
_EFFECTIVE = os.access in os.supports_effective_ids


class RealFile(Descriptor):
    __slots__ = ("_cannot_nowait", "_changed", "_failed_syncs", "_size", "_syncing")

    def __init__(self, pool: DescriptorPool, path: Path, flags: int, size: int) -> None:
        super().__init__(pool, path, flags)
        self._size = size
        self._cannot_nowait = not READ_NOWAIT
        self._changed = True
        """Whether this handle wrote after the last sync. Set after a write and cleared before a sync, so that a
        concurrent write in another thread is not missed."""
        self._syncing: threading.Lock | None = None  # created by the first sync
        self._failed_syncs = 0

    @property
    def path(self) -> Path:
        return self.path_now

    @property
    def size(self) -> int:
        return self._size

    def append_v(self, parts: Sequence[Buffer]) -> int:
        position = self._size
        size = sum(map(len, parts))
        fd = self.borrow()
        try:
            if size > WRITE_BYTES_MAX and len(parts) == 1:
                _write_in_pieces(fd, memoryview(parts[0]), position)
            elif len(parts) > IOV_MAX or write_vector(fd, parts, position) != size:
                _write_all(fd, parts, position)  # all parts again: rare, same bytes
        finally:
            self._changed = True
            self.give_back()
        self._size = position + size
        return position

    def append_slice(self, part: FileSlice) -> int:
        source, position = part.file, self._size
        if not isinstance(source, RealFile):
            raise ValueError(f"{source.path} is not a file of this disk")
        source_fd = source.borrow()
        try:
            fd = self.borrow()
            try:
                copied = copy(source_fd, part.position, fd, position, part.size)
            finally:
                self._changed = True
                self.give_back()
        finally:
            source.give_back()
        self._size = position + copied
        return copied

    def write_at(self, position: int, data: Buffer) -> None:
        fd = self.borrow()
        try:
            if os.pwrite(fd, data, position) != len(data):
                _write_all(fd, [data], position)
        finally:
            self._changed = True
            self.give_back()
        self._size = max(self._size, position + len(data))

    def read_at(self, position: int, size: int, *, nowait: bool = False) -> bytes:
        fd = self.borrow()
        try:
            if nowait and not self._cannot_nowait:
                found = self._read_from_memory(fd, position, size)
                if found is not None:
                    return found
            data = os.pread(fd, size, position)
            if len(data) == size:
                return data
            return _read_on(fd, position, size, data)
        finally:
            self.give_back()

    def _read_from_memory(self, fd: int, position: int, size: int) -> bytes | None:
        """The bytes from the page cache. Raises WouldBlock if they are not in it; None if unsupported."""
        # The buffer is reused, because a new bytearray of 1 MiB costs ten times the read.
        try:
            buffer = _spare_buffers.pop()
        except IndexError:
            buffer = memoryview(bytearray(_BUFFER_BYTES))
        chunks: list[bytes] = []
        got = 0
        try:
            while got < size:
                more = os.preadv(fd, [buffer[: size - got]], position + got, READ_NOWAIT)
                if not more:
                    break
                chunks.append(bytes(buffer[:more]))
                got += more
        except BlockingIOError:
            raise WouldBlock from None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._cannot_nowait = True
            return None
        finally:
            _spare_buffers.append(buffer)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def is_in_memory(self, position: int, size: int) -> bool:
        if self._cannot_nowait:
            return True
        fd = self.borrow()
        try:
            os.preadv(fd, _PROBE, position, READ_NOWAIT)
            os.preadv(fd, _PROBE, position + size - 1, READ_NOWAIT)
            if size > _PROBED_AT_ITS_ENDS_BYTES:
                for between in range(_PROBE_EVERY_BYTES, size - 1, _PROBE_EVERY_BYTES):
                    os.preadv(fd, _PROBE, position + between, READ_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._cannot_nowait = True
        finally:
            self.give_back()
        return True

    def map_read(self, size: int) -> memoryview:
        if not 0 <= size <= self._size:
            raise ValueError(f"a map of {size} bytes of {self.name}, which has {self._size}")
        if not size:
            return memoryview(b"")
        pool = self.pool
        with pool.lock:
            if self.view is not None and size <= len(self.view):
                pool.maps.move_to_end(self)
                return self.view[:size]
        return self._map(size)

    def _map(self, size: int) -> memoryview:
        fd = self.borrow()
        try:
            self._read_through(fd)
            # Map all of the file, so that later index entries in a preallocated file need no new map.
            try:
                new = mmap.mmap(fd, self._size, mmap.MAP_SHARED, mmap.PROT_READ)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    raise
                self.pool.relieve()
                new = self._map_or_out(fd)
        finally:
            self.give_back()
        with self.pool.lock:
            self.pool.install_map(self, new)
            return memoryview(new)[:size]

    def _read_through(self, fd: int) -> None:
        """Read the bytes that were not mapped before, so that a read error is an OSError.

        A read error in a memory map ends the process with SIGBUS.
        """
        with self.pool.lock:  # another thread may drop the map at the same time
            position = 0 if self.view is None else len(self.view)
        while position < self._size:
            got = len(os.pread(fd, min(self._size - position, _BUFFER_BYTES), position))
            if not got:
                raise OSError(errno.EIO, f"{self.name} ends before byte {self._size}")
            position += got

    def _map_or_out(self, fd: int) -> mmap.mmap:
        try:
            return mmap.mmap(fd, self._size, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            raise OutOfDescriptors(error.errno, error.strerror, self.name) from None

    def unmap(self) -> None:
        with self.pool.lock:
            if not self.drop_map():
                raise BufferError(f"a view of the map of {self.name} is still held")

    def sync(self) -> None:
        if self._syncing is None:
            with self.pool.lock:
                self._syncing = self._syncing or threading.Lock()
        failed_before = self._failed_syncs
        with self._syncing:  # another thread may have cleared `_changed` and still be syncing
            if self._failed_syncs != failed_before:
                raise OSError(errno.EIO, "another thread's sync failed", self.name)
            if self.close_error is not None:
                raise OSError(errno.EIO, f"writing back failed: {self.close_error}", self.name)
            if self._changed:
                self._sync()

    def _sync(self) -> None:
        fd = self.borrow()
        try:
            self._changed = False
            sync_data(fd)
        except OSError:
            self._changed = True
            self._failed_syncs += 1
            raise
        finally:
            self.give_back()

    def write_out(self, position: int, size: int, *, wait: bool) -> None:
        fd = self.borrow()
        try:
            write_out(fd, position, size, wait=wait)
        finally:
            self.give_back()

    def truncate(self, size: int) -> None:
        if size > self._size:
            raise ValueError(f"truncating {self.name} to {size} would grow it from {self._size}")
        self.unmap()  # reading a map past the new end is a SIGBUS
        fd = self.borrow()
        try:
            os.ftruncate(fd, size)
        finally:
            self._changed = True
            self.give_back()
        self._size = size

    def preallocate(self, size: int) -> None:
        grow = size - self._size
        if grow <= 0:
            return
        fd = self.borrow()
        try:
            allocate(fd, self._size, grow)
        except OSError:
            os.ftruncate(fd, self._size)  # release what was allocated before the disk was full
            raise
        finally:
            self._changed = True
            self.give_back()
        self._size = size


class RealFiles:
    """The file systems of the machine. A process has one instance, or several with their own descriptor limits."""

    def __init__(self, max_open: int | None = None) -> None:
        """`max_open` limits the descriptors for files and maps; the default is half of the process's limit."""
        self._pool = DescriptorPool(max_open)

    def statistics(self) -> PoolStatistics:
        return self._pool.statistics()

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> RealFile:
        name = str(path)
        if create:
            fd = self._pool.open_path(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            file = RealFile(self._pool, path, os.O_RDWR, 0)
            self._pool.install(file, fd, borrowed=False)
            return file
        status = os.stat(name)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        return RealFile(self._pool, path, os.O_RDWR if write else os.O_RDONLY, status.st_size)

    def read(self, path: Path) -> bytes:
        fd = self._pool.open_path(str(path), os.O_RDONLY)
        try:
            return _read_on(fd, 0, os.fstat(fd).st_size, b"")
        except OSError as error:  # the error of a read has no path
            error.filename = str(path)
            raise
        finally:
            os.close(fd)

    def write_new(self, path: Path, data: bytes) -> None:
        unfinished = f"{path}.tmp"
        fd = self._pool.open_path(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            _write_all(fd, [data], 0)
            sync_all(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)  # free the space on a full disk
            raise
        finally:
            os.close(fd)
        self.rename(Path(unfinished), path)
        self.sync_directory(path.parent)

    def exists(self, path: Path) -> bool:
        return _mode(path) is not None

    def is_directory(self, path: Path) -> bool:
        mode = _mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def file_size(self, path: Path) -> int:
        return os.stat(path).st_size

    def list(self, path: Path) -> list[str]:
        name = str(path)
        return sorted(self._pool.call(partial(os.listdir, name), name))

    def make_directory(self, path: Path) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        self._anchor_pinned(str(new))
        self._anchor_pinned(str(old))  # another thread may open it before its path is updated
        os.rename(old, new)
        self._carry_pinned(str(old), str(new))

    def remove(self, path: Path, *, missing_ok: bool = False) -> None:
        self._anchor_pinned(str(path))
        try:
            os.unlink(path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_tree(self, path: Path) -> None:
        self._anchor_pinned(str(path))
        self._remove_below(str(path))

    def _remove_below(self, name: str) -> None:
        for entry in self._pool.call(partial(_entries, name), name):
            if entry.is_dir(follow_symlinks=False):
                self._remove_below(entry.path)
            else:
                os.unlink(entry.path)
        os.rmdir(name)

    def sync_directory(self, path: Path) -> None:
        fd = self._pool.open_path(str(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            sync_all(fd)
        finally:
            os.close(fd)

    def lock(self, path: Path) -> RealLock:
        fd = self._pool.open_path(str(path), os.O_RDWR | os.O_CREAT)
        try:
            lock_file(fd)
        except BaseException:
            os.close(fd)
            raise
        return RealLock(fd, str(path))

    def disk_usage(self, path: Path) -> DiskUsage:
        status = os.statvfs(path)
        return DiskUsage(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)

    def _pinned_at(self, name: str) -> Sequence[Descriptor]:
        """Pinned handles of the file `name`, or of files in the directory `name`."""
        below = f"{name}/"
        with self._pool.lock:
            return [
                pinned
                for pinned in self._pool.pinned
                if pinned.name == name or pinned.name.startswith(below)
            ]

    def _anchor_pinned(self, name: str) -> None:
        for pinned in self._pinned_at(name):
            try:
                pinned.anchor()
            except FileNotFoundError:
                continue  # already removed: a later read raises the error

    def _carry_pinned(self, old: str, new: str) -> None:
        for pinned in self._pinned_at(old):
            pinned.moved(Path(new + pinned.name[len(old) :]))


class RealLock:
    """A lock on a file. The kernel releases it when the process ends, even after a crash."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        self._identity = _identity(os.fstat(fd))

    def release(self) -> None:
        """Release the lock and keep the file, as Kafka does. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def check(self) -> None:
        if _identity(os.stat(self._name)) != self._identity:
            raise OSError(errno.ESTALE, "another file is in its place", self._name)
        directory = os.path.dirname(self._name) or "."
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=_EFFECTIVE):
            read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
            code = errno.EROFS if read_only else errno.EACCES
            raise OSError(code, os.strerror(code), directory)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _write_all(fd: int, parts: Sequence[Buffer], position: int) -> None:
    """Write all bytes, with repeated calls after partial writes."""
    rest = rest_after(parts, 0)
    while rest:
        written = write_vector(fd, rest[:IOV_MAX], position)
        if not written:
            raise OSError(errno.EIO, "a write took no bytes")
        position += written
        rest = rest_after(rest, written)


def _write_in_pieces(fd: int, data: memoryview, position: int) -> None:
    for start in range(0, len(data), WRITE_BYTES_MAX):
        piece = data[start : start + WRITE_BYTES_MAX]
        if os.pwrite(fd, piece, position + start) != len(piece):
            _write_all(fd, [piece], position + start)


def _read_on(fd: int, position: int, size: int, data: bytes) -> bytes:
    """Continue a partial read: `data` was read at `position`, and `size` bytes were requested."""
    chunks = [data]
    got = len(data)
    while got < size:
        more = os.pread(fd, size - got, position + got)
        if not more:
            break
        chunks.append(more)
        got += len(more)
    return b"".join(chunks)


def _mode(path: Path) -> int | None:
    """The mode of a file, or None if it does not exist. Raises OSError for every other failure."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _entries(name: str) -> Sequence[os.DirEntry[str]]:
    with os.scandir(name) as entries:
        return list(entries)
