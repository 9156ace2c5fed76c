"""LoopThread: entering a context in it, calls into it, errors, and its end."""

from __future__ import annotations

import signal
import threading
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
    thread.close()  # idempotent


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


def test_what_takes_too_long_to_enter_is_left_again() -> None:
    left = threading.Event()

    @asynccontextmanager
    async def endless() -> AsyncIterator[None]:
        try:
            await trio.sleep_forever()
            yield
        finally:
            left.set()

    with pytest.raises(TimeoutError, match=r"a door did not open in 0\.05 s"):
        LoopThread(endless, name="a door", start_s=0.05)
    assert left.is_set()


def test_ctrl_c_while_it_is_entered_leaves_it_again() -> None:
    left = threading.Event()

    @asynccontextmanager
    async def endless() -> AsyncIterator[None]:
        try:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
            await trio.sleep_forever()
            yield
        finally:
            left.set()

    with pytest.raises(KeyboardInterrupt):
        LoopThread(endless, name="a door", start_s=10)
    assert left.is_set()


async def test_it_is_called_and_closed_inside_another_loop_too() -> None:
    """A test under trio may use a session fixture that runs in another loop."""
    door = _Door()
    thread = LoopThread(door.opened, name="a door", start_s=10)
    assert thread.call(door.twice, 21) == 42
    thread.close()
    assert not door.is_open


def test_what_is_under_way_when_the_loop_ends_is_told_so() -> None:
    door = _Door()
    thread = LoopThread(door.opened, name="a door", start_s=10)

    async def wait_for_ever() -> None:
        door.break_it.set()
        await trio.sleep_forever()

    with pytest.raises(trio.RunFinishedError):
        thread.call(wait_for_ever)
    with pytest.raises(ExceptionGroup):
        thread.close()


def test_what_a_call_raises_is_its_callers() -> None:
    door = _Door()
    thread = LoopThread(door.opened, name="a door", start_s=10)

    async def fail() -> None:
        raise OSError("no such door")

    with pytest.raises(OSError, match="no such door"):
        thread.call(fail)
    with pytest.raises(ZeroDivisionError):
        thread.call_sync(lambda: 1 // 0)
    assert thread.call(door.twice, 1) == 2
    thread.close()
