"""Offload onto threads, with a limit a lane.

Threads come from trio's cache, which lets idle ones go after ten seconds; a node that never blocks
has none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

OBJECTS_LANE = "objects"


class ThreadOffload:
    def __init__(self, *, threads_per_lane: int = 4, object_threads: int = 16) -> None:
        """How many calls run at once in a lane; the next ones wait their turn, and may be
        cancelled while they wait."""
        self._threads_per_lane = threads_per_lane
        self._lanes: dict[str, trio.CapacityLimiter] = {
            OBJECTS_LANE: trio.CapacityLimiter(object_threads)
        }

    async def run(self, fn: Callable[[*Ts], T], *args: *Ts, lane: str) -> T:
        limiter = self._lanes.get(lane)
        if limiter is None:
            limiter = self._lanes[lane] = trio.CapacityLimiter(self._threads_per_lane)
        return await trio.to_thread.run_sync(
            partial(fn, *args), abandon_on_cancel=False, limiter=limiter
        )
