"""The group coordinator, the transaction coordinator and the marker writer of this node.

Each is created on first use, or when this node becomes the leader of a partition of its internal
topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from odradek.broker.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from odradek.broker.coordination.partition_coordinator_log import PartitionCoordinatorLog
from odradek.replication.controller import image as images
from odradek.replication.controller.features import TRANSACTION_VERSION
from odradek.replication.controller.image import MetadataDelta
from odradek.replication.partition.partition import Partition

if TYPE_CHECKING:
    from odradek.broker.environment import NodeEnvironment
    from odradek.broker.groups.config import ConsumerGroupConfig
    from odradek.broker.groups.coordinator import GroupCoordinator
    from odradek.broker.network.broker_connections import BrokerConnections
    from odradek.broker.replicas.partition_table import PartitionTable
    from odradek.broker.transactions.coordinator import TransactionCoordinator
    from odradek.broker.transactions.markers import TransactionMarkerWriter
    from odradek.broker.transactions.partition_verification import AddPartitionsToTransaction
    from odradek.broker.transactions.producer_ids import ProducerIds


class Coordinators:
    """Creates the coordinators lazily and forwards partition and metadata changes to them.

    `start` must be called first.
    """

    def __init__(
        self,
        environment: NodeEnvironment,
        partitions: Callable[[], PartitionTable],
        producer_ids: ProducerIds,
    ) -> None:
        self._environment = environment
        self._partitions = partitions
        self._producer_ids = producer_ids
        self._nursery: trio.Nursery | None = None
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._markers: TransactionMarkerWriter | None = None
        self._transaction_partitions: AddPartitionsToTransaction | None = None
        self._broker_connections: list[BrokerConnections] = []

    def start(self, nursery: trio.Nursery) -> None:
        """Run the tasks of the coordinators in `nursery`."""
        self._nursery = nursery

    @property
    def groups(self) -> GroupCoordinator:
        if self._groups is None:
            from odradek.broker.groups.config import GroupConfig
            from odradek.broker.groups.consumer.topic_metadata import ConsumerGroupEnvironment
            from odradek.broker.groups.coordinator import GroupCoordinator

            environment = self._environment
            config = GroupConfig.from_configs(environment.config)
            self._groups = GroupCoordinator(
                self._log(OFFSETS_TOPIC),
                config,
                clock=environment.seams.clock,
                entropy=environment.seams.entropy,
                environment=ConsumerGroupEnvironment(
                    config, environment.metadata.image, self._consumer_settings
                ),
            )
            self._groups.start(self._running_nursery)
        return self._groups

    @property
    def transactions(self) -> TransactionCoordinator:
        if self._transactions is None:
            from odradek.broker.transactions.config import TransactionConfig
            from odradek.broker.transactions.coordinator import TransactionCoordinator
            from odradek.broker.transactions.marker_channel_manager import (
                TransactionMarkerChannelManager,
            )

            environment = self._environment
            self._transactions = TransactionCoordinator(
                self._log(TRANSACTIONS_TOPIC),
                TransactionConfig.from_configs(environment.config),
                clock=environment.seams.clock,
                markers=TransactionMarkerChannelManager(
                    lambda: environment.metadata.image,
                    environment.node_id,
                    self.markers,
                    self._new_broker_connections("markers").request,
                    self._running_nursery,
                    timeout_s=self._request_timeout_s,
                ),
                producer_id=self._producer_ids.next,
                transaction_version=self._transaction_version,
            )
            self._transactions.start(self._running_nursery)
        return self._transactions

    @property
    def markers(self) -> TransactionMarkerWriter:
        """Writes transaction markers to the partitions that this node leads."""
        if self._markers is None:
            from odradek.broker.transactions.marker_writer import LocalMarkerWriter

            environment = self._environment
            self._markers = LocalMarkerWriter(
                self._partitions,
                lambda partition, marker: self.groups.complete_transaction(partition, marker),
                environment.seams.clock,
                environment.config.get_int("request.timeout.ms"),
            )
        return self._markers

    @property
    def transaction_partitions(self) -> AddPartitionsToTransaction:
        """Sends AddPartitionsToTxn to the transaction coordinators, local or remote."""
        if self._transaction_partitions is None:
            from odradek.broker.transactions.add_partitions_manager import AddPartitionsToTxnManager

            environment = self._environment
            self._transaction_partitions = AddPartitionsToTxnManager(
                lambda: environment.metadata.image,
                environment.node_id,
                lambda: self.transactions,
                self._new_broker_connections("verification").request,
                self._running_nursery,
                timeout_s=self._request_timeout_s,
            )
        return self._transaction_partitions

    def _new_broker_connections(self, purpose: str) -> BrokerConnections:
        """Connections for one kind of request. A broker serves the requests of a connection in
        order, and WriteTxnMarkers waits for the replicas: other requests must not queue behind
        it."""
        from odradek.broker.network.broker_connections import BrokerConnections

        environment = self._environment
        connections = BrokerConnections(
            environment.seams.network,
            lambda: environment.metadata.image,
            lambda: environment.config.inter_broker_listener,
            client_id=f"broker-{environment.node_id}-{purpose}",
        )
        connections.start(self._running_nursery)
        self._broker_connections.append(connections)
        return connections

    @property
    def _request_timeout_s(self) -> float:
        return self._environment.config.get_int("request.timeout.ms") / 1000

    @property
    def _running_nursery(self) -> trio.Nursery:
        assert self._nursery is not None, "the coordinators are not started"
        return self._nursery

    def _log(self, topic: str) -> PartitionCoordinatorLog:
        environment = self._environment
        return PartitionCoordinatorLog(
            topic,
            self._partitions().opened,
            lambda: environment.metadata.image,
            environment.seams.offload,
        )

    def _consumer_settings(self, group_id: str) -> ConsumerGroupConfig:
        from odradek.broker.groups.config import ConsumerGroupConfig

        environment = self._environment
        overrides = environment.metadata.image.config(images.GROUP, group_id)
        return ConsumerGroupConfig.of(environment.config, overrides)

    def _transaction_version(self) -> int:
        return self._environment.metadata.image.features.get(TRANSACTION_VERSION, 0)

    # Leadership changes

    def role_changed(self, partition: Partition) -> None:
        """Load or unload the coordinator of an internal partition after a leadership change."""
        if not partition.is_leader:
            self.partition_gone(partition.topic, partition.index)
        elif partition.topic == OFFSETS_TOPIC:
            self.groups.runtime.schedule_load(partition.index, partition.leader_epoch)
        elif partition.topic == TRANSACTIONS_TOPIC:
            self.transactions.runtime.schedule_load(partition.index, partition.leader_epoch)

    def partition_gone(self, topic: str, index: int) -> None:
        """Unload the coordinator of a partition that this node no longer leads or hosts."""
        if topic == OFFSETS_TOPIC and self._groups is not None:
            self._groups.runtime.unload(index)
        elif topic == TRANSACTIONS_TOPIC and self._transactions is not None:
            self._transactions.runtime.unload(index)

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Apply a metadata delta."""
        if self._groups is not None:
            _notify_groups(self._groups, delta)
        if delta.changed_brokers:
            for connections in self._broker_connections:
                connections.brokers_changed()

    async def remove_all_state(self) -> None:
        """Delete all groups, offsets and transactional ids.

        Only for tests that share a broker.
        """
        if self._groups is not None:
            await self._groups.delete_all()
        if self._transactions is not None:
            await self._transactions.delete_all()


def _notify_groups(groups: GroupCoordinator, delta: MetadataDelta) -> None:
    """Report created, changed and deleted topics to the group coordinator."""
    names = {topic.name for topic in delta.created_topics.values()}
    names.update(topic.name for topic in delta.deleted_topics.values())
    names.update(delta.image.topics_by_id[each].name for each, _ in delta.changed_partitions)
    if names or delta.changed_brokers:
        groups.topics_changed(delta.image, names, created=bool(delta.created_topics))
    if delta.deleted_topics:
        groups.topics_deleted(
            [(topic.name, topic_id) for topic_id, topic in delta.deleted_topics.items()]
        )
