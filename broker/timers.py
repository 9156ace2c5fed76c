"""Timers of many waiting operations in one task, and passes of the event loop between steps of long work."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

import trio

from odradek.seams.clock import Clock
from odradek.seams.containment import Containment
from odradek.seams.locks import PromptLock

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Entry = tuple[int, int]
"""Deadline in ms and sequence number of an entry."""

STEP_SECONDS = 0.005
"""Time that long work (loading, expiration) runs before it passes the event loop."""
STALE_ENTRIES_MAX = 100
"""Number of stale entries, beyond the live ones, at which the heap is rebuilt. It is small, so that a rebuild
is short: removing a thousand entries at once blocked the loop for a millisecond."""


def monotonic_ms(clock: Clock) -> int:
    """Monotonic clock in whole ms."""
    return int(clock.monotonic() * 1000 + 1e-6)


class Timers(Generic[K]):
    """Heap with the next deadline of each key; stale entries are skipped.

    Arming is cheap if nothing must change: an earlier deadline stays armed, and the owner arms again if it is
    called too early. Disarming leaves the entry in the heap until it is the first or most entries are stale; a
    cancel scope for each waiting fetch would cost half as much as the fetch. The key is released at once: a
    waiting fetch has a dozen objects, and the garbage collector runs by their number.
    """

    def __init__(self, clock: Clock, on_due: Callable[[K], None]) -> None:
        """`on_due` is called on the event loop, once for each `arm` that was not replaced."""
        self._clock = clock
        self._on_due = on_due
        self._containment: Containment[K] = Containment(
            "a timer", consequence="the timer does not run again"
        )
        self._heap: list[Entry] = []
        self._numbers = count()
        self._armed: dict[K, Entry] = {}
        self._keys: dict[int, K] = {}
        """Keys by the sequence numbers of live entries."""
        self._sooner = trio.Event()
        self._sleeping_until_ms = float("inf")

    def __len__(self) -> int:
        """Number of armed keys."""
        return len(self._armed)

    @property
    def entries(self) -> int:
        return len(self._heap)

    def arm(self, key: K, wake_ms: int | None) -> None:
        """Call `on_due` for `key` at `wake_ms` of the monotonic clock, unless an earlier deadline is armed."""
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
        """Remove the deadline of `key`, if any."""
        armed = self._armed.pop(key, None)
        if armed is not None:
            del self._keys[armed[1]]

    async def run(self) -> None:
        while True:
            self._sooner = trio.Event()
            self.run_due()
            if not self._heap:
                self._sleeping_until_ms = float("inf")
                await self._sooner.wait()
                continue
            self._sleeping_until_ms = self._heap[0][0]
            delay = self._sleeping_until_ms / 1000 - self._clock.monotonic()
            with trio.move_on_after(max(delay, 0)):
                await self._sooner.wait()

    def run_due(self) -> None:
        """Call `on_due` for all keys that are due. A request may run before the timers' task after the
        deadline; it calls this to see the same state."""
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
            self._containment.call(key, self._on_due, key)


class EventLoopYield:
    """Passes the event loop when work has run for STEP_SECONDS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends = clock.monotonic() + STEP_SECONDS

    async def yield_if_due(self) -> None:
        if self._clock.monotonic() >= self._ends:
            await trio.lowlevel.checkpoint()
            self._ends = self._clock.monotonic() + STEP_SECONDS


LARGE_BYTES = 64 * 1024
"""Size of a large request."""
REQUEST_STEP_SECONDS = 0.002
"""Time for which one request occupies the event loop before other tasks run."""


class BusyConnectionQueue:
    """Queue of the connections that have received a large request, or more requests than they may handle at once.

    Both occupy the event loop for milliseconds. If all of these connections were handled in every pass, a small
    request of another client would wait for all of them; with this queue it waits for one.
    """

    def __init__(self) -> None:
        self._lock = PromptLock()

    async def wait_turn(self) -> None:
        """Wait in order of arrival; the caller handles its requests right after."""
        async with self._lock:
            await trio.lowlevel.checkpoint()  # other ready tasks run first


class RequestSteps:
    """Lets other tasks run when a long request has occupied the event loop for REQUEST_STEP_SECONDS."""

    def __init__(self, clock: Clock, queue: BusyConnectionQueue) -> None:
        self._clock = clock
        self._queue = queue
        self._ends = clock.monotonic() + REQUEST_STEP_SECONDS

    async def yield_if_due(self) -> None:
        if self._clock.monotonic() >= self._ends:
            await self._queue.wait_turn()
            self._ends = self._clock.monotonic() + REQUEST_STEP_SECONDS

    async def run(self, work: Generator[None, None, T]) -> T:
        """Run a generator to its end, and let other tasks run at its yields; returns its result."""
        while True:
            try:
                next(work)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.yield_if_due()
