"""Copying bytes between files inside the kernel where possible.

The methods are tried in this order: `copy_file_range` (a reflink if the file system supports it), `sendfile`, and
read and write. If a method is not supported (EXDEV, EINVAL, ENOSYS, …), the next one is used. Other errors are raised.
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
