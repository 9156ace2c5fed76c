"""A fetch that waits: ended by the append that fills it, by a change of role, or by its time.

Its task runs in the next pass of the loop, after whoever appended has answered. So that a consumer has
its records before that, the connection that appended answers it before it sends its own answers
(`CompletableFetches`), if that can be done from memory.

Where this node has the only replica, the task of a fetch that was answered so is not even woken before the
client asks on: the clients that were sent something have the processor meanwhile. With other replicas
what becomes visible mostly does so by a task, which leaves no such room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import trio

from odradek.broker.timers import Timers
from odradek.replication.partition.partition import Partition
from odradek.seams.clock import Clock
from odradek.seams.processor import let_others_run

COMPLETED_AT_ONCE = 2
"""Fetches answered before the answer of whoever woke them, about 50 µs each; the rest is left to
their own tasks."""
YIELD_SECONDS = 200e-6
"""So long whoever was sent something may have the processor: who hands on what it got takes a tenth."""
PAUSE = 200
"""Who computes takes it for some milliseconds: for so many times that long it is offered to nobody."""


class WaitingConnection(Protocol):
    """Connection of a waiting fetch, of which the task may sleep until the client's next request."""

    async def wait_for_next_request(self) -> None:
        """Return when the client has sent its next request, at `wake`, or at once if the connection's task has other
        work."""
        ...

    def wake(self) -> None:
        """End `wait_for_next_request`; does nothing if no task is in it."""
        ...


class CompletableFetches:
    """The waits that were filled, until they are answered or their tasks run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offered_again_at = 0.0
        self.waits: dict[_DelayedFetchBase, None] = {}
        self.has_active_connection = False
        """Whether who is at work calls `respond` when done: no task has to be woken before."""

    def add(self, wait: _DelayedFetchBase) -> None:
        self.waits[wait] = None

    def discard(self, wait: _DelayedFetchBase) -> None:
        self.waits.pop(wait, None)

    def respond(self) -> None:
        """Answer the first of them. Raises nothing: what goes wrong is left to their own tasks."""
        self.has_active_connection = False
        if not self.waits:
            return
        tried = 0
        is_any_responded = False
        while self.waits:
            wait = next(iter(self.waits))
            del self.waits[wait]
            if tried < COMPLETED_AT_ONCE:
                wait.respond()
                tried += 1
                is_any_responded |= wait.is_responded
            else:
                wait.resume()
        if is_any_responded:
            self._offer_processor()

    def _offer_processor(self) -> None:
        """Have clients that were sent something run before what is left to do here, which has time."""
        began = self._clock.monotonic()
        if began < self._offered_again_at:
            return
        let_others_run()
        ended = self._clock.monotonic()
        if ended - began > YIELD_SECONDS:
            self._offered_again_at = ended + PAUSE * (ended - began)


class _DelayedFetchBase:
    """Wakes once a partition watched changed hands, or by what `visible` of its kinds says."""

    def __init__(
        self,
        due: CompletableFetches,
        timers: Timers[_DelayedFetchBase],
        connection: WaitingConnection | None,
        respond_nowait: Callable[[], bool],
    ) -> None:
        """`respond_nowait` says whether it did answer; it needs an `connection`."""
        self._enough = trio.Event()
        self._due = due
        self._timers = timers
        self._connection = connection
        self._respond_nowait = respond_nowait
        self._failure: Exception | None = None
        self._is_alone = True
        """No follower has to hear of what is watched before it is visible."""
        self._watched: list[Partition] = []
        self.is_responded = False

    def visible(self, partition: Partition, size_bytes: int) -> None:
        raise NotImplementedError

    def interrupted(self, partition: Partition) -> None:
        self.resume()

    def expire(self) -> None:
        self.resume()

    def resume(self) -> None:
        """Have its task go on."""
        self._enough.set()
        if self._connection is not None:
            self._connection.wake()

    def _wake(self) -> None:
        if self._enough.is_set():
            return
        if self._connection is not None:
            self._due.add(self)
        if self._connection is None or not self._due.has_active_connection:
            self.resume()

    def respond(self) -> None:
        """Answer, if that can be done at once; for `CompletableFetches`, and once in its life."""
        try:
            self.is_responded = self._respond_nowait()
        except Exception as failure:
            self._failure = failure
        if self.is_responded:
            self._enough.set()
            self.unwatch()
        else:
            self.resume()

    def watch(self, partitions: Iterable[Partition], *, end: bool = False) -> None:
        """Count what becomes visible from here on, or with `end` what is appended, until `unwatch`."""
        for partition in partitions:
            partition.watch(self, end=end)
            self._watched.append(partition)
            if partition.leader_role is not None:
                self._is_alone = False

    def unwatch(self) -> None:
        for partition in self._watched:
            partition.unwatch(self)
        self._watched.clear()
        self._due.discard(self)
        self._timers.disarm(self)

    async def wait(self, until_ms: int) -> None:
        """Return when woken, or at that time of the monotonic clock; where it is answered meanwhile, that
        may be as late as the client asks on. Raises what went wrong where it was answered."""
        self._timers.arm(self, until_ms)
        if self._connection is not None and self._is_alone and not self._enough.is_set():
            await self._connection.wait_for_next_request()
        if not self._enough.is_set():
            await self._enough.wait()
        if self._failure is not None:
            raise self._failure


def fetch_timers(clock: Clock) -> Timers[_DelayedFetchBase]:
    """When waits give up; `run` must be running for that."""
    return Timers(clock, _DelayedFetchBase.expire)


class DelayedFetch(_DelayedFetchBase):
    """Wakes once `missing_bytes` more became visible in the partitions watched. It counts what is
    appended, reading nothing."""

    def __init__(
        self,
        missing_bytes: int,
        due: CompletableFetches,
        timers: Timers[_DelayedFetchBase],
        connection: WaitingConnection | None,
        respond_nowait: Callable[[], bool],
    ) -> None:
        super().__init__(due, timers, connection, respond_nowait)
        self._missing_bytes = missing_bytes

    def visible(self, partition: Partition, size_bytes: int) -> None:
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self._wake()


class DelayedReadCommittedFetch(_DelayedFetchBase):
    """Wakes once a last stable offset has moved, for readers of what is committed: how many bytes
    that brings is not known without a look."""

    def __init__(
        self,
        stable_offsets: Mapping[Partition, int],
        due: CompletableFetches,
        timers: Timers[_DelayedFetchBase],
        connection: WaitingConnection | None,
        respond_nowait: Callable[[], bool],
    ) -> None:
        super().__init__(due, timers, connection, respond_nowait)
        self._stable_offsets = stable_offsets

    def visible(self, partition: Partition, size_bytes: int) -> None:
        if partition.log.last_stable_offset > self._stable_offsets[partition]:
            self._wake()
