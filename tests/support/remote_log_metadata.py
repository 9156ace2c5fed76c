"""Simulated brokers, each with a TopicBasedRemoteLogMetadataManager and a RemotePartitionRemover.

The managers connect to the brokers over the virtual network, and are stopped with their nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import trio

from odradek.client.admin import NewTopic, create_topics, delete_topics
from odradek.client.metadata import Cluster, open_cluster
from odradek.replication.controller.image import MetadataDelta
from odradek.replication.tiered.metadata_manager_settings import (
    MetadataManagerSettings,
    read_settings,
)
from odradek.replication.tiered.metadata_snapshots import MetadataSnapshots
from odradek.replication.tiered.partition_remover import (
    DeletedTopics,
    RemotePartitionRemover,
    RemoverSettings,
    TopicState,
)
from odradek.replication.tiered.topic_metadata_manager import TopicBasedRemoteLogMetadataManager
from odradek.seams.files import Buffer, Path
from odradek.storage.tiered.errors import RemoteStorageUnavailable
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.storage.tiered.remote_storage_manager import IndexType, LogSegmentData
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from odradek.testing.power import NodeCrashed
from odradek.testing.simulation.cluster import CLIENTS, PORT, SimulatedCluster, host
from odradek.testing.simulation.plan import DATA
from odradek.testing.simulation.trace import Trace
from odradek.testing.virtual_world import VirtualWorld

PROPERTIES = {
    "remote.log.metadata.topic.num.partitions": "3",
    "remote.log.metadata.topic.replication.factor": "3",
    "remote.log.metadata.common.client.request.timeout.ms": "2000",
    "remote.log.metadata.producer.delivery.timeout.ms": "20000",
    "remote.log.metadata.consume.wait.ms": "20000",
}
SMALL = {
    "remote.log.metadata.topic.replication.factor": "1",
    "remote.log.metadata.topic.min.isr": "1",
}
"""Properties for a cluster of one broker."""


class DeletionOnlyStore:
    """Remote storage manager that records deletions, and may be unavailable."""

    def __init__(self) -> None:
        self.objects: set[UUID] = set()
        self.deletions: list[UUID] = []
        self.is_unavailable = False
        self.summaries_removed: list[TopicIdPartition] = []
        self.before_deletion: Callable[[], None] = lambda: None

    def copy_segment(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        self.objects.add(metadata.id.id)

    def fetch_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int | None = None
    ) -> Buffer:
        return b""

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> Buffer:
        return b""

    def delete_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        if self.is_unavailable:
            raise RemoteStorageUnavailable("the store is unavailable")
        self.before_deletion()
        self.deletions.append(metadata.id.id)
        self.objects.discard(metadata.id.id)

    def has_any_of(self, partition: TopicIdPartition) -> bool:
        return bool(self.objects)

    def check_access(self) -> None: ...

    def put_summary(self, partition: TopicIdPartition, leader_epoch: int, data: bytes) -> None: ...

    def remove_summaries(self, partition: TopicIdPartition) -> None:
        self.summaries_removed.append(partition)

    def close(self) -> None:
        pass


@dataclass
class RunningManager:
    """Manager and remover of a running node."""

    manager: TopicBasedRemoteLogMetadataManager
    remover: RemotePartitionRemover
    deleted: DeletedTopics
    settings: MetadataManagerSettings
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    failure: BaseException | None = None


class MetadataWorld:
    def __init__(
        self, world: VirtualWorld, nodes: int, nursery: trio.Nursery, properties: Mapping[str, str]
    ) -> None:
        self.world = world
        self.cluster = SimulatedCluster(world, nodes, Trace(world.clock.monotonic), nursery)
        self.properties = {**PROPERTIES, **(SMALL if nodes == 1 else {}), **properties}
        self.store = DeletionOnlyStore()
        self.removes = False
        """Whether missing topics count as deleted. Most tests use topics that do not exist."""
        self.running: dict[int, RunningManager] = {}
        self.client: Cluster
        self._nursery = nursery

    # Start and stop

    async def start(self, *numbers: int) -> None:
        """Start nodes, and wait until the brokers serve; their managers may not be ready yet."""
        for number in numbers:
            await self.cluster.start(number)
        for number in numbers:
            await self.start_broker(number)
            self.running[number] = self._new_manager(number)
            self._nursery.start_soon(self._run_manager, number, self.running[number])

    async def start_broker(self, number: int) -> None:
        await self.cluster.start(number)
        while not self.cluster.nodes[number].serves:
            await trio.sleep(0.01)

    def _new_manager(self, number: int) -> RunningManager:
        virtual_node = self.cluster.nodes[number].virtual_node
        assert virtual_node is not None
        settings = read_settings(
            self.properties, node_id=number, bootstrap=f"{host(number)}:{PORT}"
        )
        snapshots = MetadataSnapshots(virtual_node.seams, Path(DATA), round_s=2.0)
        manager = TopicBasedRemoteLogMetadataManager(virtual_node.seams, settings, snapshots)
        deleted = DeletedTopics()
        remover = RemotePartitionRemover(
            manager,
            self.store,
            virtual_node.seams,
            RemoverSettings(interval_s=5.0, backoff_s=0.1, backoff_max_s=1.0),
            node_id=number,
            topic_state=lambda partition, first_ms: self._topic_state(
                number, deleted, partition, first_ms
            ),
        )
        return RunningManager(manager, remover, deleted, settings)

    def _topic_state(
        self, number: int, deleted: DeletedTopics, partition: TopicIdPartition, first_ms: int
    ) -> TopicState:
        broker = self.cluster.nodes[number].broker
        if broker is None or not self.removes:
            return TopicState.EXISTS
        now_ms = self.world.clock.wall_ms() if broker.metadata.is_active else None
        image = broker.metadata.image
        return deleted.topic_state(image, partition.topic_id, first_ms, now_ms=now_ms)

    async def _run_manager(self, number: int, running_manager: RunningManager) -> None:
        broker = self.cluster.nodes[number].broker
        assert broker is not None

        def changed(delta: MetadataDelta | None = None) -> None:
            if delta is not None and running_manager.deleted.metadata_changed(delta):
                if self.removes:
                    running_manager.remover.topics_deleted(delta.deleted_topics)
                running_manager.manager.stop_partitions(self._gone(running_manager, delta))
            topic = broker.metadata.image.topic(METADATA_TOPIC)
            for index, each in () if topic is None else topic.partitions.items():
                if each.leader == number:
                    running_manager.manager.lead_metadata(index)
                else:
                    running_manager.manager.resign_metadata(index)

        unsubscribe = broker.metadata.subscribe(changed)
        changed()
        try:
            with running_manager.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(running_manager.manager.run)
                    await nursery.start(running_manager.remover.run)
        except* NodeCrashed:
            pass
        except* Exception as group:
            running_manager.failure = group
        finally:
            unsubscribe()
            if self.running.get(number) is running_manager:
                del self.running[number]

    def _gone(
        self, running_manager: RunningManager, delta: MetadataDelta
    ) -> list[TopicIdPartition]:
        """Return the partitions of deleted topics, whose replicas a broker would stop."""
        return [
            each
            for each in running_manager.manager.partitions()
            if each.topic_id in delta.deleted_topics
        ]

    async def kill(self, number: int) -> None:
        running_manager = self.running.pop(number)
        await self.cluster.kill(number)
        running_manager.scope.cancel()

    async def stop(self, number: int) -> None:
        self.running.pop(number).scope.cancel()
        await self.cluster.stop(number)

    def manager(self, number: int) -> TopicBasedRemoteLogMetadataManager:
        return self.running[number].manager

    # Topics and leaders

    async def create(self, topic: str, partitions: int = 1) -> list[TopicIdPartition]:
        (made,) = await self.client.retrying(
            lambda: create_topics(self.client, [NewTopic(topic, partitions)])
        )
        assert made.topic_id is not None
        return [TopicIdPartition(made.topic_id, topic, index) for index in range(partitions)]

    async def delete(self, topic: str) -> None:
        await self.client.retrying(lambda: delete_topics(self.client, [topic]))

    def leader_of(self, index: int) -> int:
        """Return the leader of a metadata partition, or -1."""
        for _, broker in self.cluster.running():
            found = broker.metadata.image.partition(METADATA_TOPIC, index)
            return -1 if found is None else found.leader
        return -1


def run(
    main: Callable[[MetadataWorld], Awaitable[None]],
    nodes: int = 1,
    *,
    seed: int = 5,
    properties: Mapping[str, str] | None = None,
    removes: bool = False,
    before: Callable[[MetadataWorld], Awaitable[None]] | None = None,
    limit_s: float = 300.0,
) -> None:
    """Run `main` with all nodes. `before` runs earlier, with the first broker and no manager."""
    world = VirtualWorld(seed)
    world.clock.jumping = True

    async def run_test() -> None:
        world.wires.set_delay(0.0002, 0.002)
        with trio.fail_after(limit_s):
            async with trio.open_nursery() as nursery:
                found = MetadataWorld(world, nodes, nursery, properties or {})
                found.removes = removes
                network = world.node(CLIENTS).network
                async with open_cluster(network, found.cluster.bootstrap, timeout_s=5) as client:
                    found.client = client
                    if before is not None:
                        await found.start_broker(1)
                        await before(found)
                    await found.start(*range(1, nodes + 1))
                    await main(found)
                assert found.cluster.failures == []
                for number in list(found.running):
                    await found.kill(number)
                nursery.cancel_scope.cancel()

    world.run(run_test)
