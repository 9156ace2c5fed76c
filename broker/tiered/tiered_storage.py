"""Tiered storage of a broker (KIP-405): creates its parts and forwards changes of the cluster to
them.

    RemoteStorageManager, RemoteLogMetadataManager
      → RemoteLogManager: tasks per partition
      → RemoteReadService: Fetch and ListOffsets
      → AuxiliaryState: followers whose leader has deleted local segments
      → RemotePartitionRemover: segments of deleted topics

It is imported only if `remote.log.storage.system.enable` is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from odradek.broker.lifecycle.errors import CannotStart, WrongConfig
from odradek.broker.tiered.remote_log_manager import RemoteLogManager
from odradek.broker.tiered.remote_read_service import RemoteReadService
from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.replication.controller import image as images
from odradek.replication.controller.image import MetadataDelta
from odradek.replication.partition.follower_role import RemoteTier
from odradek.replication.partition.partition import Partition
from odradek.replication.tiered.auxiliary_state import AuxiliaryState
from odradek.replication.tiered.metadata_manager_settings import read_settings
from odradek.replication.tiered.metadata_snapshots import MetadataSnapshots
from odradek.replication.tiered.metadata_topic import UnusableMetadataTopic
from odradek.replication.tiered.partition_remover import (
    DeletedTopics,
    RemotePartitionRemover,
    RemoverSettings,
    TopicState,
)
from odradek.replication.tiered.topic_metadata_manager import TopicBasedRemoteLogMetadataManager
from odradek.seams.offload import OBJECTS_LANE
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.storage.tiered.remote_storage_settings import open_remote_storage
from odradek.storage.tiered.segment_metadata import TopicIdPartition

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig
    from odradek.broker.environment import NodeEnvironment
    from odradek.broker.network.listeners import BoundListener
    from odradek.broker.replicas.partition_table import PartitionTable
    from odradek.storage.log_manager.log_manager import LogManager
    from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager

METADATA_MANAGER = "remote.log.metadata.manager.class.name"
TOPIC_BASED = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)
LISTENER = "remote.log.metadata.manager.listener.name"
REMEMBERED_STORE = "remote-store"
METADATA_PREFIX = "remote.log.metadata."
METADATA_IMPL_PREFIX = "remote.log.metadata.manager.impl.prefix"


async def open_tiered_storage(
    environment: NodeEnvironment,
    logs: LogManager,
    partitions: PartitionTable,
    endpoints: Sequence[BoundListener],
) -> TieredStorage:
    """Create the parts after the listeners are bound; sends no request yet. Raises WrongConfig for
    invalid configs."""
    config, seams = environment.config, environment.seams
    if config.get_str(METADATA_MANAGER) != TOPIC_BASED:
        raise WrongConfig(f"{METADATA_MANAGER} can only be {TOPIC_BASED}")
    try:
        settings = read_settings(
            metadata_properties(config),
            node_id=environment.node_id,
            bootstrap=_own_address(config, endpoints),
        )
        opened = partial(
            open_remote_storage,
            config.layers.effective(),
            seams,
            cluster_id=environment.cluster_id,
            remembered_in=environment.directories.metadata.path / REMEMBERED_STORE,
        )
        storage = await seams.offload.run(opened, lane=OBJECTS_LANE)
    except ValueError as error:
        raise WrongConfig(str(error)) from None
    snapshots = MetadataSnapshots(seams, environment.directories.metadata.path)
    metadata = TopicBasedRemoteLogMetadataManager(seams, settings, snapshots)
    return TieredStorage(environment, logs, partitions, storage, metadata)


def metadata_properties(config: ServerConfig) -> dict[str, str]:
    """Properties of the RemoteLogMetadataManager (T-05): `remote.log.metadata.*`, and those with
    its own prefix, without the prefix."""
    texts, prefix = config.layers.effective(), config.get_str(METADATA_IMPL_PREFIX)
    named = {name: text for name, text in texts.items() if name.startswith(METADATA_PREFIX)}
    own = {
        name.removeprefix(prefix): text for name, text in texts.items() if name.startswith(prefix)
    }
    return {**named, **own}


def _own_address(config: ServerConfig, endpoints: Sequence[BoundListener]) -> str:
    """Address of the listener for the clients of the RemoteLogMetadataManager (T-06)."""
    wanted = config.get_str(LISTENER).upper()
    return next(str(each.address) for each in endpoints if each.name == wanted)


def remover_settings(config: ServerConfig) -> RemoverSettings:
    settings = RemoteLogSettings(config)
    return RemoverSettings(
        interval_s=config.get_int("remote.partition.remover.task.interval.ms") / 1000,
        backoff_s=settings.back_off_seconds,
        backoff_max_s=settings.back_off_max_seconds,
        jitter=settings.jitter,
    )


class TieredStorage:
    """Parts of tiered storage. All but `run` is synchronous, on the event loop."""

    def __init__(
        self,
        environment: NodeEnvironment,
        logs: LogManager,
        partitions: PartitionTable,
        storage: RemoteStorageManager,
        metadata: TopicBasedRemoteLogMetadataManager,
    ) -> None:
        self.storage = storage
        self.metadata = metadata
        self.manager = RemoteLogManager(
            environment.node_id,
            storage,
            metadata,
            logs,
            environment.seams,
            environment.metrics,
            RemoteLogSettings(environment.config),
            topic_exists=lambda topic_id: topic_id in environment.metadata.image.topics_by_id,
            tiering_of=lambda topic_id: environment.metadata.image.tiering_of(topic_id),
        )
        self.tier: RemoteTier = AuxiliaryState(
            metadata, storage, environment.seams.offload, on_built=self._built
        )
        """Source of auxiliary state for followers."""
        self.reads = RemoteReadService(environment, storage, metadata)
        environment.metrics.gauge(
            "RemoteLogMetadataDamagedCount", lambda: self.metadata.damaged_partitions
        )
        self._environment = environment
        self._partitions = partitions
        self._deleted = DeletedTopics()
        self._remover = RemotePartitionRemover(
            metadata,
            storage,
            environment.seams,
            remover_settings(environment.config),
            node_id=environment.node_id,
            topic_state=self._topic_state,
        )

    def _topic_state(self, partition: TopicIdPartition, first_ms: int) -> TopicState:
        """Whether the partition's topic was deleted."""
        cluster = self._environment.metadata
        now_ms = self._environment.seams.clock.wall_ms() if cluster.is_active else None
        return self._deleted.topic_state(cluster.image, partition.topic_id, first_ms, now_ms=now_ms)

    def _built(self, topic: str, has_failed: bool) -> None:
        self._environment.metrics.meter("BuildRemoteLogAuxStateRequestsPerSec", topic=topic).mark()
        if has_failed:
            self._environment.metrics.meter(
                "BuildRemoteLogAuxStateErrorsPerSec", topic=topic
            ).mark()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Raises CannotStart if the metadata topic is unusable."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._close_at_the_end)
            nursery.start_soon(self._keep_metadata)
            await nursery.start(self.reads.run)
            await nursery.start(self.manager.run)
            await nursery.start(self._remover.run)
            task_status.started()

    async def _keep_metadata(self) -> None:
        try:
            await self.metadata.run()
        except* UnusableMetadataTopic as unusable:
            raise CannotStart(f"tiered storage: {unusable.exceptions[0]}") from None

    async def _close_at_the_end(self) -> None:
        """Close the store, so that copies in progress end."""
        try:
            await trio.sleep_forever()
        finally:
            self.storage.close()

    # Changes of the cluster

    def role_changed(self, partition: Partition) -> None:
        """The replica was opened, or its role changed."""
        if partition.topic == METADATA_TOPIC:
            if partition.is_leader:
                self.metadata.lead_metadata(partition.index)
            else:
                self.metadata.resign_metadata(partition.index)
        else:
            self.manager.role_changed(partition)

    def gone(self, topic: str, index: int) -> None:
        """The replica was removed, or its log directory is offline."""
        if topic == METADATA_TOPIC:
            self.metadata.resign_metadata(index)
        else:
            self.manager.gone(topic, index)
            self.reads.gone(topic, index)

    def topics_deleted(self, delta: MetadataDelta) -> None:
        """Delete the remote segments of deleted topics; call it before their replicas are removed."""
        if self._deleted.metadata_changed(delta):
            self._remover.topics_deleted(delta.deleted_topics)

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Apply changed configs and tiered epochs, after the logs have the configs.

        If the image was loaded from a snapshot, the tiered epoch may change while the configs are equal: the topic was
        disabled and enabled again in between.
        """
        if any(kind == images.BROKER for kind, _ in delta.changed_configs):
            self.manager.configs_changed()
        topics = {name for kind, name in delta.changed_configs if kind == images.TOPIC}
        topics |= _with_changed_tiering(delta)
        if topics:
            for partition in self._partitions:
                if partition.topic in topics:
                    self.role_changed(partition)


def _with_changed_tiering(delta: MetadataDelta) -> set[str]:
    """Names of the topics whose tiering changed."""
    before, after = delta.before, delta.image
    if after.tiering is before.tiering:
        return set()
    return {
        after.topics_by_id[topic_id].name
        for topic_id, tiering in after.tiering.items()
        if tiering != before.tiering_of(topic_id) and topic_id in after.topics_by_id
    }
