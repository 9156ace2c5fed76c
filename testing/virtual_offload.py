"""Offload without threads: the call is made in the loop, after a delay, before another.

A real thread does its work at some moment between the call and its return; here that moment is drawn
from the entropy, and the whole takes virtual time, so that a clock moved ahead never overtakes it.
What a call would wait for in its thread (an object store that hangs), it owes: it returns that much later.
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
    def __init__(
        self,
        power: Power | None = None,
        entropy: Entropy | None = None,
        clock: VirtualClock | None = None,
        *,
        delay_seconds: float = 0.0,
        calls_per_lane: int = 4,
    ) -> None:
        """`delay_seconds` is the longest a call takes to begin, and again to return; by `clock` if that
        is one that jumps."""
        self.delay_seconds = delay_seconds
        self._power = power or Power()
        self._entropy = entropy
        self._clock = clock
        self._calls_per_lane = calls_per_lane
        self._lanes: dict[str, PromptLock] = {}
        self._owed_seconds = 0.0
        self._taking_time: dict[trio.CancelScope, None] = {}
        self._jumping: dict[trio.lowlevel.Task, None] = {}
        self._power.when_cut(self._end)

    def owe(self, seconds: float) -> None:
        """From within a call: it takes so much longer."""
        self._owed_seconds += seconds

    async def run(self, fn: Callable[[*Ts], T], *args: *Ts, lane: str) -> T:
        self._power.check()
        place = self._lanes.get(lane)
        if place is None:
            place = self._lanes[lane] = PromptLock(self._calls_per_lane)
        # As with a thread: until it has begun it can be cancelled, then it is waited for.
        await trio.lowlevel.checkpoint_if_cancelled()
        async with place:
            await self._take_time()
            self._power.check()
            self._owed_seconds = 0.0
            try:
                return fn(*args)
            finally:
                await self._take_time(self._owed_seconds)

    async def _take_time(self, owed_seconds: float = 0.0) -> None:
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
            self._taking_time[scope] = None
            try:
                await trio.sleep(seconds)
            finally:
                del self._taking_time[scope]

    async def _jump(self, clock: VirtualClock, until: float) -> None:
        """As a shielded sleep, without the scopes: there is no wait that a simulated cluster has more of."""
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
        """The power is cut: no call goes on."""
        for scope in list(self._taking_time):
            scope.cancel()
        for task in list(self._jumping):
            self._wake(task)


def _not_to_be_cancelled(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
