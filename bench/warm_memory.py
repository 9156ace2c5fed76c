"""Memory that was touched before a run needs it, and stays so.

On a virtual machine the first touch of a page goes to the host and can cost ten times the copy that
is measured: a broker that runs while memory is cold is measured as slow. Touching memory and giving it
back does not help where the guest reports its free pages to the host (free page reporting): it does so
within seconds. But it reports large free blocks only.

So nearly all memory is touched once, and all of it is given back but for one page in `TOOTH_PAGES`,
which is held until the end. What lies between two held pages can't grow together into a block that is
large enough to be reported: it stays warm, for all peers alike.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from odradek.bench.machine import meminfo_bytes

TOOTH_PAGES = 32
"""Linux reports no block of fewer pages on the machines that this was seen on (order 5)."""
LEFT_ALONE_BYTES = 384 << 20
"""Free memory that is not touched, for whoever needs some in the meantime. Large blocks in it go cold
whenever they are free, and the page cache takes large blocks first: little is better."""
AT_ONCE_BYTES = 64 << 20
"""Touched before it is looked again whether others have taken memory since."""
ALL = 1 << 60


@contextmanager
def warm_memory(size_bytes: int = ALL) -> Iterator[None]:
    """While the block lasts, up to `size_bytes` of the free memory are warm; less than a thirtieth of
    it is taken. Takes seconds for each GiB that is cold, and ends early where others need memory meanwhile."""
    size = min(size_bytes, meminfo_bytes("MemAvailable") - LEFT_ALONE_BYTES)
    size -= size % (TOOTH_PAGES * mmap.PAGESIZE)
    if size <= 0:
        yield
        return
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory.madvise(mmap.MADV_DONTFORK)  # a child would hold on to what is given back
        touched = 0
        while touched < size and meminfo_bytes("MemAvailable") > LEFT_ALONE_BYTES:
            until = min(size, touched + AT_ONCE_BYTES)
            for offset in range(touched, until, mmap.PAGESIZE):
                memory[offset] = 1
            touched = until
        for offset in range(0, touched, TOOTH_PAGES * mmap.PAGESIZE):
            gap = offset + mmap.PAGESIZE
            memory.madvise(mmap.MADV_DONTNEED, gap, (TOOTH_PAGES - 1) * mmap.PAGESIZE)
        yield
