"""Offload onto threads, with a limit a lane.

The threads are not trio's: its cache starts one by `Thread.start`, which waits on the loop until the
new thread has run, and beside whatever keeps the processors busy (a compaction) that takes as long as
it takes. `start_new_thread` does not wait. The one that was idle for the shortest time is taken first;
one that was idle for ten seconds ends, so that a node that never blocks has none.

A thread ends up idle before the loop is told that its call is done: calls one after the other need one
thread. `dict`'s operations are atomic, which is all that the loop and the threads share.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar, TypeVarTuple

import trio

from odradek.seams.offload import OBJECTS_LANE, RECORDS_LANE

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

IDLE_SECONDS = 10.0


class ThreadOffload:
    def __init__(
        self,
        *,
        threads_per_lane: int = 4,
        object_threads: int = 64,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """How many calls run at once in a lane; the next ones wait their turn, and may be
        cancelled while they wait. Those who copy to an object store, delete there and read from it
        have limits of their own, below this one: copies that hang keep nobody from reading."""
        self._threads_per_lane = threads_per_lane
        self._lanes: dict[str, trio.CapacityLimiter] = {
            OBJECTS_LANE: trio.CapacityLimiter(object_threads),
            RECORDS_LANE: trio.CapacityLimiter(1),
        }
        self._idle_seconds = idle_seconds
        self._idle: dict[_Thread, None] = {}

    async def run(self, fn: Callable[[*Ts], T], *args: *Ts, lane: str) -> T:
        limiter = self._lanes.get(lane)
        if limiter is None:
            limiter = self._lanes[lane] = trio.CapacityLimiter(self._threads_per_lane)
        call = _Call(partial(fn, *args))
        async with limiter:
            self._hand_over(call)
            await trio.lowlevel.wait_task_rescheduled(_is_never_abandoned)
        return call.outcome()

    def _hand_over(self, call: _Call[T]) -> None:
        try:
            thread, _ = self._idle.popitem()
        except KeyError:
            thread = _Thread(self._idle, self._idle_seconds)
        thread.do(call)


def _is_never_abandoned(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


class _Call(Generic[T]):
    """A call, and what came of it."""

    def __init__(self, fn: Callable[[], T]) -> None:
        self._fn = fn
        self._returned: list[T] = []
        self._raised: BaseException | None = None
        self._task = trio.lowlevel.current_task()
        self._token = trio.lowlevel.current_trio_token()

    def make(self) -> None:
        """In the thread."""
        try:
            self._returned.append(self._fn())
        except BaseException as error:  # raised where it is awaited
            self._raised = error

    def tell(self) -> None:
        """In the thread: the task goes on."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(trio.lowlevel.reschedule, self._task)

    def outcome(self) -> T:
        try:
            if self._raised is not None:
                raise self._raised
            return self._returned[0]
        finally:
            self._raised = None  # whose traceback leads back here


class _Thread:
    def __init__(self, idle: dict[_Thread, None], idle_seconds: float) -> None:
        self._idle = idle
        self._idle_seconds = idle_seconds
        self._call: _Call[Any] | None = None
        self._has_call = _thread.allocate_lock()
        """Held while it has none."""
        self._has_call.acquire()
        _thread.start_new_thread(self._work, ())

    def do(self, call: _Call[Any]) -> None:
        """On the loop, which has taken it from the idle ones."""
        self._call = call
        self._has_call.release()

    def _work(self) -> None:
        while True:
            if self._has_call.acquire(timeout=self._idle_seconds):
                call, self._call = self._call, None
                assert call is not None, "woken for nothing"
                call.make()
                self._idle[self] = None
                call.tell()
                del call
                continue
            try:
                del self._idle[self]
            except KeyError:  # taken at this moment: a call is coming
                continue
            return
