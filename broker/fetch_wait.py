"""A fetch that waits: ended by the append that fills it, by a change of role, or by its time.

Its task runs in the next pass of the loop, after whoever appended has answered. So that a consumer
has its records before that, the wait can be given a way to answer at once, which the connection that
appended takes before it sends its own answers (`DueFetches`); the task then finds it done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import trio

from odradek.broker.timers import Timers
from odradek.replication.partition.partition import Partition
from odradek.seams.clock import Clock

ANSWERED_AT_ONCE = 2
"""Fetches answered before the answer of whoever woke them, about 50 µs each; the rest is left to
their own tasks."""


class DueFetches:
    """The waits that have ended, and whose tasks have not run since."""

    def __init__(self) -> None:
        self.waits: dict[_Wait, None] = {}

    def add(self, wait: _Wait) -> None:
        self.waits[wait] = None

    def discard(self, wait: _Wait) -> None:
        self.waits.pop(wait, None)

    def answer(self) -> None:
        """Answer the first of them. Raises nothing: what goes wrong is left to their own tasks."""
        first = list(islice(self.waits, ANSWERED_AT_ONCE))
        self.waits.clear()
        for wait in first:
            wait.answer()


class _Wait:
    """Wakes once a partition watched changed hands, or by what `visible` of its kinds says."""

    def __init__(
        self, due: DueFetches, timers: Timers[_Wait], answer_at_once: Callable[[], bool] | None
    ) -> None:
        """`answer_at_once` says whether it did answer."""
        self._enough = trio.Event()
        self._due = due
        self._timers = timers
        self._answer_at_once = answer_at_once
        self._failure: Exception | None = None
        self._watched: list[Partition] = []
        self.is_answered = False

    def visible(self, partition: Partition, size_bytes: int) -> None:
        raise NotImplementedError

    def interrupted(self, partition: Partition) -> None:
        self._enough.set()

    def expire(self) -> None:
        self._enough.set()

    def _wake(self) -> None:
        if self._answer_at_once is not None and not self._enough.is_set():
            self._due.add(self)
        self._enough.set()

    def answer(self) -> None:
        """Answer, if that can be done at once; for `DueFetches`, and once in its life: until its task
        runs it still hears of appends."""
        assert self._answer_at_once is not None
        try:
            self.is_answered = self._answer_at_once()
        except Exception as failure:
            self._failure = failure

    def watch(self, partitions: Iterable[Partition], *, end: bool = False) -> None:
        """Count what becomes visible from here on, or with `end` what is appended, until `unwatch`."""
        for partition in partitions:
            partition.watch(self, end=end)
            self._watched.append(partition)

    def unwatch(self) -> None:
        for partition in self._watched:
            partition.unwatch(self)
        self._due.discard(self)
        self._timers.disarm(self)

    async def wait(self, until_ms: int) -> None:
        """Return when woken, or at that time of the monotonic clock. Raises what went wrong where it
        was answered."""
        self._timers.arm(self, until_ms)
        await self._enough.wait()
        if self._failure is not None:
            raise self._failure


def fetch_timers(clock: Clock) -> Timers[_Wait]:
    """When waits give up; `run` must be running for that."""
    return Timers(clock, _Wait.expire)


class FetchWait(_Wait):
    """Wakes once `missing_bytes` more became visible in the partitions watched. It counts what is
    appended, reading nothing."""

    def __init__(
        self,
        missing_bytes: int,
        due: DueFetches,
        timers: Timers[_Wait],
        answer_at_once: Callable[[], bool] | None,
    ) -> None:
        super().__init__(due, timers, answer_at_once)
        self._missing_bytes = missing_bytes

    def visible(self, partition: Partition, size_bytes: int) -> None:
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self._wake()


class StableWait(_Wait):
    """Wakes once a last stable offset has moved, for readers of what is committed: how many bytes
    that brings is not known without a look."""

    def __init__(
        self,
        stable_offsets: Mapping[Partition, int],
        due: DueFetches,
        timers: Timers[_Wait],
        answer_at_once: Callable[[], bool] | None,
    ) -> None:
        super().__init__(due, timers, answer_at_once)
        self._stable_offsets = stable_offsets

    def visible(self, partition: Partition, size_bytes: int) -> None:
        if partition.log.last_stable_offset > self._stable_offsets[partition]:
            self._wake()
