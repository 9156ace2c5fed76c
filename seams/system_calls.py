"""System calls that not every platform has, and their portable fallbacks.

Everything is chosen once, when this module is imported: a call that the platform has is used directly. Other seams use
epoll (`selector.py`), flags of sockets (`tcp.py`) and madvise (`memory.py`) and have their own fallbacks. No
other layer uses such a call. Linux has all of them; the fallbacks are for macOS.

`copy` tries these methods in order: `copy_file_range` (a reflink if the file system supports it), `sendfile`, and read
and write. If a method is not supported (EXDEV, EINVAL, ENOSYS, …), the next one is used. Other errors are raised.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache

from odradek.seams.files import Buffer

_CANNOT = frozenset(
    {
        errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EBADF,
        errno.EPERM,
    }
)  # fmt: skip
_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(_CHUNK_BYTES)

Way = Callable[[int, int, int, int, int], int]

READ_NOWAIT = getattr(os, "RWF_NOWAIT", 0) if hasattr(os, "preadv") else 0
"""Flag of `preadv` for a read that fails with EAGAIN unless the bytes are in the page cache; 0 without it."""


def _write_joined(fd: int, parts: Sequence[Buffer], position: int) -> int:
    return os.pwrite(fd, b"".join(parts), position)


write_vector = getattr(os, "pwritev", _write_joined)
"""Write buffers at a position (fd, buffers, position); return the number of bytes."""


def _send_read(sock: int, fd: int, position: int, size: int) -> int:
    data = os.pread(fd, min(size, _CHUNK_BYTES), position)
    return os.write(sock, data) if data else 0


send_file = getattr(os, "sendfile", _send_read)
"""Send bytes of a file to a socket (socket, fd, position, size); return the number of bytes, 0 at the file's end."""


_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_NO_FULL_SYNC = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENOTTY)


def _sync_to_medium(fd: int) -> None:
    """Flush a file and the cache of its disk, as FileChannel.force of Java does on macOS.

    On macOS, fsync(2) leaves the data in the cache of the disk, so that a loss of power loses it. File systems without
    this call, such as network file systems, get an fsync.
    """
    assert _FULL_SYNC is not None
    try:
        fcntl.fcntl(fd, _FULL_SYNC)
    except OSError as error:
        if error.errno not in _NO_FULL_SYNC:
            raise
        os.fsync(fd)


sync_all: Callable[[int], None] = os.fsync if _FULL_SYNC is None else _sync_to_medium
"""Make the content and metadata of a file or directory durable."""

sync_data: Callable[[int], None] = (
    getattr(os, "fdatasync", os.fsync) if _FULL_SYNC is None else _sync_to_medium
)
"""Make the content of a file durable, and its size."""


def allocate(fd: int, position: int, size: int) -> None:
    """Allocate the space after the end of a file, filled with zeros. Raises OSError."""
    try:
        _fallocate(fd, position, size)
    except OSError as error:
        # The C library does not write zeros if the file system cannot allocate.
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL):
            raise
        _write_zeros(fd, position, size)


def _write_zeros(fd: int, position: int, size: int) -> None:
    end = position + size
    while position < end:
        written = os.pwrite(fd, memoryview(_ZEROS)[: end - position], position)
        if not written:
            raise OSError(errno.EIO, "a write took no bytes")
        position += written


_fallocate: Callable[[int, int, int], None] = getattr(os, "posix_fallocate", _write_zeros)

_OPEN_FILE_LOCK: int | None = (
    getattr(fcntl, "F_OFD_SETLK", None) if sys.platform == "linux" else None
)


def lock_file(fd: int) -> None:
    """Lock a file without waiting. Raises BlockingIOError if it is locked.

    These are two locks: flock against other Odradek brokers, and a record lock against Kafka. The record lock is the
    kind that FileChannel.tryLock takes on Kafka's `.lock`. It belongs to the open file description (OFD) instead of the
    process, so two brokers in one process also exclude each other. On macOS, the two kinds exclude each other, and
    flock is enough.
    """
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if _OPEN_FILE_LOCK is None:
        return
    whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # flock of Linux
    try:
        fcntl.fcntl(fd, _OPEN_FILE_LOCK, whole_file)
    except PermissionError as error:  # POSIX allows EACCES instead of EAGAIN
        raise BlockingIOError(errno.EAGAIN, error.strerror) from None


def copy(source: int, position: int, target: int, target_position: int, size: int) -> int:
    """Copy up to `size` bytes between descriptors; return how many, fewer only at the end of the source.

    Raises OSError; some of the bytes may have been written.
    """
    done = 0
    ways = list(_WAYS)
    while done < size:
        try:
            copied = ways[0](source, position + done, target, target_position + done, size - done)
        except OSError as error:
            if error.errno not in _CANNOT or len(ways) == 1:
                raise
            ways.pop(0)
            continue
        if not copied:
            if len(ways) == 1:
                break
            ways.pop(0)  # some file systems return 0 instead of an error
            continue
        done += copied
    return done


def write_out(descriptor: int, position: int, size: int, *, wait: bool) -> None:
    """Start writeback of these bytes, and optionally wait for it. This does not make them durable.

    Unlike fsync, it does not commit a journal, so other writers are not delayed. On platforms without the system call,
    it does nothing. Raises OSError.
    """
    code = _sync_file_range()(descriptor, position, size, _AND_WAIT if wait else _BEGIN)
    if code and code not in _CANNOT | {errno.ESPIPE}:
        raise OSError(code, os.strerror(code))


_BEGIN = 2  # SYNC_FILE_RANGE_WRITE
_AND_WAIT = 7  # _WAIT_BEFORE, _WRITE and _WAIT_AFTER


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int]:
    """Return a function for Linux's sync_file_range; it returns 0 or an errno."""
    import ctypes  # slow to import, and used by moves of replicas only

    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "sync_file_range"):
        return lambda descriptor, position, size, flags: 0
    call = library.sync_file_range
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

    def write_out(descriptor: int, position: int, size: int, flags: int) -> int:
        return ctypes.get_errno() if call(descriptor, position, size, flags) else 0

    return write_out


def _by_reading(source: int, position: int, target: int, target_position: int, size: int) -> int:
    data = os.pread(source, min(size, _CHUNK_BYTES), position)
    return os.pwrite(target, data, target_position) if data else 0


def _by_sendfile(source: int, position: int, target: int, target_position: int, size: int) -> int:
    # sendfile writes at the descriptor's own offset; all other writes are positional.
    os.lseek(target, target_position, os.SEEK_SET)
    return os.sendfile(target, source, position, size)


def _in_the_kernel(source: int, position: int, target: int, target_position: int, size: int) -> int:
    return os.copy_file_range(source, target, size, position, target_position)


_WAYS: list[Way] = [_by_reading]
if sys.platform == "linux":  # other platforms need a socket
    _WAYS.insert(0, _by_sendfile)
if hasattr(os, "copy_file_range"):
    _WAYS.insert(0, _in_the_kernel)
