"""A node: a broker, a controller, or both; the rooms in the order in which they open, and close.

    directories → controllers' listeners → metadata: the house, which a controller has alone
    → logs recovered → listeners bound → registered → partitions opened → clients served → unfenced

Every task lives in a nursery of `Node.run`; stopping is cancellation in the reverse order. The mark
of a clean shutdown is the last thing written, and only where nothing went wrong on the way: a broker
that ends by an error leaves its directories for recovery.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.controller.controller_channel import ControllerChannel
from odradek.broker.controller.controller_registration import ControllerRegistration
from odradek.broker.controller.metadata_factory import new_metadata, new_network_channel
from odradek.broker.controller.quorum_availability import QuorumAvailability
from odradek.broker.controller.quorum_controller import QuorumController
from odradek.broker.coordination.coordinators import Coordinators
from odradek.broker.coordination.internal_topics import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    InternalTopic,
)
from odradek.broker.fetch.purgatory import DueFetches, fetch_timers
from odradek.broker.lifecycle.broker_lifecycle import BrokerLifecycle
from odradek.broker.lifecycle.broker_registration import broker_registration_request
from odradek.broker.lifecycle.errors import (
    CannotStart,
    Stopped,
    StorageLost,
    is_cancellation,
    unwrap_node_error,
)
from odradek.broker.lifecycle.open_directories import open_node_directories
from odradek.broker.metrics.registry import Metrics
from odradek.broker.network.large_requests import LargeRequestQueue
from odradek.broker.network.server import Endpoint, Opened, Server, close_listeners, open_listeners
from odradek.broker.replicas.replica_manager import Replicas
from odradek.broker.security.configured import configured_authorizer
from odradek.broker.security.loading import follow_acls
from odradek.broker.transactions.producer_ids import ProducerIds
from odradek.protocol.errors import KafkaError
from odradek.replication.controller import image as images
from odradek.replication.controller.image import InvalidMetadata, MetadataDelta, MetadataImage
from odradek.replication.raft.errors import InvalidQuorum
from odradek.replication.raft.metadata_manager import MetadataManager
from odradek.seams import Seams
from odradek.storage.log_manager.housekeeping import watch_room

if TYPE_CHECKING:
    from typing import Any

    from odradek.broker.config.listeners import ListenerEndpoint
    from odradek.broker.fetch.session_cache import FetchSessions
    from odradek.broker.groups.coordinator import GroupCoordinator
    from odradek.broker.quotas.client_quotas import ClientQuotas
    from odradek.broker.quotas.connection_quotas import ConnectionQuotas
    from odradek.broker.replicas.log_directory_reports import DirectoryReports
    from odradek.broker.replicas.partition_table import PartitionTable
    from odradek.broker.tiered.tiered_storage import TieredStorage
    from odradek.broker.transactions.coordinator import TransactionCoordinator
    from odradek.broker.transactions.markers import TransactionMarkerWriter
    from odradek.broker.transactions.partition_verification import AddPartitionsToTransaction
    from odradek.protocol.apis import Api
    from odradek.replication.raft.kafka_network_channel import KafkaNetworkChannel
    from odradek.seams.network import Address
    from odradek.storage.directories.opening import Directories
    from odradek.storage.log_manager.log_manager import LogManager

log = logging.getLogger("odradek.node")

HAND_OVER_SECONDS = 5.0
"""How long the others of a quorum may take to do without this node."""
PATIENCE_SECONDS = 10.0
"""How long a start may wait for others before the log says so."""
TOPICS_OF_COORDINATORS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state"})
INTERNAL_TOPICS = TOPICS_OF_COORDINATORS | {"__remote_log_metadata"}
"""What clients are told is internal (T-44: Kafka 4.x does not say so of the last)."""


class Node:
    """One node; that of a controller alone lacks what is about replicas. `run` serves until `stop`; what
    handlers use are its attributes, which are there from before the first request on."""

    directories: Directories
    metadata: MetadataManager
    logs: LogManager
    directory_reports: DirectoryReports
    controller_duties: QuorumController
    lifecycle: BrokerLifecycle
    endpoints: Sequence[Endpoint]
    """Where clients are served."""
    metrics_address: Address | None = None
    """Where Prometheus reads metrics."""
    controller_endpoints: Sequence[Endpoint]
    """Where the nodes of the cluster are, as by a controller."""

    def __init__(self, seams: Seams, config: ServerConfig) -> None:
        self.seams = seams
        self.config = config
        self.node_id = config.node_id
        self._stop_asked = trio.Event()
        self._waiting: trio.CancelScope | None = None
        self.stopped = trio.Event()
        """Set when all is closed, however it ended."""
        self.metrics = Metrics()
        self.due_fetches = DueFetches(seams.clock)
        self.fetch_timers = fetch_timers(seams.clock)
        self.producer_ids = ProducerIds(self._reserve_producer_ids)
        self.authorizer = configured_authorizer(config)
        self.acls_loaded = trio.Event()
        self.server = Server(self)
        self._controller_server = Server(self)
        self.large_requests = LargeRequestQueue()
        self.controller = ControllerChannel(
            seams.network, lambda: self.metadata, self._respond_here
        )
        """The way to the active controller, wherever it is."""
        self.client_quotas: ClientQuotas | None = None
        """None as long as no client has any; so are those of addresses."""
        self.connection_quotas: ConnectionQuotas | None = None
        self.remote: TieredStorage | None = None
        """Tiered storage; None where it is off (`remote.log.storage.system.enable`)."""
        self._replicas: Replicas | None = None
        self._partitions: PartitionTable | None = None
        self.coordinators = Coordinators(self)

    @property
    def cluster_id(self) -> str:
        return self.directories.cluster_id

    @property
    def broker_epoch(self) -> int:
        """What the controller knows this run of the broker by; -1 before it does."""
        return self.lifecycle.broker_epoch

    @property
    def replicas(self) -> Replicas:
        assert self._replicas is not None, "the node is not that far yet"
        return self._replicas

    @property
    def partitions(self) -> PartitionTable:
        assert self._partitions is not None, "the node is not that far yet"
        return self._partitions

    @cached_property
    def fetch_sessions(self) -> FetchSessions:
        from odradek.broker.fetch.session_cache import FetchSessions

        slots = self.config.get_int("max.incremental.fetch.session.cache.slots")
        return FetchSessions(slots, self.seams.entropy)

    @property
    def groups(self) -> GroupCoordinator:
        return self.coordinators.groups

    @property
    def transactions(self) -> TransactionCoordinator:
        return self.coordinators.transactions

    @cached_property
    def transaction_partitions(self) -> AddPartitionsToTransaction:
        """Who adds partitions to transactions."""
        return self.coordinators.transaction_partitions

    @property
    def markers(self) -> TransactionMarkerWriter:
        """Who ends transactions in the partitions of this node."""
        return self.coordinators.markers

    @staticmethod
    def is_internal(topic: str) -> bool:
        """Whether the topic is none of users', as Metadata tells."""
        return topic in INTERNAL_TOPICS

    @staticmethod
    def is_of_coordinators(topic: str) -> bool:
        """Whether coordinators alone write the topic; that of remote log metadata is written through
        the front door."""
        return topic in TOPICS_OF_COORDINATORS

    def stop(self) -> None:
        """Ask the node to end; `run` returns when all is closed."""
        self._stop_asked.set()
        if self._waiting is not None:
            self._waiting.cancel()

    # The life of a node

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start, report started when requests are answered, serve until `stop` or cancellation,
        and close cleanly.

        Raises CannotStart, or StorageLost when the disks went away under it.
        """
        try:
            self.directories = await open_node_directories(self.seams, self.config)
            try:
                await self._run_on_directories(task_status)
            finally:
                self.directories.close()
        except BaseExceptionGroup as group:
            raise unwrap_node_error(group) from None
        finally:
            self.stopped.set()

    async def _run_on_directories(self, task_status: trio.TaskStatus[None]) -> None:
        config = self.config
        controllers = await self._listen(
            config.controller_listeners, config.advertised_controller_listeners, of_controller=True
        )
        try:
            self.controller_endpoints = [endpoint for endpoint, _ in controllers]
            transport = new_network_channel(self.seams, config, self.controller_endpoints)
            await self._start_metadata(transport)
            try:
                await self._run_on_metadata(controllers, transport, task_status)
            except BaseException as error:
                if is_cancellation(error):
                    await self._close()
                raise
            await self._close()
        finally:
            await close_listeners(controllers)

    async def _listen(
        self,
        wanted: Sequence[ListenerEndpoint],
        told: Sequence[ListenerEndpoint],
        *,
        of_controller: bool = False,
    ) -> Opened:
        network = self.seams.network
        try:
            return await open_listeners(
                network, self.config, wanted, told, of_controller=of_controller
            )
        except OSError as error:
            addresses = ", ".join(f"{each.host}:{each.port}" for each in wanted)
            reason = error.strerror or error
            is_taken = error.errno == errno.EADDRINUSE
            hint = "; free it, or choose another (--listen, listeners)" if is_taken else ""
            raise CannotStart(f"can't listen on {addresses}: {reason}{hint}") from None

    async def _start_metadata(self, transport: KafkaNetworkChannel | None) -> None:
        self.metadata = new_metadata(
            self.seams, self.config, self.directories, self.controller_endpoints, transport
        )
        try:
            await self.metadata.start()
        except (InvalidMetadata, InvalidQuorum, KafkaError, OSError) as error:
            raise CannotStart(f"the metadata log can't be used: {error}") from error
        if self.authorizer is not None:
            follow_acls(self.authorizer, self.metadata)

    async def _run_on_metadata(
        self,
        controllers: Opened,
        transport: KafkaNetworkChannel | None,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """The house: what a node is to the others of its cluster."""
        self._presence = QuorumAvailability(self.metadata, self.seams.network)
        async with trio.open_nursery() as house:
            self.controller.start(house)
            house.start_soon(self._stop_when, self.metadata.failed)
            if transport is not None:
                await house.start(transport.run)
            await house.start(self.metadata.run)
            if self.config.is_controller:
                self.controller_duties = QuorumController(
                    self.metadata, self.seams.clock, self.config
                )
                await house.start(self.controller_duties.run)
                registration = ControllerRegistration(self.metadata, self.controller)
                await house.start(registration.run)
                await house.start(self._controller_server.serve, controllers)
            await self._unless_stopped(
                "nobody has told yet what the metadata quorum has committed",
                self.metadata.wait_until_caught_up,
            )
            self.acls_loaded.set()
            self.apply_broker_configs(self.metadata.image)
            if self.config.is_broker:
                await self._load_replicas()
            self.apply_quotas(self.metadata.image)
            self.metadata.subscribe(self._metadata_changed)
            await self._tell_metrics(house)
            if self.config.is_broker:
                await self._run_as_broker(task_status)
            else:
                self.endpoints = ()
                house.start_soon(
                    watch_room, self.directories.metadata, self.seams.offload, self.seams.clock
                )
                task_status.started()
                await self._stop_asked.wait()
            with self._presence.unless_gone(house):
                await self.metadata.shut_down(HAND_OVER_SECONDS)
            house.cancel_scope.cancel()

    async def _load_replicas(self) -> None:
        replicas = self._replicas = Replicas(self)
        self.logs, self.directory_reports = replicas.logs, replicas.directory_reports
        self.lifecycle = BrokerLifecycle(
            self.metadata,
            self.controller,
            self.seams.clock,
            self.config,
            offline=lambda: self.directory_reports.offline,
            cordoned=replicas.cordoned_ids,
        )
        if not self.config.get_bool("remote.log.storage.system.enable"):
            replicas.refuse_tiered()
        before = self.metadata.image
        self._partitions = await replicas.load()
        if self.logs.all_failed.is_set():
            raise StorageLost(self._why_lost())
        if self.metadata.image is not before:  # others have gone on meanwhile
            self.apply_broker_configs(self.metadata.image)
            replicas.cordon()
            self.logs.update_configs()

    async def _tell_metrics(self, house: trio.Nursery) -> None:
        wanted = self.config["odradek.metrics.listener"]
        if wanted is None:
            return
        from odradek.broker.metrics.serving import serve_metrics

        self.metrics_address = await serve_metrics(self, str(wanted), house)

    async def _run_as_broker(self, task_status: trio.TaskStatus[None]) -> None:
        """What a node is to clients."""
        opened = await self._listen(self.config.listeners, self.config.advertised_listeners)
        try:
            self.endpoints = [endpoint for endpoint, _ in opened]
            await self._run_room(opened, task_status)
        finally:
            await close_listeners(opened)

    async def _run_room(self, opened: Opened, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as room:
            room.start_soon(self._stop_when, self.logs.all_failed)
            room.start_soon(self._stop_when, self.directory_reports.unheard)
            room.start_soon(self.fetch_timers.run)
            self.producer_ids.start(room)
            self.coordinators.start(room)
            if self.config.get_bool("remote.log.storage.system.enable"):
                from odradek.broker.tiered.tiered_storage import open_tiered_storage

                self.remote = await open_tiered_storage(self)
                await room.start(self.remote.run)
            await room.start(self.logs.run)
            await self.lifecycle.register(broker_registration_request(self))
            await room.start(self.lifecycle.run)
            room.start_soon(self._fail_unregistered)
            await self._unless_stopped(
                "this broker has not caught up with its registration", self.lifecycle.caught_up.wait
            )
            # Not before: what it led when it went, it may lead no more, nor have whole.
            await self.replicas.start(room)
            async with trio.open_nursery() as serving:
                await serving.start(self.server.serve, opened)
                await self._unless_stopped(
                    "the active controller has not unfenced this broker", self.lifecycle.serve
                )
                task_status.started()
                await self._stop_asked.wait()
                with self._presence.unless_gone(serving):
                    await self.lifecycle.shut_down()
                serving.cancel_scope.cancel()
            room.cancel_scope.cancel()

    async def _unless_stopped(self, what: str, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait for others of the cluster, and say so when it takes long; `wait` may be called again.

        Raises Stopped if the node is asked to end meanwhile.
        """
        with trio.CancelScope() as self._waiting:
            if self._stop_asked.is_set():
                self._waiting.cancel()
            with trio.move_on_after(PATIENCE_SECONDS) as patience:
                await wait()
            if patience.cancelled_caught:
                log.warning("still waiting: %s", what)
                await wait()
        if self._waiting.cancelled_caught:
            raise Stopped("it was told to stop before it could serve")

    async def _fail_unregistered(self) -> None:
        await self.lifecycle.failed.wait()
        raise CannotStart(self.lifecycle.failure)

    async def _stop_when(self, lost: trio.Event) -> None:
        await lost.wait()
        log.critical("%s", self._why_lost())
        self.stop()

    async def _close(self) -> None:
        lost = [self.metadata.failed]
        if self._replicas is not None:
            lost += [self.logs.all_failed, self.directory_reports.unheard]
        if any(each.is_set() for each in lost):
            raise StorageLost(self._why_lost())
        with trio.CancelScope(shield=True):
            await self.metadata.close()
            if self._partitions is not None:
                registered = self.broker_epoch >= 0
                epoch = self.broker_epoch if registered else self.logs.previous_broker_epoch
                await self.logs.close(broker_epoch=epoch)
        if self.metadata.failed.is_set():
            raise StorageLost(self._why_lost())

    def _why_lost(self) -> str:
        failures = [
            f"{directory.path}: {directory.failure}"
            for directory in (*self.directories.all, self.directories.metadata)
            if directory.failed
        ]
        if self.metadata.failure is not None:
            failures.append(f"the metadata log: {self.metadata.failure}")
        if self._replicas is not None and self.directory_reports.failure is not None:
            failures.append(self.directory_reports.failure)
        return "the storage to serve from is lost: " + "; ".join(dict.fromkeys(failures))

    # What changes

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        if any(kind == images.BROKER for kind, _ in delta.changed_configs):
            self.apply_broker_configs(delta.image)
        if delta.image.quotas is not delta.before.quotas:
            self.apply_quotas(delta.image)
        if self._partitions is not None:
            self.replicas.metadata_changed(delta)
            self.coordinators.metadata_changed(delta)

    def apply_broker_configs(self, image: MetadataImage) -> None:
        """Take over the dynamic broker configs."""
        self.config.apply_dynamic(
            image.config(images.BROKER, ""), image.config(images.BROKER, str(self.node_id))
        )

    def apply_quotas(self, image: MetadataImage) -> None:
        """Take over the quotas of clients and of addresses."""
        if image.quotas:
            from odradek.broker.quotas.client_quotas import quotas_from
            from odradek.broker.quotas.connection_quotas import connection_quotas_from

            quotas, config = image.quotas, self.config
            self.client_quotas = quotas_from(quotas, config, self.client_quotas)
            self.connection_quotas = connection_quotas_from(quotas, config, self.connection_quotas)
        else:
            self.client_quotas = self.connection_quotas = None

    # What the controller does for this node

    async def _respond_here(self, api: Api, values: Mapping[str, Any]) -> Any:
        from odradek.broker.requests.local_requests import handle_locally

        return await handle_locally(self, api, values)

    async def _reserve_producer_ids(self) -> range:
        from odradek.broker.transactions.producer_ids import reserve_producer_ids

        return await reserve_producer_ids(self.controller, self.node_id, self.broker_epoch)

    # Topics that are made on the way

    async def ensure_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create the topic unless it is there. Raises KafkaError with what the controller says."""
        from odradek.broker.replicas.topic_creation import ensure_topic

        await ensure_topic(self, name, partitions, replication_factor, configs)

    async def ensure_internal_topic(self, topic: InternalTopic) -> None:
        """Create a coordinator's topic unless it is there; its partitions open when asked for, or
        soon after."""
        await self.ensure_topic(
            topic.name, topic.partitions, topic.replication_factor, topic.configs
        )

    def validate_config(
        self, kind: int, name: str, wanted: Mapping[str, str], existing: Mapping[str, str]
    ) -> None:
        """Raises KafkaError(invalid_config) for a config that can't be."""
        from odradek.broker.config.validation import validate_resource_configs

        validate_resource_configs(self.config, kind, name, wanted, existing)


__all__ = ["CannotStart", "Node", "Stopped", "StorageLost"]
