"""A trio loop in a thread of its own, for callers who have none: plain tests, Spark's workers.

What the loop holds open is an async context manager. A call goes to the loop and returns when it is
done there; how the thread ended, `close` tells. The caller may have a loop of its own, which stands still
meanwhile: trio's own ways into a loop refuse such callers, for whom that would be the same loop.
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
        takes longer than `start_s`: then, as after Ctrl-C, it is left again, for which it has as long."""
        self._opened = opened
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
            """What the context manager gave."""
        except BaseException as error:
            is_late = not self._entered.done()
            self._give_up(start_s)
            if is_late and isinstance(error, TimeoutError):
                raise TimeoutError(f"{name} did not open in {start_s:g} s") from None
            raise

    def call(self, function: Callable[[*Ts], Awaitable[R]], *args: *Ts) -> R:
        """`await function(*args)` there. Raises trio.RunFinishedError if the loop has ended, or ends first."""
        done: Future[R] = Future()

        async def run() -> None:
            try:
                done.set_result(await function(*args))
            except BaseException as error:
                done.set_exception(trio.RunFinishedError() if _is_cancellation(error) else error)

        def spawn() -> None:
            try:
                trio.lowlevel.spawn_system_task(run)
            except RuntimeError:  # it is ending, and takes no more tasks
                done.set_exception(trio.RunFinishedError())

        self._run_soon(spawn)
        return done.result()

    def call_sync(self, function: Callable[[*Ts], R], *args: *Ts) -> R:
        """`function(*args)` there."""
        done: Future[R] = Future()

        def run() -> None:
            try:
                done.set_result(function(*args))
            except BaseException as error:
                done.set_exception(error)

        self._run_soon(run)
        return done.result()

    def close(self) -> None:
        """Leave the context manager, and return when the thread has ended; idempotent. Raises what ended
        the loop before, or went wrong in leaving."""
        if not self._ended.done():
            with suppress(trio.RunFinishedError):  # by itself, a moment ago
                self._run_soon(self._end.set)
        self._thread.join()
        self._ended.result(0)

    def _give_up(self, wait_s: float) -> None:
        if self._begun.wait(wait_s):
            with suppress(trio.RunFinishedError):
                self._run_soon(self._life.cancel)
            self._thread.join(wait_s)

    def _run_soon(self, function: Callable[[], object]) -> None:
        """On the loop, if it has not ended: all that it has taken is run."""
        if self._token is None:
            raise trio.RunFinishedError
        self._token.run_sync_soon(function)

    def _run(self) -> None:
        try:
            trio.run(self._main)
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
