"""Offload without threads: the call is made in the loop, after a delay, before another.

A real thread does its work at some moment between the call and its return; here that moment is drawn
from the entropy, and the whole takes virtual time, so that a clock moved ahead never overtakes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

from odradek.seams.entropy import Entropy
from odradek.testing.power import Power

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualOffload:
    def __init__(
        self,
        power: Power | None = None,
        entropy: Entropy | None = None,
        *,
        delay_seconds: float = 0.0,
        calls_per_lane: int = 4,
    ) -> None:
        """`delay_seconds` is the longest a call takes to begin, and again to return."""
        self.delay_seconds = delay_seconds
        self._power = power or Power()
        self._entropy = entropy
        self._calls_per_lane = calls_per_lane
        self._lanes: dict[str, trio.CapacityLimiter] = {}

    async def run(self, fn: Callable[[*Ts], T], *args: *Ts, lane: str) -> T:
        self._power.check()
        limiter = self._lanes.get(lane)
        if limiter is None:
            limiter = self._lanes[lane] = trio.CapacityLimiter(self._calls_per_lane)
        async with limiter:
            # As with a thread: until it has begun it can be cancelled, then it is waited for.
            await trio.lowlevel.checkpoint_if_cancelled()
            await self._take_time()
            self._power.check()
            try:
                return fn(*args)
            finally:
                await self._take_time()

    async def _take_time(self) -> None:
        seconds = self.delay_seconds
        if not seconds:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        if self._entropy is not None:
            seconds = self._entropy.uniform(0.0, seconds)
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)
