"""All partitions that this node follows, and the fetchers that fetch for them.

Of each leader's broker there are num.replica.fetchers fetchers; a partition's is picked by its topic's
id and index. One begins when it gets its first partition and ends when it has none any more. What is
decided comes from outside: `role_changed` for whatever the cluster says of a partition's leader.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import trio

from odradek.replication.controller.image import MetadataImage
from odradek.replication.fetching.fetch_session_handler import TopicIdPartition
from odradek.replication.fetching.replica_fetcher import ReplicaFetcher, ReplicaFetcherConfig
from odradek.replication.partition.follower_role import (
    FollowerRole,
    LogChanger,
    NoRemoteTier,
    RemoteTier,
)
from odradek.replication.partition.follower_state import LogChange
from odradek.replication.partition.partition import Partition
from odradek.replication.quota import ReplicationQuota
from odradek.seams.clock import Clock
from odradek.seams.network import Address, Network

_Name = tuple[str, int]


class _Followed:
    """A partition of the table."""

    __slots__ = ("fetcher", "key", "role")

    def __init__(self, key: TopicIdPartition, role: FollowerRole) -> None:
        self.key = key
        self.role = role
        self.fetcher: ReplicaFetcher | None = None


class ReplicaFetcherManager:
    """See the module. All but `run` is synchronous, on the loop."""

    def __init__(
        self,
        node_id: int,
        *,
        listener: str,
        image: Callable[[], MetadataImage],
        broker_epoch: Callable[[], int],
        settings: Callable[[], ReplicaFetcherConfig],
        quota: ReplicationQuota,
        logs: LogChanger,
        network: Network,
        clock: Clock,
        on_role: Callable[[Partition], None],
        tier: RemoteTier | None = None,
    ) -> None:
        """`listener`: the name of the one that brokers use (inter.broker.listener.name). `quota` is the
        followers' (follower.replication.throttled.rate). `on_role` hears of a partition whose role had
        to wait for a change of its log."""
        self.node_id = node_id
        self.quota = quota
        self.network = network
        self.clock = clock
        self._listener = listener
        self._image = image
        self._broker_epoch = broker_epoch
        self._settings = settings
        self._logs = logs
        self._tier = NoRemoteTier() if tier is None else tier
        self._on_role = on_role
        self._followed: dict[_Name, _Followed] = {}
        self._by_key: dict[TopicIdPartition, _Followed] = {}
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._running: dict[tuple[int, int], ReplicaFetcher] = {}
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def is_catching_up(self) -> bool:
        """Whether any partition had more at its leader when that was last asked, or was not asked yet."""
        return any(followed.role.is_behind for followed in self._followed.values())

    def follower_role(self, topic: str, index: int) -> FollowerRole | None:
        followed = self._followed.get((topic, index))
        return None if followed is None else followed.role

    # What the cluster decides

    def role_changed(self, partition: Partition) -> None:
        """Somebody leads it, or nobody does, or this node: follow or let be."""
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
        """The replica is not here any more, or its directory is offline, or this node leads it."""
        followed = self._followed.pop((topic, index), None)
        if followed is not None:
            del self._by_key[followed.key]
            followed.role.stop()
            self._assign(followed, None)

    def brokers_changed(self) -> None:
        """Brokers have come, gone, or are elsewhere."""
        for fetcher in self._fetchers.values():
            fetcher.brokers_changed()

    def settings_changed(self) -> None:
        """num.replica.fetchers may be another; the rest is looked up when it is used."""
        for followed in self._followed.values():
            if followed.fetcher is not None:
                self._follow(followed)

    def _begin(self, name: _Name, partition: Partition) -> _Followed:
        role = FollowerRole(
            partition,
            self._logs,
            self._tier,
            self.clock,
            back_off_ms=self.settings.back_off_ms,
            on_role=self._on_role,
        )
        key = (partition.topic_id, partition.index)
        followed = self._followed[name] = self._by_key[key] = _Followed(key, role)
        return followed

    def _follow(self, followed: _Followed) -> None:
        partition, role = followed.role.partition, followed.role
        fetcher = self._fetcher_for(partition.leader, followed.key)
        is_same = fetcher is followed.fetcher and role.leader_epoch == partition.leader_epoch
        role.follow(partition.leader_epoch)
        if not is_same:
            self._assign(followed, fetcher)

    def _assign(self, followed: _Followed, fetcher: ReplicaFetcher | None) -> None:
        before, followed.fetcher = followed.fetcher, fetcher
        if before is not None and before is not fetcher:
            before.remove(followed.key)
            followed.role.state.forget_pending()
        if fetcher is not None:
            fetcher.add(followed.key, followed.role)
        self._changed.set()

    # The fetchers

    def _fetcher_for(self, leader: int, key: TopicIdPartition) -> ReplicaFetcher:
        topic_id, index = key
        place = (leader, _spread(topic_id, index) % self.settings.fetchers)
        fetcher = self._fetchers.get(place)
        if fetcher is None:
            fetcher = self._fetchers[place] = ReplicaFetcher(*place, self)
        return fetcher

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fetch, until cancelled."""
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

    # What fetchers ask

    @property
    def broker_epoch(self) -> int:
        return self._broker_epoch()

    @property
    def settings(self) -> ReplicaFetcherConfig:
        return self._settings()

    def address_of(self, broker_id: int) -> Address | None:
        """Where it listens for other brokers, if that is known."""
        broker = self._image().brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)

    def change(self, key: TopicIdPartition, role: FollowerRole, change: LogChange) -> None:
        """Make it, in a task; whoever fetches the partition by then goes on."""
        assert self._nursery is not None, "fetchers run in it"
        self._nursery.start_soon(self._apply_change, key, role, change)

    async def _apply_change(
        self, key: TopicIdPartition, role: FollowerRole, change: LogChange
    ) -> None:
        await role.apply_change(change)
        followed = self._by_key.get(key)
        if followed is not None and followed.fetcher is not None:
            followed.fetcher.recheck(key)


def _spread(topic_id: UUID, index: int) -> int:
    """The partitions of a topic go to the fetchers in turn, whatever it is called."""
    return topic_id.int % (1 << 31) + index
