"""The coordinators of a node: of groups, of transactions, and who writes transactions' markers.

Each is made when it is first asked for, or when a partition of its topic is led here: many a broker
never has a group or a transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from odradek.broker.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from odradek.broker.coordination.partition_coordinator_log import PartitionCoordinatorLog
from odradek.replication.controller import image as images
from odradek.replication.controller.features import TRANSACTION_VERSION
from odradek.replication.controller.image import MetadataDelta
from odradek.replication.partition.partition import Partition

if TYPE_CHECKING:
    from odradek.broker.groups.consumer.settings import ConsumerGroupConfig
    from odradek.broker.groups.coordinator import GroupCoordinator
    from odradek.broker.network.broker_connections import BrokerConnections
    from odradek.broker.node import Node
    from odradek.broker.transactions.coordinator import TransactionCoordinator
    from odradek.broker.transactions.markers import TransactionMarkerWriter
    from odradek.broker.transactions.partition_verification import AddPartitionsToTransaction


class Coordinators:
    """See the module. `start` comes before anything else is asked for."""

    def __init__(self, broker: Node) -> None:
        self._broker = broker
        self._nursery: trio.Nursery | None = None
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._markers: TransactionMarkerWriter | None = None
        self._transaction_partitions: AddPartitionsToTransaction | None = None
        self._peers: list[BrokerConnections] = []

    def start(self, nursery: trio.Nursery) -> None:
        """Have `nursery` own whatever runs for a coordinator."""
        self._nursery = nursery

    # Each of them

    @property
    def groups(self) -> GroupCoordinator:
        if self._groups is None:
            from odradek.broker.groups.config import GroupConfig
            from odradek.broker.groups.consumer.environment import ConsumerGroupEnvironment
            from odradek.broker.groups.coordinator import GroupCoordinator

            broker = self._broker
            config = GroupConfig.from_configs(broker.config)
            self._groups = GroupCoordinator(
                self._log(OFFSETS_TOPIC),
                config,
                clock=broker.seams.clock,
                entropy=broker.seams.entropy,
                environment=ConsumerGroupEnvironment(
                    config, broker.metadata.image, self._consumer_settings
                ),
            )
            self._groups.start(self._house)
        return self._groups

    @property
    def transactions(self) -> TransactionCoordinator:
        if self._transactions is None:
            from odradek.broker.transactions.config import TransactionConfig
            from odradek.broker.transactions.coordinator import TransactionCoordinator
            from odradek.broker.transactions.marker_channel_manager import (
                TransactionMarkerChannelManager,
            )

            broker = self._broker
            self._transactions = TransactionCoordinator(
                self._log(TRANSACTIONS_TOPIC),
                TransactionConfig.from_configs(broker.config),
                clock=broker.seams.clock,
                markers=TransactionMarkerChannelManager(
                    lambda: broker.metadata.image,
                    broker.node_id,
                    self.markers,
                    self._new_peers("markers").request,
                    self._house,
                    timeout_s=self._request_timeout_s,
                ),
                producer_id=broker.producer_ids.next,
                transaction_version=self._transaction_version,
            )
            self._transactions.start(self._house)
        return self._transactions

    @property
    def markers(self) -> TransactionMarkerWriter:
        """Who ends transactions in the partitions of this node."""
        if self._markers is None:
            from odradek.broker.transactions.marker_writer import LocalMarkerWriter

            broker = self._broker
            self._markers = LocalMarkerWriter(
                lambda: broker.partitions,
                lambda partition, marker: self.groups.complete_transaction(partition, marker),
                broker.seams.clock,
                broker.config.get_int("request.timeout.ms"),
            )
        return self._markers

    @property
    def transaction_partitions(self) -> AddPartitionsToTransaction:
        """Who adds partitions to transactions: their coordinators, here or elsewhere."""
        if self._transaction_partitions is None:
            from odradek.broker.transactions.add_partitions_manager import AddPartitionsToTxnManager

            broker = self._broker
            self._transaction_partitions = AddPartitionsToTxnManager(
                lambda: broker.metadata.image,
                broker.node_id,
                lambda: self.transactions,
                self._new_peers("verification").request,
                self._house,
                timeout_s=self._request_timeout_s,
            )
        return self._transaction_partitions

    def _new_peers(self, purpose: str) -> BrokerConnections:
        """The other brokers, to ask one kind of question: those of a connection are answered one
        after the other, and a marker's answer waits for the replicas."""
        from odradek.broker.network.broker_connections import BrokerConnections

        broker = self._broker
        peers = BrokerConnections(
            broker.seams.network,
            lambda: broker.metadata.image,
            lambda: broker.config.inter_broker_listener,
            client_id=f"broker-{broker.node_id}-{purpose}",
        )
        peers.start(self._house)
        self._peers.append(peers)
        return peers

    @property
    def _request_timeout_s(self) -> float:
        return self._broker.config.get_int("request.timeout.ms") / 1000

    @property
    def _house(self) -> trio.Nursery:
        assert self._nursery is not None, "the node is not that far yet"
        return self._nursery

    def _log(self, topic: str) -> PartitionCoordinatorLog:
        broker = self._broker
        return PartitionCoordinatorLog(
            topic, broker.partitions.opened, lambda: broker.metadata.image, broker.seams.offload
        )

    def _consumer_settings(self, group_id: str) -> ConsumerGroupConfig:
        from odradek.broker.groups.consumer.settings import ConsumerGroupConfig

        broker = self._broker
        overrides = broker.metadata.image.config(images.GROUP, group_id)
        return ConsumerGroupConfig.of(broker.config, overrides)

    def _transaction_version(self) -> int:
        return self._broker.metadata.image.features.get(TRANSACTION_VERSION, 0)

    # What becomes of their partitions

    def role_changed(self, partition: Partition) -> None:
        """A partition was opened here, or changed hands."""
        if not partition.is_leader:
            self.partition_gone(partition.topic, partition.index)
        elif partition.topic == OFFSETS_TOPIC:
            self.groups.runtime.schedule_load(partition.index, partition.leader_epoch)
        elif partition.topic == TRANSACTIONS_TOPIC:
            self.transactions.runtime.schedule_load(partition.index, partition.leader_epoch)

    def partition_gone(self, topic: str, index: int) -> None:
        """A partition is not led here any more, or left this node, or its directory failed."""
        if topic == OFFSETS_TOPIC and self._groups is not None:
            self._groups.runtime.unload(index)
        elif topic == TRANSACTIONS_TOPIC and self._transactions is not None:
            self._transactions.runtime.unload(index)

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Take over what a commit changed."""
        if self._groups is not None:
            _tell_groups(self._groups, delta)
        if delta.changed_brokers:
            for peers in self._peers:
                peers.brokers_changed()

    async def remove_all_state(self) -> None:
        """Forget all groups, offsets and transactional ids.

        Not for clients: between two tests that share a broker.
        """
        if self._groups is not None:
            await self._groups.delete_all()
        if self._transactions is not None:
            await self._transactions.delete_all()


def _tell_groups(groups: GroupCoordinator, delta: MetadataDelta) -> None:
    """What became of topics that groups may read."""
    names = {topic.name for topic in delta.created_topics.values()}
    names.update(topic.name for topic in delta.deleted_topics.values())
    names.update(delta.image.topics_by_id[each].name for each, _ in delta.changed_partitions)
    if names or delta.changed_brokers:
        groups.topics_changed(delta.image, names, created=bool(delta.created_topics))
    if delta.deleted_topics:
        groups.topics_deleted(
            [(topic.name, topic_id) for topic_id, topic in delta.deleted_topics.items()]
        )
