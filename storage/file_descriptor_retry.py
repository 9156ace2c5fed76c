"""Retries of operations that need a file descriptor and must not be left incomplete.

A lack of descriptors is temporary and no failure of the disk (`directories/io_errors.py`). So an operation
that must be completed, such as a rename and the sync of its directory, is retried. An operation that
fails without a change raises instead.
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


async def retry_without_descriptors(
    clock: Clock, offload: Offload, act: Callable[[*Ts], T], *args: *Ts, lane: str
) -> T:
    """Call `act(*args)`, which must be repeatable, in a worker thread until it does not raise
    OutOfDescriptors. Raises its other errors."""
    while True:
        try:
            return await offload.run(act, *args, lane=lane)
        except OutOfDescriptors:
            await clock.sleep(RETRY_SECONDS)
