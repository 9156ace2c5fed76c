"""Virtual time for trio and for the `Clock` seam: it moves only when a test moves it.

Pass it to `trio.run(…, clock=clock)`, or return it from a fixture: pytest-trio finds it. It never
advances by itself: an autojump that happens while a thread or a socket is still busy expires
deadlines that would not expire in real time. `run_for` advances from deadline to deadline, and
waits in between until every task is blocked. Tasks under it may therefore wait only in this loop,
as the virtual seams do. If only virtual waits remain, `jumping` can be set: then the loop advances
to the next deadline whenever no task can run.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

import trio
import trio.testing

_NEVER = 1e9  # seconds of real time that trio may wait for I/O without a deadline


class VirtualClock(trio.abc.Clock):
    """A clock that starts at `monotonic` 0 and at `epoch_ms` (default: 2026-01-01)."""

    def __init__(self, *, epoch_ms: int = 1_767_225_600_000) -> None:
        self.jumping = False
        self._now = 0.0
        self._calls: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._epoch_ms = epoch_ms

    # The Clock seam

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

    # trio's Clock interface

    def start_clock(self) -> None:
        """Required by trio; does nothing."""

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called by trio when no task can run, before it waits for I/O."""
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
        """Call `call` at that time, if `jumping`: a deadline that needs no task and no cancel
        scope.

        `call` returns whether it woke a task, and must not raise.
        """
        heapq.heappush(self._calls, (when, next(self._numbers), call))

    # Control of the time

    def advance(self, seconds: float) -> None:
        """Advance at once; everything that was due in between becomes due together."""
        if seconds < 0:
            raise ValueError("time does not go back; see set_wall_ms")
        self._now += seconds

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the wall clock, forwards or backwards; `monotonic` does not change."""
        self._epoch_ms = wall_ms - math.floor(self._now * 1000 + 1e-6)

    async def settle(self) -> None:
        """Wait until every other task is blocked."""
        await trio.testing.wait_all_tasks_blocked()

    async def run_for(self, seconds: float) -> None:
        """Advance by `seconds`, stopping at each deadline until the tasks that it wakes are
        blocked."""
        target = self._now + seconds
        while True:
            await self.settle()
            due = self._now + trio.lowlevel.current_statistics().seconds_to_next_deadline
            if due > target:
                break
            # The subtraction in the statistics rounds; advance by at least the smallest float step.
            self._now = max(due, math.nextafter(self._now, math.inf))
        self._now = max(self._now, target)
        await self.settle()


class SkewedClock:
    """The clock of one node: durations are those of the world; the wall clock may be skewed."""

    def __init__(self, world: VirtualClock) -> None:
        self.skew_ms = 0
        """How far the node's wall clock is ahead, in ms; setting it makes the wall clock jump."""
        self._world = world

    def monotonic(self) -> float:
        return self._world.monotonic()

    def wall_ms(self) -> int:
        return self._world.wall_ms() + self.skew_ms

    async def sleep(self, seconds: float) -> None:
        await self._world.sleep(seconds)
