"""A trio event loop in its own thread, for callers without one: plain tests, Spark's workers.

The loop keeps an async context manager open. A call runs in the loop and returns its result. `close` raises
the error that ended the loop. The caller may have its own event loop, which is blocked during a call; trio's
functions for calls from threads refuse such callers.
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
    """An event loop in a thread. Any thread may call its methods."""

    def __init__(
        self,
        opened: Callable[[], AbstractAsyncContextManager[T]],
        *,
        name: str,
        start_s: float,
        clock: trio.abc.Clock | None = None,
    ) -> None:
        """Enter the context manager `opened()` in the loop of a new thread; `clock` replaces trio's.

        Raises its errors, and TimeoutError after `start_s` seconds. After a timeout or Ctrl-C, the context
        manager is exited, with the same time limit.
        """
        self._opened = opened
        self._clock = clock
        self._token: trio.lowlevel.TrioToken | None = None
        self._begun = threading.Event()
        self._life = trio.CancelScope()
        self._end = trio.Event()
        self._entered: Future[T] = Future()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
            self.value = self._entered.result(start_s)
            """Value of the context manager."""
        except BaseException as error:
            is_late = not self._entered.done()
            self._give_up(start_s)
            if is_late and isinstance(error, TimeoutError):
                raise TimeoutError(f"{name} did not open in {start_s:g} s") from None
            raise

    def call(self, function: Callable[[*Ts], Awaitable[R]], *args: *Ts) -> R:
        """Run an async function in the loop. Raises trio.RunFinishedError if the loop ends first."""
        done: Future[R] = Future()

        async def run() -> None:
            try:
                done.set_result(await function(*args))
            except BaseException as error:
                done.set_exception(trio.RunFinishedError() if _is_cancellation(error) else error)

        def spawn() -> None:
            try:
                trio.lowlevel.spawn_system_task(run)
            except RuntimeError:  # the nursery is closing
                done.set_exception(trio.RunFinishedError())

        self._run_soon(spawn)
        return done.result()

    def call_sync(self, function: Callable[[*Ts], R], *args: *Ts) -> R:
        """Run a synchronous function in the loop."""
        done: Future[R] = Future()

        def run() -> None:
            try:
                done.set_result(function(*args))
            except BaseException as error:
                done.set_exception(error)

        self._run_soon(run)
        return done.result()

    def close(self) -> None:
        """Exit the context manager and join the thread; idempotent. Raises the error that ended the loop."""
        if not self._ended.done():
            with suppress(trio.RunFinishedError):  # it has just ended by itself
                self._run_soon(self._end.set)
        self._thread.join()
        self._ended.result(0)

    def is_over(self, wait_s: float = 0) -> bool:
        """Whether the loop has ended, after waiting up to `wait_s` seconds for it."""
        if wait_s:
            with suppress(TimeoutError):
                self._ended.exception(wait_s)
        return self._ended.done()

    @property
    def failure(self) -> BaseException | None:
        """Error that ended the loop."""
        return self._ended.exception(0) if self._ended.done() else None

    def _give_up(self, wait_s: float) -> None:
        if self._begun.wait(wait_s):
            with suppress(trio.RunFinishedError):
                self._run_soon(self._life.cancel)
            self._thread.join(wait_s)

    def _run_soon(self, function: Callable[[], object]) -> None:
        """Run a function in the loop unless it has ended. Accepted functions always run."""
        if self._token is None:
            raise trio.RunFinishedError
        self._token.run_sync_soon(function)

    def _run(self) -> None:
        try:
            trio.run(self._main, clock=self._clock)
        except BaseException as error:
            (self._ended if self._entered.done() else self._entered).set_exception(error)
        else:
            self._ended.set_result(None)
        finally:
            self._begun.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._life:
            self._begun.set()
            async with self._opened() as value:
                self._entered.set_result(value)
                await self._end.wait()


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)
