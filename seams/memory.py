"""Memory that is kept because it is needed again at once, and memory that is given back.

glibc takes each large buffer from the kernel and returns it when freed; the next one faults every
page in again. Measured: handling a MiB of records (a receive buffer, its bytes, ten slices of it and
their join) takes 980 µs so, 120 µs when what was freed is kept, nearly all of it page faults.
"""

from __future__ import annotations

import mmap


class SpareMemory:
    """Memory for `size_bytes`, which takes none where nothing was put since `give_back`.

    `view` is of all of it, and stays good over `give_back`: what was in it is zero then.
    """

    def __init__(self, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self._map)

    def give_back(self) -> None:
        """Have the system take the memory until something is put into it again."""
        self._map.madvise(mmap.MADV_DONTNEED)


def keep_freed_memory(kept_bytes: int = 32 << 20, largest_bytes: int = 8 << 20) -> bool:
    """Have the process keep up to `kept_bytes` of freed memory, and take allocations of up to
    `largest_bytes` from it. Whether the C library could be told so (glibc can).

    For a process that is a broker: called once, when the process starts. Costs 2 ms.
    """
    import ctypes

    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(trim_threshold, kept_bytes) and mallopt(mmap_threshold, largest_bytes))
