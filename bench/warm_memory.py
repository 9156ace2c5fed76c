"""Memory that was touched before a run needs it.

On a virtual machine the first touch of a page goes to the host and can cost ten times the copy that
is measured: whoever runs while memory is cold is measured as slow. Touching memory and giving it back
does not help where the guest reports its free pages to the host (virtio's free page reporting): what
was freed last is reported first, within seconds.

So memory is touched and *kept*, and given back only while a run takes some, a little ahead of it: what
the kernel freed last is what it hands out next. All peers are treated alike.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from odradek.bench.machine import meminfo_bytes

AHEAD_BYTES = 192 << 20
"""How much is given back before it is asked for."""
CHUNK_BYTES = 8 << 20
LOOK_EVERY_S = 0.004
_PAGE = 4096


class Reserve:
    """Touched memory in our hands: `fill`, then `giving` it while a run goes on."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._given = 0

    def fill(self, size_bytes: int) -> None:
        """Have `size_bytes` of touched memory, at most half of what is available."""
        size = min(size_bytes, meminfo_bytes("MemAvailable") // 2) // CHUNK_BYTES * CHUNK_BYTES
        if self._memory is None or len(self._memory) != size:
            self.drop()
            self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._memory.madvise(mmap.MADV_HUGEPAGE)
            self._memory.madvise(mmap.MADV_DONTFORK)  # a child would hold on to what we give back
            self._given = size
        for offset in range(0, self._given, _PAGE):
            self._memory[offset] = 1
        self._given = 0

    @contextmanager
    def giving(self) -> Iterator[None]:
        """While the block lasts, free memory stays as much as it was at its beginning, and a bit more."""
        assert self._memory is not None, "fill() comes first"
        done = threading.Event()
        level = meminfo_bytes("MemFree") + AHEAD_BYTES
        thread = threading.Thread(target=self._give, args=(self._memory, level, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def drop(self) -> None:
        """Give all of it back."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _give(self, memory: mmap.mmap, level: int, done: threading.Event) -> None:
        while self._given < len(memory):
            missing = level - meminfo_bytes("MemFree")
            while missing > 0 and self._given < len(memory):
                memory.madvise(mmap.MADV_DONTNEED, self._given, CHUNK_BYTES)
                self._given += CHUNK_BYTES
                missing -= CHUNK_BYTES
            if done.wait(LOOK_EVERY_S):
                return


_reserve = Reserve()


@contextmanager
def warm_memory(size_bytes: int) -> Iterator[None]:
    """While the block lasts, the first `size_bytes` that anybody takes were touched before."""
    _reserve.fill(size_bytes)
    with _reserve.giving():
        yield
