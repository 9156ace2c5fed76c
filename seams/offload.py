"""Work that would block the loop: interface. The real one is `threads.py`.

Only calls that release the GIL go here (reads of cold pages, fsync, object stores, compression);
Python loops go to a worker process. A call is never abandoned: cancellation keeps it from starting,
and once it has started waits for it to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

OBJECTS_LANE = "objects"
"""Of all calls to object stores."""
RECORDS_LANE = "records"
"""Of looking into records that clients have sent: in part Python, so one batch at a time."""


class Offload(Protocol):
    async def run(self, fn: Callable[[*Ts], T], *args: *Ts, lane: str) -> T:
        """`fn(*args)` off the loop; `lane` names whose limit it counts against.

        A lane is a log directory's path, OBJECTS_LANE or RECORDS_LANE: each has a limit of its own, so
        that one slow disk holds up nobody else.
        """
        ...
