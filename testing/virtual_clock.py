"""Time that only moves when told, for trio and for the `Clock` seam at once.

Hand it to `trio.run(…, clock=clock)`, or return it from a fixture: pytest-trio finds it. Nothing
here jumps by itself: an autojump that fires while a thread or a socket is still at work expires
deadlines that no real wait would have. `run_for` moves from deadline to deadline, letting everything
settle in between; whatever runs under it must do its waiting in this loop alone (the virtual seams
do), since "settled" means that every task is blocked. A world in which nothing else waits can have
`jumping` set: then the loop itself moves to the next deadline whenever no task can run.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

import trio
import trio.testing

_NEVER = 1e9  # seconds of real time trio may wait for I/O when no deadline has come


class VirtualClock(trio.abc.Clock):
    """Starts at `monotonic` 0 and at `wall_ms` of the epoch handed in (2026-01-01 by default)."""

    def __init__(self, *, epoch_ms: int = 1_767_225_600_000) -> None:
        self.jumping = False
        self._now = 0.0
        self._calls: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._epoch_ms = epoch_ms

    # The seam

    def monotonic(self) -> float:
        return self._now

    def wall_ms(self) -> int:
        return self._epoch_ms + math.floor(self._now * 1000 + 1e-6)

    async def sleep(self, seconds: float) -> None:
        if not self.jumping or not 0 < seconds < math.inf:
            await trio.sleep(seconds)
            return
        waking = trio.lowlevel.ParkingLot()
        call = (self._now + seconds, next(self._numbers), waking.unpark_all)
        heapq.heappush(self._calls, call)
        try:
            await waking.park()
        except trio.Cancelled:
            self._calls.remove(call)
            heapq.heapify(self._calls)
            raise

    # trio's side

    def start_clock(self) -> None:
        """Nothing to start."""

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """trio asks when no task can run, before it waits for the outside world."""
        if deadline <= self._now:
            return 0.0
        calls = self._calls
        until = deadline if self.jumping else self._now
        while calls and calls[0][0] <= until:
            self._now = now = max(self._now, calls[0][0])
            is_awaited = False
            while calls and calls[0][0] <= now:
                is_awaited |= bool(heapq.heappop(calls)[2]())
            if is_awaited:
                return 0.0
        if not self.jumping or deadline == math.inf:
            return _NEVER
        self._now = deadline
        return 0.0

    def call_at(self, when: float, call: Callable[[], object]) -> None:
        """Have `call` made then, if it is `jumping`: a deadline without a task and a scope for it.
        It may wake tasks, and says whether it has; it must not raise."""
        heapq.heappush(self._calls, (when, next(self._numbers), call))

    # The hand on it

    def advance(self, seconds: float) -> None:
        """Move on at once; what was due in between is due now, all of it together."""
        if seconds < 0:
            raise ValueError("time does not go back; see set_wall_ms")
        self._now += seconds

    def set_wall_ms(self, wall_ms: int) -> None:
        """The wall clock is corrected, forwards or backwards; durations know nothing of it."""
        self._epoch_ms = wall_ms - math.floor(self._now * 1000 + 1e-6)

    async def settle(self) -> None:
        """Wait until every other task is blocked."""
        await trio.testing.wait_all_tasks_blocked()

    async def run_for(self, seconds: float) -> None:
        """Let `seconds` pass, stopping at every deadline on the way for what it wakes."""
        target = self._now + seconds
        while True:
            await self.settle()
            due = self._now + trio.lowlevel.current_statistics().seconds_to_next_deadline
            if due > target:
                break
            # The subtraction in the statistics rounds: always move on, if only by a hair.
            self._now = max(due, math.nextafter(self._now, math.inf))
        self._now = max(self._now, target)
        await self.settle()


class SkewedClock:
    """A node's own clock over the world's: durations are the world's, its wall clock is not."""

    def __init__(self, world: VirtualClock) -> None:
        self.skew_ms = 0
        """How far its wall clock is ahead; set anew, it jumps."""
        self._world = world

    def monotonic(self) -> float:
        return self._world.monotonic()

    def wall_ms(self) -> int:
        return self._world.wall_ms() + self.skew_ms

    async def sleep(self, seconds: float) -> None:
        await self._world.sleep(seconds)
