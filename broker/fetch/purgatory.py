"""Fetch purgatory: a waiting fetch completes by an append, a change of role, or its timeout.

The task of a waiting fetch runs in the next pass of the loop, after the producer's response was
sent. To send the records to the consumer earlier, the producer's connection completes the fetch
before its own response (`CompletableFetches`), if this needs only memory.

If this node has the only replica, the task of such a fetch is not even woken before the client's
next request: the clients with new responses use the processor meanwhile. With other replicas,
records usually become readable in another task, which has no such idle time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import trio

from odradek.broker.timers import Timers
from odradek.replication.partition.partition import Partition
from odradek.seams.clock import Clock
from odradek.seams.network import let_others_run

COMPLETED_AT_ONCE = 2
"""Fetches completed before the response to the producer, about 50 µs each; their own tasks complete
the rest."""
YIELD_SECONDS = 200e-6
"""Expected time of another process after a yield; a client that only receives records takes a
tenth."""
PAUSE = 200
"""No yields for this many times the duration of a longer one: the other process is computing."""


class WaitingConnection(Protocol):
    """Connection of a waiting fetch, whose task may sleep until the client's next request."""

    async def wait_for_next_request(self) -> None:
        """Return when the client has sent its next request, at `wake`, or at once if the connection's task has other
        work."""
        ...

    def wake(self) -> None:
        """End `wait_for_next_request`; does nothing if no task is in it."""
        ...


class CompletableFetches:
    """Fetches with enough bytes that have no response yet and whose tasks have not run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offered_again_at = 0.0
        self.waits: dict[_DelayedFetchBase, None] = {}
        self.has_active_connection = False
        """Whether the running connection calls `respond` later: no task has to be woken before."""

    def add(self, wait: _DelayedFetchBase) -> None:
        self.waits[wait] = None

    def discard(self, wait: _DelayedFetchBase) -> None:
        self.waits.pop(wait, None)

    def respond(self) -> None:
        """Complete the first fetches. Raises nothing: errors are left to the tasks of the fetches."""
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
        """Yield the processor to clients that were sent a response; the remaining work can wait."""
        began = self._clock.monotonic()
        if began < self._offered_again_at:
            return
        let_others_run()
        ended = self._clock.monotonic()
        if ended - began > YIELD_SECONDS:
            self._offered_again_at = ended + PAUSE * (ended - began)


class _DelayedFetchBase:
    """Waiting fetch. A change of role completes it; subclasses define when `visible` does."""

    def __init__(
        self,
        completable_fetches: CompletableFetches,
        timers: Timers[_DelayedFetchBase],
        connection: WaitingConnection | None,
        respond_nowait: Callable[[], bool],
    ) -> None:
        """`respond_nowait` returns whether it sent the response; it needs a `connection`."""
        self._enough = trio.Event()
        self._completable_fetches = completable_fetches
        self._timers = timers
        self._connection = connection
        self._respond_nowait = respond_nowait
        self._failure: Exception | None = None
        self._has_only_local_replicas = True
        """Whether no watched partition has other replicas."""
        self._watched: list[Partition] = []
        self.is_responded = False

    def visible(self, partition: Partition, size_bytes: int) -> None:
        raise NotImplementedError

    def visible_diskless(self, size_bytes: int) -> None:
        """Batches of diskless partitions with that size became readable."""
        self.resume()

    def interrupted(self, partition: Partition) -> None:
        self.resume()

    def expire(self) -> None:
        self.resume()

    def resume(self) -> None:
        """Let the task of the fetch continue."""
        self._enough.set()
        if self._connection is not None:
            self._connection.wake()

    def _wake(self) -> None:
        if self._enough.is_set():
            return
        if self._connection is not None:
            self._completable_fetches.add(self)
        if self._connection is None or not self._completable_fetches.has_active_connection:
            self.resume()

    def respond(self) -> None:
        """Send the response if that is possible immediately. `CompletableFetches` calls it once."""
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
        """Count records that become readable from now on, or with `end` all appends, until
        `unwatch`."""
        for partition in partitions:
            partition.watch(self, end=end)
            self._watched.append(partition)
            if partition.leader_role is not None:
                self._has_only_local_replicas = False

    def unwatch(self) -> None:
        for partition in self._watched:
            partition.unwatch(self)
        self._watched.clear()
        self._completable_fetches.discard(self)
        self._timers.disarm(self)

    async def wait(self, until_ms: int) -> None:
        """Return when completed, or at that time of the monotonic clock.

        After a response by another connection it may return as late as the client's next request.
        Raises the error of that response.
        """
        self._timers.arm(self, until_ms)
        if (
            self._connection is not None
            and self._has_only_local_replicas
            and not self._enough.is_set()
        ):
            await self._connection.wait_for_next_request()
        if not self._enough.is_set():
            await self._enough.wait()
        if self._failure is not None:
            raise self._failure


def fetch_timers(clock: Clock) -> Timers[_DelayedFetchBase]:
    """Timeouts of waiting fetches; `Timers.run` must be running."""
    return Timers(clock, _DelayedFetchBase.expire)


class DelayedFetch(_DelayedFetchBase):
    """Completes after `missing_bytes` more have become readable, counted without reading."""

    def __init__(
        self,
        missing_bytes: int,
        completable_fetches: CompletableFetches,
        timers: Timers[_DelayedFetchBase],
        connection: WaitingConnection | None,
        respond_nowait: Callable[[], bool],
    ) -> None:
        super().__init__(completable_fetches, timers, connection, respond_nowait)
        self._missing_bytes = missing_bytes

    def visible(self, partition: Partition, size_bytes: int) -> None:
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self._wake()

    def visible_diskless(self, size_bytes: int) -> None:
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.resume()  # the bytes are in the object store


class DelayedReadCommittedFetch(_DelayedFetchBase):
    """Completes when a last stable offset has moved (read_committed).

    The number of new bytes is unknown without a read.
    """

    def __init__(
        self,
        stable_offsets: Mapping[Partition, int],
        completable_fetches: CompletableFetches,
        timers: Timers[_DelayedFetchBase],
        connection: WaitingConnection | None,
        respond_nowait: Callable[[], bool],
    ) -> None:
        super().__init__(completable_fetches, timers, connection, respond_nowait)
        self._stable_offsets = stable_offsets

    def visible(self, partition: Partition, size_bytes: int) -> None:
        if partition.log.last_stable_offset > self._stable_offsets[partition]:
            self._wake()
