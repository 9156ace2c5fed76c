"""A lock without a checkpoint when it is free.

trio's lock passes through the scheduler even when it is free, which is expensive for each request.
"""

from __future__ import annotations

import trio


class PromptLock:
    """Fair lock like `trio.Lock`; acquiring it while it is free is not a checkpoint.

    Up to `holders` tasks hold it at the same time. A task that acquires it again while it holds it waits
    forever; trio's lock raises RuntimeError.
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
        await self._waiting.park()  # the releasing task passes it on

    async def __aexit__(self, *_: object) -> None:
        if self._waiting:
            self._waiting.unpark()  # ownership was passed on
        else:
            self._free += 1
