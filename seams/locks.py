"""A lock that costs no turn of the loop while nobody else has it.

trio's own passes through the scheduler even when it is free: who takes it for each request would pay for
that each time.
"""

from __future__ import annotations

import trio


class PromptLock:
    """`async with` as with `trio.Lock`, in turn; but finding it free is no checkpoint.

    So many as `holders` may have it at once. A task that takes it again while it has it waits for ever, and
    silently: trio's raises RuntimeError.
    """

    __slots__ = ("_free", "_waiting")

    def __init__(self, holders: int = 1) -> None:
        self._free = holders
        self._waiting: trio.lowlevel.ParkingLot | None = None

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        if self._waiting is None:
            self._waiting = trio.lowlevel.ParkingLot()
        await self._waiting.park()  # and be handed it

    async def __aexit__(self, *_: object) -> None:
        if self._waiting:
            self._waiting.unpark()  # its place stays taken
        else:
            self._free += 1
