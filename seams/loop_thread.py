"""A trio loop in a thread of its own, for callers who have none: plain tests, Spark's workers.

What the loop holds open is an async context manager. A call goes to the loop and returns when it is
done there; how the thread ended, `close` tells.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Generic, TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class LoopThread(Generic[T]):
    """See the module. Made by its first thread, used from any."""

    def __init__(
        self, opened: Callable[[], AbstractAsyncContextManager[T]], *, name: str, start_s: float
    ) -> None:
        """Enter `opened()` on a loop in a new thread. Raises what that raises, and TimeoutError where it
        takes longer than `start_s`."""
        self._opened = opened
        self._token: trio.lowlevel.TrioToken | None = None
        self._end = trio.Event()
        self._entered: Future[T] = Future()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.value = self._entered.result(start_s)
        """What the context manager gave."""

    def call(self, function: Callable[[*Ts], Awaitable[R]], *args: *Ts) -> R:
        """`await function(*args)` there. Raises trio.RunFinishedError after the loop has ended."""
        return trio.from_thread.run(function, *args, trio_token=self._token)

    def call_sync(self, function: Callable[[*Ts], R], *args: *Ts) -> R:
        """`function(*args)` there."""
        return trio.from_thread.run_sync(function, *args, trio_token=self._token)

    def close(self) -> None:
        """Leave the context manager, and return when the thread has ended; idempotent. Raises what ended
        the loop before, or went wrong in leaving."""
        if not self._ended.done():
            with suppress(trio.RunFinishedError):  # by itself, a moment ago
                self.call_sync(self._end.set)
        self._thread.join()
        self._ended.result(0)

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            (self._ended if self._entered.done() else self._entered).set_exception(error)
        else:
            self._ended.set_result(None)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with self._opened() as value:
            self._entered.set_result(value)
            await self._end.wait()
