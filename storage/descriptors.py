"""What must not be left half done for want of a file descriptor: it is tried again until there is one.

A lack of them is the process's, and passes (`directories/failure.py`): no reason to give up a rename whose
directory is not synced yet. Who can refuse instead, with nothing done, does that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from odradek.seams.clock import Clock
from odradek.seams.files import OutOfDescriptors
from odradek.seams.offload import Offload

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RETRY_SECONDS = 0.1


async def run_retrying_descriptors(
    clock: Clock, offload: Offload, act: Callable[[*Ts], T], *args: *Ts, lane: str
) -> T:
    """`act(*args)` in a thread, which can be called again. Raises what it does but OutOfDescriptors."""
    while True:
        try:
            return await offload.run(act, *args, lane=lane)
        except OutOfDescriptors:
            await clock.sleep(RETRY_SECONDS)
