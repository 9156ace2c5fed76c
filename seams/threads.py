"""Offload to threads, with a limit per lane.

trio's thread cache is not used: it starts a thread with `Thread.start`, which blocks the loop until the new thread has
run, and that takes long on a busy machine. `start_new_thread` does not block. The most recently used idle thread is
used first. A thread ends after ten idle seconds, so a node that never blocks has no threads.

A thread becomes idle before the loop receives its result, so consecutive calls need one thread. The loop and the threads
share dictionaries only, whose operations are atomic.
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
        """Create an offload with a number of concurrent calls per lane.

        Further calls wait, and can be cancelled while they wait. Copies to an object store, deletions and reads have
        lower limits of their own in `broker/tiered`, so that hanging copies do not block reads.
        """
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
    """A call and its result."""

    def __init__(self, fn: Callable[[], T]) -> None:
        self._fn = fn
        self._returned: list[T] = []
        self._raised: BaseException | None = None
        self._task = trio.lowlevel.current_task()
        self._token = trio.lowlevel.current_trio_token()

    def make(self) -> None:
        """Run the call in the thread."""
        try:
            self._returned.append(self._fn())
        except BaseException as error:  # raised in the awaiting task
            self._raised = error

    def notify(self) -> None:
        """Wake the awaiting task from the thread."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(trio.lowlevel.reschedule, self._task)

    def outcome(self) -> T:
        try:
            if self._raised is not None:
                raise self._raised
            return self._returned[0]
        finally:
            self._raised = None  # its traceback refers to this frame


class _Thread:
    def __init__(self, idle: dict[_Thread, None], idle_seconds: float) -> None:
        self._idle = idle
        self._idle_seconds = idle_seconds
        self._call: _Call[Any] | None = None
        self._has_call = _thread.allocate_lock()
        """Locked while the thread has no call."""
        self._has_call.acquire()
        _thread.start_new_thread(self._work, ())

    def do(self, call: _Call[Any]) -> None:
        """Pass a call to this thread, which the loop has removed from the idle ones."""
        self._call = call
        self._has_call.release()

    def _work(self) -> None:
        while True:
            if self._has_call.acquire(timeout=self._idle_seconds):
                call, self._call = self._call, None
                assert call is not None, "woken without a call"
                call.make()
                self._idle[self] = None
                call.notify()
                del call
                continue
            try:
                del self._idle[self]
            except KeyError:  # the loop has just selected it: a call follows
                continue
            return
