"""Time: deadlines of many in one task, and turns for long work."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

import trio

from odradek.seams.clock import Clock

K = TypeVar("K", bound=Hashable)
Entry = tuple[int, int]
"""The deadline, and a number of its own."""

STEP_SECONDS = 0.005
"""How long long work (loading, expiry) runs before others get their turn."""
STALE_ENTRIES_MAX = 100
"""More than the live ones: then the heap is made anew. So few that nobody waits for it noticeably: at a
thousand fetches a second, a thousand of them thrown away at once held the loop for a ms, twice a second."""


def monotonic_ms(clock: Clock) -> int:
    """The clock in whole ms; what is due at a ms is due when that ms is reached, rounding or not."""
    return int(clock.monotonic() * 1000 + 1e-6)


class Timers(Generic[K]):
    """A heap of the next deadline of each key; entries that were overtaken are skipped.

    Arming is cheap where nothing has to change: a heartbeat moves a deadline back, and the old, sooner
    one stands. Whoever is told too soon says again when it wants to be told. Disarming leaves the entry
    in the heap, to be thrown away when it comes first, or when most of the heap is such entries: a
    cancel scope instead, to enter and to leave, takes half as long as to answer a fetch. The key is let
    go of at once: a waiting fetch has a dozen objects, and the garbage collector runs for their number.
    """

    def __init__(self, clock: Clock, on_due: Callable[[K], None]) -> None:
        """`on_due` is called on the loop, once for each `arm` that was not overtaken."""
        self._clock = clock
        self._on_due = on_due
        self._heap: list[Entry] = []
        self._numbers = count()
        self._armed: dict[K, Entry] = {}
        self._keys: dict[int, K] = {}
        """By the numbers of the entries that count."""
        self._sooner = trio.Event()
        self._sleeping_until_ms = float("inf")

    def __len__(self) -> int:
        """How many are to be told."""
        return len(self._armed)

    @property
    def entries(self) -> int:
        return len(self._heap)

    def arm(self, key: K, wake_ms: int | None) -> None:
        """Tell `key` at `wake_ms` of the monotonic clock, unless it is told sooner anyway."""
        if wake_ms is None:
            return
        armed = self._armed.get(key)
        if armed is not None:
            if armed[0] <= wake_ms:
                return
            del self._keys[armed[1]]
        number = next(self._numbers)
        self._armed[key] = entry = (wake_ms, number)
        self._keys[number] = key
        heappush(self._heap, entry)
        if wake_ms < self._sleeping_until_ms:
            self._sleeping_until_ms = wake_ms
            self._sooner.set()
        if len(self._heap) > 2 * len(self._armed) + STALE_ENTRIES_MAX:
            self._heap = [entry for entry in self._heap if entry[1] in self._keys]
            heapify(self._heap)

    def disarm(self, key: K) -> None:
        """Do not tell `key`, if it was to be told."""
        armed = self._armed.pop(key, None)
        if armed is not None:
            del self._keys[armed[1]]

    async def run(self) -> None:
        while True:
            self._sooner = trio.Event()
            self.tell_due()
            if not self._heap:
                self._sleeping_until_ms = float("inf")
                await self._sooner.wait()
                continue
            self._sleeping_until_ms = self._heap[0][0]
            delay = self._sleeping_until_ms / 1000 - self._clock.monotonic()
            with trio.move_on_after(max(delay, 0)):
                await self._sooner.wait()

    def tell_due(self) -> None:
        """Tell whoever is due by now. Whoever's turn comes first, the timers' task or a request that
        came after the deadline, is chance; such a request can see to it that this was done."""
        now_ms = monotonic_ms(self._clock)
        while self._heap:
            wake_ms, number = self._heap[0]
            if number not in self._keys:
                heappop(self._heap)
                continue
            if wake_ms > now_ms:
                return
            heappop(self._heap)
            key = self._keys.pop(number)
            del self._armed[key]
            self._on_due(key)


class Turn:
    """Lets others run when one has run for long enough."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends = clock.monotonic() + STEP_SECONDS

    async def pass_on(self) -> None:
        if self._clock.monotonic() >= self._ends:
            await trio.lowlevel.checkpoint()
            self._ends = self._clock.monotonic() + STEP_SECONDS
