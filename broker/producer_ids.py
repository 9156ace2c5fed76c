"""Producer ids, handed out from blocks that the metadata log reserves (KIP-730).

A block is reserved before its first id is given, so an id is never given twice; what a crash leaves
of a block is lost, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio


class ProducerIds:
    def __init__(self, reserve: Callable[[], Awaitable[range]]) -> None:
        """`reserve` commits the next block to the metadata log and returns its ids."""
        self._reserve = reserve
        self._left: list[int] = []
        self._reserving = trio.Lock()

    async def next(self) -> int:
        """A producer id that nobody had before. Raises what `reserve` raises."""
        while not self._left:
            async with self._reserving:
                if not self._left:
                    self._left = list(reversed(await self._reserve()))
        return self._left.pop()
