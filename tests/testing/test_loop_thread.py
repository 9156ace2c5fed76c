"""A loop in a thread: what is entered there, called there, and how its end is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from odradek.seams.loop_thread import LoopThread


class _Door:
    def __init__(self) -> None:
        self.is_open = False
        self.break_it = trio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[_Door]:
        self.is_open = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._break_when_asked)
                yield self
                nursery.cancel_scope.cancel()
        finally:
            self.is_open = False

    async def _break_when_asked(self) -> None:
        await self.break_it.wait()
        raise OSError("broken")

    async def twice(self, number: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * number


def test_calls_run_on_the_loop_while_it_is_open() -> None:
    door = _Door()
    thread = LoopThread(door.opened, name="a door", start_s=10)
    assert thread.value is door
    assert door.is_open
    assert thread.call(door.twice, 21) == 42
    thread.close()
    assert not door.is_open
    with pytest.raises(trio.RunFinishedError):
        thread.call(door.twice, 21)
    thread.close()  # once more is no error


def test_what_cannot_be_entered_is_told_at_once() -> None:
    @asynccontextmanager
    async def locked() -> AsyncIterator[None]:
        raise OSError("locked")
        yield

    with pytest.raises(OSError, match="locked"):
        LoopThread(locked, name="a door", start_s=10)


def test_what_ends_the_loop_by_itself_is_told_when_it_is_closed() -> None:
    door = _Door()
    thread = LoopThread(door.opened, name="a door", start_s=10)
    thread.call_sync(door.break_it.set)
    with pytest.raises(ExceptionGroup) as caught:
        thread.close()
    assert caught.group_contains(OSError, match="broken")
