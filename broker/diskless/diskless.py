"""Diskless topics of a broker: creates their parts and forwards changes of the cluster to them (KIP-1150, KIP-1163,
KIP-1164).

    DisklessCoordinators: replicas of `__diskless_metadata` on this broker
      → CoordinatorService: requests to them
      → CoordinatorRequests: requests of this broker to the coordinators of the cluster
      → Maintenance: hand-over and deletion of files, scan for orphans, retention
        → WalWriter: writes the batches of the clients of this broker
        → DisklessLogReader, DisklessOffsets: reads for the clients of this broker

It is imported only if `diskless.storage.system.enable` is true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from odradek.broker.coordination.internal_topics import DISKLESS_METADATA_TOPIC
from odradek.broker.diskless.coordinator_requests import CoordinatorRequests
from odradek.broker.diskless.coordinator_service import CoordinatorService
from odradek.broker.diskless.coordinators import DisklessCoordinators
from odradek.broker.diskless.log_reader import DisklessLogReader
from odradek.broker.diskless.maintenance import Maintenance
from odradek.broker.diskless.offset_queries import DisklessOffsets
from odradek.broker.diskless.settings import (
    DisklessSettings,
    TopicLogConfigs,
    check_store,
    open_store,
)
from odradek.broker.diskless.snapshots import SnapshotEnvironment
from odradek.broker.diskless.state_store import new_state_store
from odradek.broker.diskless.wal_writer import WalWriter, WalWriterSettings
from odradek.broker.network.broker_connections import BrokerConnections
from odradek.replication.controller.image import MetadataDelta
from odradek.replication.partition.partition import Partition
from odradek.storage.diskless.object_cache import ObjectCache

if TYPE_CHECKING:
    from odradek.broker.environment import NodeEnvironment
    from odradek.seams.objects import Objects


async def open_diskless(environment: NodeEnvironment) -> Diskless:
    """Create the parts; sends no request yet. Raises WrongConfig for invalid configs."""
    return Diskless(environment, await open_store(environment))


class Diskless:
    """Parts of diskless topics. `run` comes before the partitions are opened."""

    def __init__(self, environment: NodeEnvironment, objects: Objects) -> None:
        """`objects` is the store of the WAL files."""
        self.objects = objects
        self.settings = DisklessSettings(environment.config)
        self._seams = environment.seams
        states = new_state_store(
            environment.seams, environment.cluster_id, self.settings.producer_id_expiration_ms
        )
        self.coordinators = DisklessCoordinators(environment, states)
        self.service = CoordinatorService(self.coordinators, lambda: environment.metadata.image)
        self.requests = CoordinatorRequests(
            environment.node_id,
            lambda: environment.metadata.image,
            environment.seams.clock,
            self.service,
            self.coordinators.notify,
            lambda purpose: BrokerConnections(
                environment.seams.network,
                lambda: environment.metadata.image,
                lambda: environment.config.inter_broker_listener,
                client_id=f"broker-{environment.node_id}-diskless-{purpose}",
            ),
        )
        self.coordinators.snapshots = SnapshotEnvironment(
            environment.node_id,
            environment.seams.files,
            environment.seams.clock,
            environment.seams.offload,
            self.settings,
            self.requests.fetch_snapshot,
            lambda: [str(each.path) for each in environment.directories.live],
            self.requests.replicas_of,
            self.requests.in_sync_replicas_of,
        )
        self.service.snapshots = self.coordinators.read_snapshot
        self.maintenance = Maintenance(environment, self.coordinators, self.requests, objects)
        self.cache = ObjectCache(self.settings.object_cache_bytes_max)
        self.writer = WalWriter(
            environment.node_id,
            environment.seams,
            objects,
            self.requests,
            WalWriterSettings(
                self.settings.commit_interval_seconds, self.settings.buffer_bytes_max
            ),
            self.cache,
        )
        self.log_configs = TopicLogConfigs(
            lambda topic: environment.metadata.image.topic_configs(topic),
            environment.config.log_config,
        )
        self.reader = DisklessLogReader(
            self.requests,
            objects,
            self.cache,
            environment.seams,
            lambda: environment.metadata.image,
            is_local=self._has_state_of,
            poll_seconds=lambda: self.settings.fetch_poll_interval_seconds,
        )
        self.offsets = DisklessOffsets(self.requests, self.reader, environment.seams.offload)
        self.coordinators.add_commit_listener(self.reader.committed)

    def _has_state_of(self, coordinator_id: int) -> bool:
        """Whether this broker has a replica of a coordinator, whose state can be read."""
        coordinator = self.coordinators.find(coordinator_id)
        return coordinator is not None and coordinator.has_state

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run all parts until cancelled."""
        async with trio.open_nursery() as nursery:
            self.requests.start(nursery)
            nursery.start_soon(check_store, self.objects, self._seams)
            await nursery.start(self.coordinators.run)
            nursery.start_soon(self.maintenance.run)
            await nursery.start(self.writer.run)
            await nursery.start(self.reader.run)
            task_status.started()

    # Changes of the cluster

    def role_changed(self, partition: Partition) -> None:
        """The replica was opened, or its role changed."""
        if partition.topic == DISKLESS_METADATA_TOPIC:
            self.coordinators.role_changed(partition)

    def partition_gone(self, topic: str, index: int) -> None:
        """The replica was removed, or its log directory is offline."""
        if topic == DISKLESS_METADATA_TOPIC:
            self.coordinators.partition_gone(index)

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Apply a metadata delta, after the partitions have it."""
        self.log_configs.forget(topic.name for topic in delta.deleted_topics.values())
        self.coordinators.metadata_changed(delta)
        self.requests.metadata_changed(delta)
        self.reader.metadata_changed(delta)
