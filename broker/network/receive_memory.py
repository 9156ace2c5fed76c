"""Memory of large requests that are received or handled, limited by `queued.max.request.bytes` (KIP-72).

A connection reserves the whole size of a request of more than 16 KiB before it reads the rest of it, and releases it
after the request. A reservation waits only while the total is at the limit, so the total exceeds the limit by at most
one request, and every request with a reservation can be completed. Smaller requests need no reservation, unlike in
Kafka: they are served while incomplete large ones hold all memory.
"""

from __future__ import annotations

import trio


class ReceiveMemory:
    """Total of the reservations in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes` is the limit; 0 or less is no limit."""
        self.is_limited = limit_bytes > 0
        self._limit_bytes = limit_bytes
        self._freed = trio.Event()
        self.reserved_bytes = 0

    @property
    def is_exhausted(self) -> bool:
        return self.is_limited and self.reserved_bytes >= self._limit_bytes

    def reserve(self, size_bytes: int) -> None:
        """Add a reservation; the caller has waited until the memory is not exhausted."""
        self.reserved_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        self.reserved_bytes -= size_bytes
        self._freed.set()
        self._freed = trio.Event()

    async def wait_for_release(self) -> None:
        """Wait until a reservation is released."""
        await self._freed.wait()
