"""Offload without threads: each call runs in the loop, after a delay, and returns after another.

A real thread does its work at some time between the call and its return. Here the entropy decides that
time. The delays are in virtual time, so that advancing the clock never skips a running call. A call that
would block its thread (on an object store that hangs) extends its own duration with `extend_current_call`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar, TypeVarTuple

import trio

from odradek.seams.entropy import Entropy
from odradek.seams.locks import PromptLock
from odradek.testing.power import Power
from odradek.testing.virtual_clock import VirtualClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualOffload:
    """The `Offload` seam of one node: calls run in the loop, with delays in virtual time."""

    def __init__(
        self,
        power: Power | None = None,
        entropy: Entropy | None = None,
        clock: VirtualClock | None = None,
        *,
        delay_seconds: float = 0.0,
        calls_per_lane: int = 4,
    ) -> None:
        """`delay_seconds` is the maximum delay before a call begins, and again before it returns.

        The delays use `clock` if it jumps.
        """
        self.delay_seconds = delay_seconds
        self._power = power or Power()
        self._entropy = entropy
        self._clock = clock
        self._calls_per_lane = calls_per_lane
        self._lanes: dict[str, PromptLock] = {}
        self._owed_seconds = 0.0
        self._delayed_calls: dict[trio.CancelScope, None] = {}
        self._jumping: dict[trio.lowlevel.Task, None] = {}
        self._power.on_cut(self._end)

    def extend_current_call(self, seconds: float) -> None:
        """Extend the current call by `seconds`; for use within a call."""
        self._owed_seconds += seconds

    async def run(self, fn: Callable[[*Ts], T], *args: *Ts, lane: str) -> T:
        self._power.check()
        place = self._lanes.get(lane)
        if place is None:
            place = self._lanes[lane] = PromptLock(self._calls_per_lane)
        # As with a thread, a call can be cancelled until it begins; then it is awaited.
        await trio.lowlevel.checkpoint_if_cancelled()
        async with place:
            await self._delay()
            self._power.check()
            self._owed_seconds = 0.0
            try:
                return fn(*args)
            finally:
                await self._delay(self._owed_seconds)

    async def _delay(self, owed_seconds: float = 0.0) -> None:
        seconds = self.delay_seconds
        if seconds and self._entropy is not None:
            seconds = self._entropy.uniform(0.0, seconds)
        seconds += owed_seconds
        if not seconds or not self._power.on:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        clock = self._clock
        if clock is not None and clock.jumping:
            await self._jump(clock, clock.monotonic() + seconds)
            return
        with trio.CancelScope(shield=True) as scope:
            self._delayed_calls[scope] = None
            try:
                await trio.sleep(seconds)
            finally:
                del self._delayed_calls[scope]

    async def _jump(self, clock: VirtualClock, until: float) -> None:
        """Sleep shielded, without cancel scopes: it is the most frequent wait of a simulated
        cluster."""
        task = trio.lowlevel.current_task()
        self._jumping[task] = None
        clock.call_at(until, partial(self._wake, task))
        await trio.lowlevel.wait_task_rescheduled(_not_to_be_cancelled)

    def _wake(self, task: trio.lowlevel.Task) -> bool:
        if task not in self._jumping:  # the power was cut meanwhile
            return False
        del self._jumping[task]
        trio.lowlevel.reschedule(task)
        return True

    def _end(self) -> None:
        """End all waiting calls after a power cut."""
        for scope in list(self._delayed_calls):
            scope.cancel()
        for task in list(self._jumping):
            self._wake(task)


def _not_to_be_cancelled(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
