"""Services of a node that request handlers, connections and metrics use.

The node builds the services and puts each here as its start-up proceeds. None of them knows this module or the
node: a service takes its own dependencies, most of them from `NodeEnvironment`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import trio

from odradek.broker.fetch.purgatory import CompletableFetches, fetch_timers
from odradek.broker.network.receive_memory import ReceiveMemory
from odradek.broker.timers import BusyConnectionQueue

if TYPE_CHECKING:
    from odradek.broker.controller.quorum_controller import QuorumController
    from odradek.broker.controller.topic_disablements import TopicDisablements
    from odradek.broker.coordination.coordinators import Coordinators
    from odradek.broker.diskless.diskless import Diskless
    from odradek.broker.environment import NodeEnvironment
    from odradek.broker.fetch.session_cache import FetchSessionCache
    from odradek.broker.groups.coordinator import GroupCoordinator
    from odradek.broker.lifecycle.broker_lifecycle import BrokerLifecycle
    from odradek.broker.quotas.client_quotas import ClientQuotas
    from odradek.broker.quotas.connection_quotas import ConnectionQuotas
    from odradek.broker.replicas.partition_table import PartitionTable
    from odradek.broker.replicas.replica_manager import ReplicaManager
    from odradek.broker.security.authorizer import Authorizer
    from odradek.broker.tiered.tiered_storage import TieredStorage
    from odradek.broker.transactions.coordinator import TransactionCoordinator
    from odradek.broker.transactions.markers import TransactionMarkerWriter
    from odradek.broker.transactions.partition_verification import AddPartitionsToTransaction
    from odradek.broker.transactions.producer_ids import ProducerIds
    from odradek.storage.log_manager.log_manager import LogManager


class Services:
    """Services of one node. Attributes without a value in `__init__` are set during start-up, before the first
    request that needs them is accepted."""

    quorum_controller: QuorumController
    """Set on controllers."""

    # Set on brokers:
    lifecycle: BrokerLifecycle
    replicas: ReplicaManager
    logs: LogManager
    partitions: PartitionTable
    coordinators: Coordinators
    producer_ids: ProducerIds

    def __init__(self, environment: NodeEnvironment, authorizer: Authorizer | None) -> None:
        self.config = environment.config
        self.seams = environment.seams
        self.node_id = environment.node_id
        self.cluster_id = environment.cluster_id
        self.directories = environment.directories
        self.metadata = environment.metadata
        self.controller_channel = environment.controller_channel
        self.metrics = environment.metrics
        self.authorizer = authorizer
        self.acls_loaded = trio.Event()
        """Set once the metadata image has all committed ACLs."""
        self.busy_connections = BusyConnectionQueue()
        self.receive_memory = ReceiveMemory(self.config.get_int("queued.max.request.bytes"))
        self.completable_fetches = CompletableFetches(self.seams.clock)
        self.fetch_timers = fetch_timers(self.seams.clock)
        self.client_quotas: ClientQuotas | None = None
        """None while the cluster has no quotas."""
        self.connection_quotas: ConnectionQuotas | None = None
        """None while the cluster has no quotas."""
        self.topic_disablements: TopicDisablements | None = None
        """None unless this node is a controller and the tiered storage of a topic was disabled with KIP-950."""
        self.tiered_storage: TieredStorage | None = None
        """None unless `remote.log.storage.system.enable` is true."""
        self.diskless: Diskless | None = None
        """None unless `diskless.storage.system.enable` is true."""

    @cached_property
    def fetch_sessions(self) -> FetchSessionCache:
        """Cache of incremental fetch sessions (KIP-227)."""
        from odradek.broker.fetch.session_cache import FetchSessionCache

        slots = self.config.get_int("max.incremental.fetch.session.cache.slots")
        return FetchSessionCache(slots, self.seams.entropy)

    @property
    def groups(self) -> GroupCoordinator:
        return self.coordinators.groups

    @property
    def transactions(self) -> TransactionCoordinator:
        return self.coordinators.transactions

    @cached_property
    def transaction_partitions(self) -> AddPartitionsToTransaction:
        """Adds partitions to transactions, at this node's or another node's coordinator (KIP-890)."""
        return self.coordinators.transaction_partitions

    @property
    def markers(self) -> TransactionMarkerWriter:
        """Appends transaction markers to the partitions that this node leads."""
        return self.coordinators.markers
