"""Bytes from one file to another that never enter this process, where the kernel can do that.

The ways are tried in this order: `copy_file_range` (a reflink where the file system has them),
`sendfile`, and last a read and a write. What a way cannot do (EXDEV, EINVAL, ENOSYS, …) is left to
the next; every other error is the disk's and is raised.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import cache

_CANNOT = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}
)
_CHUNK_BYTES = 1 << 20

Way = Callable[[int, int, int, int, int], int]


def copy(source: int, position: int, target: int, target_position: int, size: int) -> int:
    """Copy `size` bytes between descriptors; how many were, fewer only where the source ends.

    Raises OSError: any part of the bytes may have been written then.
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
            ways.pop(0)  # some file systems answer 0 where they cannot
            continue
        done += copied
    return done


def write_out(descriptor: int, position: int, size: int, *, wait: bool) -> None:
    """Have the kernel write these bytes' dirty pages, and wait for them or not; nothing is promised
    durable.

    Unlike fsync it has no journal committed, so nobody else who writes to the disk waits for it. Where
    the platform has no such call, nothing happens. Raises OSError of the disk.
    """
    code = _sync_file_range()(descriptor, position, size, _AND_WAIT if wait else _BEGIN)
    if code and code not in _CANNOT | {errno.ESPIPE}:
        raise OSError(code, os.strerror(code))


_BEGIN = 2  # SYNC_FILE_RANGE_WRITE
_AND_WAIT = 7  # _WAIT_BEFORE, _WRITE and _WAIT_AFTER


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int]:
    """Linux's call; it answers 0 or the error's number."""
    import ctypes  # slow to import, and not needed before a replica moves

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
    # Writes at the descriptor's own offset, which nobody else uses: all other writes are positional.
    os.lseek(target, target_position, os.SEEK_SET)
    return os.sendfile(target, source, position, size)


def _in_the_kernel(source: int, position: int, target: int, target_position: int, size: int) -> int:
    return os.copy_file_range(source, target, size, position, target_position)


_WAYS: list[Way] = [_by_reading]
if sys.platform == "linux":  # elsewhere sendfile wants a socket
    _WAYS.insert(0, _by_sendfile)
if hasattr(os, "copy_file_range"):
    _WAYS.insert(0, _in_the_kernel)
