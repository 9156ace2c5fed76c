"""Polls for waiting fetches of diskless partitions: completes them when batches are committed (KIP-1163).

A commit that is applied on this broker is seen at once if the broker has a replica of the coordinator: its listener
names the partition, and the state here is asked. Other coordinators are asked every `diskless.fetch.poll.interval.ms`,
once for all waiting fetches of the broker. One request per leader is in flight; what is due meanwhile is in the next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

import trio

from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.diskless_apis import DisklessFindBatchesPartitionResponse
from odradek.seams.clock import Clock
from odradek.seams.containment import STARTED_AGAIN, Containment
from odradek.storage.diskless.queries import FindPosition

if TYPE_CHECKING:
    from odradek.replication.controller.image import MetadataDelta

Found = DisklessFindBatchesPartitionResponse
DisklessKey = tuple[UUID, int]
"""Topic id and index of a partition."""

COMMITS_MAX: Final = 100_000
"""Partitions whose last commit is remembered."""


_THIS_BROKER: Final = -2


class WaitingFetch(Protocol):
    """Waiting fetch in purgatory."""

    def visible_diskless(self, size_bytes: int) -> None:
        """Batches of that size have been committed since the fetch began to wait."""
        ...

    def resume(self) -> None:
        """Let the fetch read again."""
        ...


class PolledFetch(Protocol):
    """The diskless partitions of a fetch, and the last known batches of each."""

    found: dict[DisklessKey, Found]

    @property
    def found_at(self) -> int:
        """Value of `FetchPolls.now` before the batches were found."""
        ...

    @property
    def positions(self) -> Mapping[DisklessKey, FindPosition]: ...


class Routes(Protocol):
    """Looks up the coordinator of a partition, and its leader."""

    def coordinator_of(self, topic_id: UUID, index: int) -> int | None: ...

    def leader_of(self, coordinator_id: int) -> int: ...


def is_known(found: Found | None) -> bool:
    """Whether it is the result of a coordinator that is available and has the partition."""
    return found is not None and found.error_code in (
        ErrorCode.none,
        ErrorCode.offset_out_of_range,
    )


class _Waiter:
    """A fetch while it waits."""

    __slots__ = ("counted_bytes", "fetch", "wait")

    def __init__(self, fetch: PolledFetch, wait: WaitingFetch) -> None:
        self.fetch = fetch
        self.wait = wait
        self.counted_bytes = {key: _size(found) for key, found in fetch.found.items()}

    def update(self, key: DisklessKey, found: Found) -> None:
        """Take over newer batches of a partition, and count their bytes."""
        known = self.fetch.found.get(key)
        if known is not None and found.high_watermark < known.high_watermark:
            return  # from a replica that is behind
        self.fetch.found[key] = found
        if found.error_code is not ErrorCode.none:
            self.wait.resume()
            return
        size_bytes = _size(found)
        more_bytes = size_bytes - self.counted_bytes.get(key, 0)
        self.counted_bytes[key] = size_bytes
        if more_bytes > 0:
            self.wait.visible_diskless(more_bytes)


def _size(found: Found) -> int:
    return sum(batch.byte_size for batch in found.batches)


class _WatchedPartition:
    """A partition that fetches wait for."""

    __slots__ = ("coordinator", "waiters")

    def __init__(self, coordinator: int | None) -> None:
        self.coordinator = coordinator
        self.waiters: dict[PolledFetch, _Waiter] = {}


class FetchPolls:
    """The waiting fetches of a broker that have diskless partitions. Runs on the event loop."""

    def __init__(
        self,
        find: Callable[[Sequence[FindPosition]], Awaitable[Sequence[Found]]],
        routes: Routes,
        is_local: Callable[[int], bool],
        clock: Clock,
        interval_seconds: Callable[[], float],
    ) -> None:
        """`is_local` returns whether this broker has a replica of a coordinator, whose state it can ask."""
        self._find = find
        self._routes = routes
        self._is_local = is_local
        self._clock = clock
        self._interval_seconds = interval_seconds
        self.now = 0
        """Number of commits that were seen so far."""
        self._commits: dict[DisklessKey, int] = {}
        self._forgotten_to = 0
        self._watched: dict[DisklessKey, _WatchedPartition] = {}
        self._by_coordinator: dict[int, dict[DisklessKey, None]] = {}
        """Partitions of `_watched` by coordinator."""
        self._unknown: dict[DisklessKey, None] = {}
        """Partitions of `_watched` whose coordinator was not available when it was asked last."""
        self._committed: dict[DisklessKey, None] = {}
        """Partitions of `_watched` that had a commit and were not polled since."""
        self._has_commits = trio.Event()
        self._is_watched = trio.Event()
        self._polled_leaders: dict[int, None] = {}
        """Leaders of coordinators with a request in flight."""
        self._tasks: Containment[str] = Containment(
            "polling for batches of diskless topics", consequence=STARTED_AGAIN
        )

    def __len__(self) -> int:
        """Number of partitions that fetches wait for."""
        return len(self._watched)

    def watch(self, fetch: PolledFetch, wait: WaitingFetch) -> None:
        """Count new batches of all partitions of the fetch from `found_at` on, until `unwatch`."""
        waiter = _Waiter(fetch, wait)
        for key in fetch.positions:
            watched = self._watched.get(key)
            if watched is None:
                watched = self._watched[key] = _WatchedPartition(self._routes.coordinator_of(*key))
                if watched.coordinator is not None:
                    self._by_coordinator.setdefault(watched.coordinator, {})[key] = None
            watched.waiters[fetch] = waiter
            if not is_known(fetch.found.get(key)):
                self._unknown[key] = None
            elif self.is_changed_since(key, fetch.found_at):
                self._committed[key] = None
                self._has_commits.set()
        self._is_watched.set()

    def unwatch(self, fetch: PolledFetch) -> None:
        for key in fetch.positions:
            watched = self._watched.get(key)
            if watched is None or watched.waiters.pop(fetch, None) is None or watched.waiters:
                continue
            del self._watched[key]
            self._unknown.pop(key, None)
            self._committed.pop(key, None)
            if watched.coordinator is not None:
                of_coordinator = self._by_coordinator[watched.coordinator]
                del of_coordinator[key]
                if not of_coordinator:
                    del self._by_coordinator[watched.coordinator]

    def committed(self, topic_id: UUID, index: int) -> None:
        """A commit of the partition was applied on this broker, or was made by it."""
        key = (topic_id, index)
        self.now += 1
        if len(self._commits) >= COMMITS_MAX:
            self._commits.clear()
            self._forgotten_to = self.now
        self._commits[key] = self.now
        if key in self._watched:
            self._committed[key] = None
            self._has_commits.set()

    def is_changed_since(self, key: DisklessKey, now: int) -> bool:
        """Whether the partition may have had a commit since `now` had that value."""
        return now < max(self._forgotten_to, self._commits.get(key, 0))

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Resume the fetches of deleted topics, which return an error."""
        if not self._watched:
            return
        for topic_id, topic in delta.deleted_topics.items():
            for index in topic.partitions:
                watched = self._watched.get((topic_id, index))
                if watched is not None:
                    for waiter in tuple(watched.waiters.values()):
                        waiter.wait.resume()

    async def run(self) -> None:
        """Poll for waiting fetches until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tasks.keep_running, "commits", self._poll_commits, nursery)
            nursery.start_soon(self._tasks.keep_running, "interval", self._poll_often, nursery)

    async def _poll_commits(self, nursery: trio.Nursery) -> None:
        while True:
            await self._has_commits.wait()
            self._has_commits = trio.Event()
            committed, self._committed = self._committed, {}
            local: list[DisklessKey] = []
            remote: dict[int, list[DisklessKey]] = {}
            for key in committed:
                coordinator = self._watched[key].coordinator
                if coordinator is None:
                    continue
                if self._is_local(coordinator):
                    local.append(key)
                else:
                    remote.setdefault(self._routes.leader_of(coordinator), []).append(key)
            self._start_remote(remote, nursery)
            await self._poll(local)

    async def _poll_often(self, nursery: trio.Nursery) -> None:
        while True:
            if not self._watched:
                self._is_watched = trio.Event()
                await self._is_watched.wait()
            await self._clock.sleep(self._interval_seconds())
            remote: dict[int, list[DisklessKey]] = {}
            for coordinator, keys in self._by_coordinator.items():
                if not self._is_local(coordinator):
                    leader = self._routes.leader_of(coordinator)
                    remote.setdefault(leader, []).extend(keys)
            if local := [key for key in self._unknown if self._is_local_key(key)]:
                remote[_THIS_BROKER] = local  # in a task of its own, because it may take long
            self._start_remote(remote, nursery)

    def _is_local_key(self, key: DisklessKey) -> bool:
        coordinator = self._watched[key].coordinator
        return coordinator is not None and self._is_local(coordinator)

    def _start_remote(self, remote: Mapping[int, list[DisklessKey]], nursery: trio.Nursery) -> None:
        for leader, keys in remote.items():
            if leader not in self._polled_leaders:
                self._polled_leaders[leader] = None
                nursery.start_soon(self._poll_leader, leader, keys)

    async def _poll_leader(self, leader: int, keys: Sequence[DisklessKey]) -> None:
        try:
            await self._tasks.run(f"broker {leader}", self._poll, keys)
        finally:
            del self._polled_leaders[leader]

    async def _poll(self, keys: Iterable[DisklessKey]) -> None:
        """Find the batches of these partitions for all fetches that wait for them."""
        polled: dict[FindPosition, list[_Waiter]] = {}
        for key in keys:
            watched = self._watched.get(key)
            if watched is not None:
                for fetch, waiter in watched.waiters.items():
                    polled.setdefault(fetch.positions[key], []).append(waiter)
        if not polled:
            return
        results = await self._find(list(polled))
        for (position, waiters), found in zip(polled.items(), results, strict=True):
            key = (position.topic_id, position.index)
            watched = self._watched.get(key)
            if watched is None:
                continue
            if not is_known(found):
                self._unknown[key] = None
                continue
            self._unknown.pop(key, None)
            for waiter in waiters:
                if watched.waiters.get(waiter.fetch) is waiter:
                    waiter.update(key, found)
