"""LoopThread: entering a context in it, calls into it, errors, and its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from odradek.seams.loop_thread import LoopThread


class _Resource:
    def __init__(self) -> None:
        self.is_open = False
        self.failure = trio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[_Resource]:
        self.is_open = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fail_when_set)
                yield self
                nursery.cancel_scope.cancel()
        finally:
            self.is_open = False

    async def _fail_when_set(self) -> None:
        await self.failure.wait()
        raise OSError("broken")

    async def twice(self, number: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * number


def test_calls_run_in_the_loop_thread() -> None:
    resource = _Resource()
    thread = LoopThread(resource.opened, name="a resource", start_s=10)
    assert thread.value is resource
    assert resource.is_open
    assert thread.call(resource.twice, 21) == 42
    thread.close()
    assert not resource.is_open
    with pytest.raises(trio.RunFinishedError):
        thread.call(resource.twice, 21)
    thread.close()  # idempotent


def test_error_on_enter_is_raised() -> None:
    @asynccontextmanager
    async def locked() -> AsyncIterator[None]:
        raise OSError("locked")
        yield

    with pytest.raises(OSError, match="locked"):
        LoopThread(locked, name="a resource", start_s=10)


def test_error_that_ends_the_loop_is_raised_by_close() -> None:
    resource = _Resource()
    thread = LoopThread(resource.opened, name="a resource", start_s=10)
    thread.call_sync(resource.failure.set)
    with pytest.raises(ExceptionGroup) as caught:
        thread.close()
    assert caught.group_contains(OSError, match="broken")


def test_enter_timeout_exits_the_context() -> None:
    left = threading.Event()

    @asynccontextmanager
    async def endless() -> AsyncIterator[None]:
        try:
            await trio.sleep_forever()
            yield
        finally:
            left.set()

    with pytest.raises(TimeoutError, match=r"a resource did not open in 0\.05 s"):
        LoopThread(endless, name="a resource", start_s=0.05)
    assert left.is_set()


def test_ctrl_c_during_enter_exits_the_context() -> None:
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
        LoopThread(endless, name="a resource", start_s=10)
    assert left.is_set()


async def test_loop_thread_works_inside_another_loop() -> None:
    """A test under trio may use a session fixture that runs in another loop."""
    resource = _Resource()
    thread = LoopThread(resource.opened, name="a resource", start_s=10)
    assert thread.call(resource.twice, 21) == 42
    thread.close()
    assert not resource.is_open


def test_call_in_progress_fails_when_the_loop_ends() -> None:
    resource = _Resource()
    thread = LoopThread(resource.opened, name="a resource", start_s=10)

    async def wait_for_ever() -> None:
        resource.failure.set()
        await trio.sleep_forever()

    with pytest.raises(trio.RunFinishedError):
        thread.call(wait_for_ever)
    with pytest.raises(ExceptionGroup):
        thread.close()


def test_error_of_a_call_is_raised_to_its_caller() -> None:
    resource = _Resource()
    thread = LoopThread(resource.opened, name="a resource", start_s=10)

    async def fail() -> None:
        raise OSError("no such resource")

    with pytest.raises(OSError, match="no such resource"):
        thread.call(fail)
    with pytest.raises(ZeroDivisionError):
        thread.call_sync(lambda: 1 // 0)
    assert thread.call(resource.twice, 1) == 2
    thread.close()
