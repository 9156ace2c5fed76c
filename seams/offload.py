"""Offload seam: calls that would block the event loop. `threads.py` implements it.

Only calls that release the GIL go here (reads of cold pages, fsync, object stores, compression);
Python loops go to a worker process. A call is never abandoned: a cancellation prevents it from
starting, or waits until it has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

OBJECTS_LANE = "objects"
"""Lane of all calls to object stores."""
RECORDS_LANE = "records"
"""Lane of decoding records of clients: partly Python, so one batch at a time."""


class Offload(Protocol):
    async def run(self, fn: Callable[[*Ts], T], *args: *Ts, lane: str) -> T:
        """Run `fn(*args)` outside the event loop, in a lane.

        A lane is the path of a log directory, OBJECTS_LANE or RECORDS_LANE. Each lane has its own limit, so that a slow
        disk does not delay others.
        """
        ...
