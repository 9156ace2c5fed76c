"""A lock that costs no turn of the loop while nobody else has it.

trio's own passes through the scheduler even when it is free: who takes it for each request would pay for
that each time.
"""

from __future__ import annotations

import trio


class PromptLock:
    """`async with` as with `trio.Lock`, in turn; but finding it free is no checkpoint."""

    __slots__ = ("_is_held", "_waiting")

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: trio.lowlevel.ParkingLot | None = None

    async def __aenter__(self) -> None:
        if not self._is_held:
            self._is_held = True
            return
        if self._waiting is None:
            self._waiting = trio.lowlevel.ParkingLot()
        await self._waiting.park()  # and be handed it

    async def __aexit__(self, *_: object) -> None:
        if self._waiting:
            self._waiting.unpark()  # it stays held
        else:
            self._is_held = False
