"""All partitions that this node follows, and their fetchers.

Each leader's broker has num.replica.fetchers fetchers; the topic id and the partition determine the
fetcher of a partition. A fetcher starts with its first partition and ends after its last.
`role_changed` takes the leader and leader epoch of a partition from the metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import trio

from odradek.replication.controller.image import MetadataImage
from odradek.replication.fetching.fetch_session_handler import TopicIdAndPartition
from odradek.replication.fetching.replica_fetcher import ReplicaFetcher, ReplicaFetcherConfig
from odradek.replication.partition.follower_role import (
    FollowerRole,
    LogChanger,
    NoRemoteTier,
    RemoteTier,
)
from odradek.replication.partition.follower_state import LogChange
from odradek.replication.partition.partition import Partition
from odradek.replication.replication_quota import ReplicationQuota
from odradek.seams.clock import Clock
from odradek.seams.containment import Containment
from odradek.seams.network import Address, Network
from odradek.seams.values import value_class

_Name = tuple[str, int]


class _FollowedPartition:
    """Followed partition, its role and its fetcher."""

    __slots__ = ("fetcher", "key", "role")

    def __init__(self, key: TopicIdAndPartition, role: FollowerRole) -> None:
        self.key = key
        self.role = role
        self.fetcher: ReplicaFetcher | None = None


@value_class
class ReplicaFetcherNode:
    """Identity and services of the node. `listener` is inter.broker.listener.name."""

    id: int
    listener: str
    image: Callable[[], MetadataImage]
    broker_epoch: Callable[[], int]
    network: Network
    clock: Clock


class ReplicaFetcherManager:
    """Starts and stops fetchers. All methods except `run` are synchronous, on the loop."""

    def __init__(
        self,
        node: ReplicaFetcherNode,
        *,
        settings: Callable[[], ReplicaFetcherConfig],
        quota: ReplicationQuota,
        logs: LogChanger,
        on_role: Callable[[Partition], None],
        tier: RemoteTier | None = None,
    ) -> None:
        """`quota` is that of follower.replication.throttled.rate.

        `on_role` is called with the partition when a deferred role takes effect after a change of
        its log.
        """
        self.node_id = node.id
        self.quota = quota
        self.network = node.network
        self.clock = node.clock
        self._node = node
        self._settings = settings
        self._logs = logs
        self._tier = NoRemoteTier() if tier is None else tier
        self._on_role = on_role
        self._followed: dict[_Name, _FollowedPartition] = {}
        self._by_key: dict[TopicIdAndPartition, _FollowedPartition] = {}
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._running: dict[tuple[int, int], ReplicaFetcher] = {}
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._changing: Containment[FollowerRole] = Containment(
            "changing the log",
            lambda role, error: role.stop(),
            name=lambda role: f"{role.partition.topic}-{role.partition.index}",
            consequence="partition marked as failed",
        )

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def is_catching_up(self) -> bool:
        """Whether any partition is behind its leader or has not fetched yet."""
        return any(followed.role.is_behind for followed in self._followed.values())

    def follower_role(self, topic: str, index: int) -> FollowerRole | None:
        """Return the role of a followed partition; None if it is not followed."""
        followed = self._followed.get((topic, index))
        return None if followed is None else followed.role

    # Metadata

    def role_changed(self, partition: Partition) -> None:
        """Follow the leader, or stop if this node leads or there is no leader."""
        name = (partition.topic, partition.index)
        followed = self._followed.get(name)
        if followed is not None and followed.role.partition is not partition:
            self.gone(*name)
            followed = None
        if partition.is_leader:
            self.gone(*name)
        elif partition.leader < 0:
            if followed is not None:
                followed.role.stop()
                self._assign(followed, None)
        else:
            self._follow(followed or self._begin(name, partition))

    def gone(self, topic: str, index: int) -> None:
        """Stop: the replica was removed, its log directory is offline, or this node leads."""
        followed = self._followed.pop((topic, index), None)
        if followed is not None:
            del self._by_key[followed.key]
            followed.role.stop()
            self._assign(followed, None)

    def brokers_changed(self) -> None:
        """Handle changes of brokers' addresses and registrations."""
        for fetcher in self._fetchers.values():
            fetcher.brokers_changed()

    def settings_changed(self) -> None:
        """Apply a new num.replica.fetchers; other configs are read when used."""
        for followed in self._followed.values():
            if followed.fetcher is not None:
                self._follow(followed)

    def _begin(self, name: _Name, partition: Partition) -> _FollowedPartition:
        role = FollowerRole(
            partition,
            self._logs,
            self._tier,
            self.clock,
            back_off_ms=self.settings.back_off_ms,
            on_role=self._on_role,
        )
        key = (partition.topic_id, partition.index)
        followed = self._followed[name] = self._by_key[key] = _FollowedPartition(key, role)
        return followed

    def _follow(self, followed: _FollowedPartition) -> None:
        partition, role = followed.role.partition, followed.role
        fetcher = self._fetcher_for(partition.leader, followed.key)
        is_same = fetcher is followed.fetcher and role.leader_epoch == partition.leader_epoch
        role.follow(partition.leader_epoch)
        if not is_same:
            self._assign(followed, fetcher)

    def _assign(self, followed: _FollowedPartition, fetcher: ReplicaFetcher | None) -> None:
        before, followed.fetcher = followed.fetcher, fetcher
        if before is not None and before is not fetcher:
            before.remove(followed.key)
            followed.role.state.forget_pending()
        if fetcher is not None:
            fetcher.add(followed.key, followed.role)
        self._changed.set()

    # Fetchers

    def _fetcher_for(self, leader: int, key: TopicIdAndPartition) -> ReplicaFetcher:
        topic_id, index = key
        place = (leader, _spread(topic_id, index) % self.settings.fetchers)
        fetcher = self._fetchers.get(place)
        if fetcher is None:
            fetcher = self._fetchers[place] = ReplicaFetcher(*place, self)
        return fetcher

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the fetchers until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                self._changed = trio.Event()
                for place, fetcher in tuple(self._fetchers.items()):
                    if not len(fetcher):
                        fetcher.stop()
                        del self._fetchers[place]
                    elif self._running.get(place) is not fetcher:
                        self._nursery.start_soon(fetcher.run)
                self._running = dict(self._fetchers)
                await self._changed.wait()

    # State that the fetchers use (FetcherContext)

    @property
    def broker_epoch(self) -> int:
        return self._node.broker_epoch()

    @property
    def settings(self) -> ReplicaFetcherConfig:
        return self._settings()

    def address_of(self, broker_id: int) -> Address | None:
        """Return the inter-broker address of a broker; None if it is unknown."""
        broker = self._node.image().brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(self._node.listener)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)

    def change(self, key: TopicIdAndPartition, role: FollowerRole, change: LogChange) -> None:
        """Apply the change in a task, then recheck the partition."""
        assert self._nursery is not None, "`run` starts it before the fetchers"
        self._nursery.start_soon(self._changing.run, role, self._apply_change, key, role, change)

    async def _apply_change(
        self, key: TopicIdAndPartition, role: FollowerRole, change: LogChange
    ) -> None:
        await role.apply_change(change)
        followed = self._by_key.get(key)
        if followed is not None and followed.fetcher is not None:
            followed.fetcher.recheck(key)


def _spread(topic_id: UUID, index: int) -> int:
    """Return a number that distributes the partitions of a topic evenly over the fetchers."""
    return topic_id.int % (1 << 31) + index
