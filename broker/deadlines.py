"""When those who wait give up: one task and one heap for all of them, not a cancel scope each.

To enter and leave a scope takes half as long as to answer a fetch, and nearly every fetch is answered
long before its time. Here a wait that ends early leaves its entry in the heap, to be thrown away when
its time has come, or when most of the heap is such entries. The task sleeps until the first entry,
and is woken up for none but an earlier one.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Protocol

import trio

STALE_ENTRIES_MAX = 1000
"""More than the live ones: then the heap is made anew."""


class Expiring(Protocol):
    def expire(self) -> None:
        """The time has come."""
        ...


class Deadlines:
    """`run` must be running for anybody to expire. Times are trio's."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Expiring]] = []
        self._live: set[Expiring] = set()
        self._numbers = count()
        self._asleep_until = inf
        self._earlier = trio.Event()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._live)

    @property
    def entries(self) -> int:
        return len(self._heap)

    def add(self, at: float, wait: Expiring) -> None:
        """`wait` expires at `at`, unless it is discarded before; it is added once in its life."""
        self._live.add(wait)
        heappush(self._heap, (at, next(self._numbers), wait))
        if at < self._asleep_until:
            self._asleep_until = at
            self._earlier.set()
        if len(self._heap) > 2 * len(self._live) + STALE_ENTRIES_MAX:
            self._heap = [entry for entry in self._heap if entry[2] in self._live]
            heapify(self._heap)

    def discard(self, wait: Expiring) -> None:
        self._live.discard(wait)

    async def run(self) -> None:
        while True:
            self._earlier = trio.Event()
            self._asleep_until = self._expire(trio.current_time())
            with trio.move_on_at(self._asleep_until):
                await self._earlier.wait()

    def _expire(self, now: float) -> float:
        """Have those expire whose time has come; when the next one's is."""
        heap, live = self._heap, self._live
        while heap and (heap[0][0] <= now or heap[0][2] not in live):
            wait = heappop(heap)[2]
            if wait in live:
                live.discard(wait)
                wait.expire()
        return heap[0][0] if heap else inf
