"""Memory of requests that are being received, limited by `queued.max.request.bytes` (KIP-72).

A connection whose buffer must grow waits while the memory of all connections is at the limit. Unlike in Kafka,
requests that fit in the first buffer of a connection are always received. Small requests are therefore served
while incomplete large requests hold all memory.
"""

from __future__ import annotations

import trio


class ReceiveMemory:
    """Total size in bytes of the receive buffers beyond their first size."""

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes` is the limit; 0 or less is no limit."""
        self._limit_bytes = limit_bytes
        self._freed = trio.Event()
        self.used_bytes = 0
        self.is_exhausted = False

    def change(self, delta_bytes: int) -> None:
        """Add the growth of a buffer, or a negative number for released memory."""
        self.used_bytes += delta_bytes
        was_exhausted = self.is_exhausted
        self.is_exhausted = 0 < self._limit_bytes <= self.used_bytes
        if was_exhausted and not self.is_exhausted:
            self._freed.set()
            self._freed = trio.Event()

    async def wait_until_free(self) -> None:
        """Wait until the total is below the limit."""
        while self.is_exhausted:
            await self._freed.wait()
