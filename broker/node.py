"""A node: a broker, a controller, or both. Its start-up phases, and its shutdown in the reverse order.

    open the log directories → bind the controller listeners → start the metadata log
    → controller: serve the controller listeners, join the quorum, register
    → catch up with the committed metadata
    → broker: recover the logs → bind the client listeners → start the coordinators and tiered storage
              → register with the active controller → open the partitions → serve clients → be unfenced

Every task runs in a nursery of `Node.run`. Shutdown cancels the nurseries from the innermost to the outermost:
controlled shutdown, clients disconnected, background tasks, resignation from the quorum. The clean shutdown
file is written last, and only if no error occurred: otherwise the next start recovers the logs.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.controller.controller_channel import ControllerChannel
from odradek.broker.controller.controller_registration import ControllerRegistration
from odradek.broker.controller.metadata_quorum import (
    configures_no_other_node,
    new_metadata,
    new_network_channel,
)
from odradek.broker.controller.quorum_availability import QuorumAvailability
from odradek.broker.controller.quorum_controller import QuorumController
from odradek.broker.coordination.coordinators import Coordinators
from odradek.broker.environment import NodeEnvironment
from odradek.broker.lifecycle.broker_lifecycle import BrokerLifecycle
from odradek.broker.lifecycle.broker_registration import broker_registration_request
from odradek.broker.lifecycle.errors import (
    CannotStart,
    NodeFailed,
    Stopped,
    find_node_error,
    is_cancellation,
)
from odradek.broker.metrics.registry import Metrics
from odradek.broker.network.listeners import (
    BoundListener,
    BoundListeners,
    close_listeners,
    open_listeners,
)
from odradek.broker.network.server import Server
from odradek.broker.replicas.replica_manager import ReplicaManager
from odradek.broker.security.acl_loading import follow_acls
from odradek.broker.security.authorizer_config import configured_authorizer
from odradek.broker.services import Services
from odradek.broker.transactions.producer_ids import ProducerIds
from odradek.protocol.errors import KafkaError
from odradek.replication.controller import image as images
from odradek.replication.controller.image import InvalidMetadata, MetadataDelta, MetadataImage
from odradek.replication.raft.errors import InvalidQuorum
from odradek.seams import Seams
from odradek.storage.directories import meta_properties
from odradek.storage.directories.opening import LogDirectories, open_directories
from odradek.storage.log_manager.background_tasks import watch_free_space

if TYPE_CHECKING:
    from typing import Any

    from odradek.broker.config.listeners import ListenerEndpoint
    from odradek.broker.replicas.partition_table import PartitionTable
    from odradek.protocol.apis import Api
    from odradek.replication.raft.kafka_network_channel import KafkaNetworkChannel
    from odradek.replication.raft.metadata_manager import MetadataManager
    from odradek.seams.network import Address
    from odradek.storage.log_manager.log_manager import LogManager

log = logging.getLogger("odradek.node")

RESIGN_SECONDS = 5.0
"""Longest wait, at shutdown, for another voter to take over the metadata quorum."""
SLOW_START_SECONDS = 10.0
"""A start-up phase that waits longer for other nodes is logged."""
REMIND_SECONDS = 60.0
"""Interval of further log messages while it waits."""


class Node:
    """One node. `run` serves until `stop`; `services` has what the request handlers use."""

    services: Services
    server: Server
    """Serves the client listeners."""
    endpoints: Sequence[BoundListener]
    """Bound client listeners; empty on a node that is a controller only."""
    controller_endpoints: Sequence[BoundListener]
    """Bound controller listeners."""
    metrics_address: Address | None = None
    """Address of the Prometheus endpoint (`odradek.metrics.listener`)."""

    def __init__(self, seams: Seams, config: ServerConfig) -> None:
        self.seams = seams
        self.config = config
        self.node_id = config.node_id
        self._authorizer = configured_authorizer(
            config.get_str("authorizer.class.name"), config.layers.static
        )
        self._stop_requested = trio.Event()
        self._waiting: trio.CancelScope | None = None
        self.stopped = trio.Event()
        """Set when `run` has closed everything, with or without an error."""
        self._replicas: ReplicaManager | None = None

    @property
    def metadata(self) -> MetadataManager:
        return self.services.metadata

    @property
    def logs(self) -> LogManager:
        return self.services.logs

    @property
    def partitions(self) -> PartitionTable:
        return self.services.partitions

    def stop(self) -> None:
        """Request shutdown; `run` returns once everything is closed."""
        self._stop_requested.set()
        if self._waiting is not None:
            self._waiting.cancel()

    # Start-up phases

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start, report started when clients are served, run until `stop` or cancellation, close cleanly.

        Raises CannotStart, or NodeFailed if all log directories or the metadata directory failed.
        """
        try:
            directories = await self._open_log_directories()
            try:
                await self._run_with_directories(directories, task_status)
            finally:
                directories.close()
        except BaseExceptionGroup as group:
            raise find_node_error(group) from None
        finally:
            self.stopped.set()

    async def _open_log_directories(self) -> LogDirectories:
        """Lock and read the log directories; format new ones if the node is a cluster by itself."""
        from odradek.storage.errors import DirectoryError

        config = self.config
        if configures_no_other_node(config) and config.log_dirs:
            await self._check_addresses_before_formatting()
        opening = partial(
            open_directories,
            self.seams.files,
            self.seams.entropy,
            config.log_dirs,
            node_id=config.node_id,
            metadata_path=config.metadata_log_dir,
            may_format=configures_no_other_node(config),
        )
        try:
            return await self.seams.offload.run(opening, lane="start")
        except DirectoryError as error:
            raise CannotStart(str(error)) from None

    async def _check_addresses_before_formatting(self) -> None:
        """Bind and close all listeners, if the metadata directory is new: a start that fails because an address is in
        use leaves no formatted directory. Raises CannotStart."""
        config, files = self.config, self.seams.files
        is_formatted = partial(files.exists, config.metadata_log_dir / meta_properties.FILE_NAME)
        with suppress(OSError):  # reported by `open_directories`
            if await self.seams.offload.run(is_formatted, lane="start"):
                return
        for listeners, advertised, of_controller in (
            (config.controller_listeners, config.advertised_controller_listeners, True),
            (config.listeners, config.advertised_listeners, False),
        ):
            await close_listeners(
                await self._bind(listeners, advertised, of_controller=of_controller)
            )
        metrics = config["odradek.metrics.listener"]
        if metrics is not None:
            from odradek.broker.metrics.endpoint import check_address

            await check_address(self.seams.network, str(metrics))

    async def _run_with_directories(
        self, directories: LogDirectories, task_status: trio.TaskStatus[None]
    ) -> None:
        """Bind the controller listeners, start the metadata log, and run the rest of the node."""
        config = self.config
        listeners = await self._bind(
            config.controller_listeners, config.advertised_controller_listeners, of_controller=True
        )
        try:
            self.controller_endpoints = [endpoint for endpoint, _ in listeners]
            network_channel = new_network_channel(self.seams, config, self.controller_endpoints)
            self.environment = self._new_environment(directories, network_channel)
            self.services = Services(self.environment, self._authorizer)
            await self._start_metadata()
            try:
                await self._run_with_metadata(listeners, network_channel, task_status)
            except BaseException as error:
                if is_cancellation(error):
                    await self._close()
                raise
            await self._close()
        finally:
            await close_listeners(listeners)

    def _new_environment(
        self, directories: LogDirectories, network_channel: KafkaNetworkChannel | None
    ) -> NodeEnvironment:
        metadata = new_metadata(
            self.seams, self.config, directories, self.controller_endpoints, network_channel
        )
        channel = ControllerChannel(self.seams.network, lambda: metadata, self._handle_locally)
        return NodeEnvironment(self.config, self.seams, directories, metadata, channel, Metrics())

    async def _start_metadata(self) -> None:
        try:
            await self.metadata.start()
        except (InvalidMetadata, InvalidQuorum, KafkaError, OSError) as error:
            raise CannotStart(f"the metadata log can't be used: {error}") from error
        if self._authorizer is not None:
            follow_acls(self._authorizer, self.metadata)

    async def _bind(
        self,
        wanted: Sequence[ListenerEndpoint],
        advertised: Sequence[ListenerEndpoint],
        *,
        of_controller: bool = False,
    ) -> BoundListeners:
        network = self.seams.network
        try:
            return await open_listeners(
                network, self.config, wanted, advertised, of_controller=of_controller
            )
        except OSError as error:
            addresses = ", ".join(f"{each.host}:{each.port}" for each in wanted)
            reason = error.strerror or error
            is_taken = error.errno == errno.EADDRINUSE
            hint = "; free it, or choose another (--listen, listeners)" if is_taken else ""
            raise CannotStart(f"can't listen on {addresses}: {reason}{hint}") from None

    async def _run_with_metadata(
        self,
        controller_listeners: BoundListeners,
        network_channel: KafkaNetworkChannel | None,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Run the node's part of the quorum, its controller if it has that role, and its broker in turn."""
        services, metadata = self.services, self.metadata
        self._quorum_availability = QuorumAvailability(metadata, self.seams.network)
        async with trio.open_nursery() as nursery:
            services.controller_channel.start(nursery)
            nursery.start_soon(self._stop_on_failure, metadata.failed)
            if network_channel is not None:
                await nursery.start(network_channel.run)
            await nursery.start(metadata.run)
            if self.config.is_controller:
                await self._start_controller(controller_listeners, nursery)
            await self._wait_for_cluster(
                "the committed metadata is not known yet: check that a majority of the controllers runs, and"
                " controller.quorum.bootstrap.servers or controller.quorum.voters",
                metadata.wait_until_caught_up,
            )
            services.acls_loaded.set()
            self.apply_broker_configs(metadata.image)
            if self.config.is_broker:
                await self._load_replicas()
            self.apply_quotas(metadata.image)
            metadata.subscribe(self._metadata_changed)
            await self._serve_metrics(nursery)
            if self.config.is_broker:
                await self._run_broker(task_status)
            else:
                await self._run_controller_only(nursery, task_status)
            with self._quorum_availability.cancel_without_majority(nursery):
                await metadata.shut_down(RESIGN_SECONDS)
            nursery.cancel_scope.cancel()

    async def _start_controller(self, listeners: BoundListeners, nursery: trio.Nursery) -> None:
        services = self.services
        services.quorum_controller = QuorumController(self.metadata, self.seams.clock, self.config)
        await nursery.start(services.quorum_controller.run)
        self._start_disablements(nursery)
        registration = ControllerRegistration(self.metadata, services.controller_channel)
        await nursery.start(registration.run)
        await nursery.start(Server(services).serve, listeners)

    def _start_disablements(self, nursery: trio.Nursery) -> None:
        """Complete disablements of tiered storage (KIP-950), once the metadata has one."""
        metadata = self.metadata

        def start(image: MetadataImage) -> bool:
            if not image.tiering:
                return False
            from odradek.broker.controller.topic_disablements import TopicDisablements
            from odradek.broker.network.broker_connections import BrokerConnections

            connections = BrokerConnections(
                self.seams.network,
                lambda: metadata.image,
                lambda: self.config.inter_broker_listener,
                client_id=f"controller-{self.node_id}-tiering",
                any_listener=True,  # inter.broker.listener.name may be missing in a controller's configs
            )
            connections.start(nursery)
            self.services.topic_disablements = TopicDisablements(metadata, connections)
            nursery.start_soon(self.services.topic_disablements.run)
            return True

        if not start(metadata.image):

            def changed(delta: MetadataDelta) -> None:
                if start(delta.image):
                    unsubscribe()

            unsubscribe = metadata.subscribe(changed)

    async def _run_controller_only(
        self, nursery: trio.Nursery, task_status: trio.TaskStatus[None]
    ) -> None:
        self.endpoints = ()
        nursery.start_soon(
            watch_free_space,
            self.services.directories.metadata,
            self.seams.offload,
            self.seams.clock,
        )
        task_status.started()
        await self._stop_requested.wait()

    async def _serve_metrics(self, nursery: trio.Nursery) -> None:
        listener = self.config["odradek.metrics.listener"]
        if listener is None:
            return
        from odradek.broker.metrics.endpoint import serve_metrics

        self.metrics_address = await serve_metrics(self.services, str(listener), nursery)

    # Start-up phases of a broker

    async def _load_replicas(self) -> None:
        """Recover the logs. Raises NodeFailed if that takes all log directories offline."""
        replicas = self._replicas = self._new_replicas()
        if not self.config.get_bool("remote.log.storage.system.enable"):
            replicas.check_no_tiered_topics()
        if not self.config.get_bool("diskless.storage.system.enable"):
            replicas.check_no_diskless_topics()
        before = self.metadata.image
        self.services.partitions = await replicas.load()
        if replicas.logs.storage_failed.is_set():
            raise NodeFailed(self._failure_text())
        if self.metadata.image is not before:
            self.apply_broker_configs(self.metadata.image)
            replicas.cordon()
            replicas.logs.update_configs()

    def _new_replicas(self) -> ReplicaManager:
        """Build the services that are about replicas."""
        services, environment = self.services, self.environment
        services.lifecycle = BrokerLifecycle(
            self.metadata,
            services.controller_channel,
            self.seams.clock,
            self.config,
            offline=lambda: services.replicas.log_directory_reporter.offline,
            cordoned=lambda: services.replicas.cordoned_ids(),
        )
        services.producer_ids = ProducerIds(self._reserve_producer_ids)
        services.coordinators = Coordinators(
            environment, lambda: services.partitions, services.producer_ids
        )
        services.replicas = ReplicaManager(environment, services.lifecycle, services.coordinators)
        services.logs = services.replicas.logs
        return services.replicas

    async def _run_broker(self, task_status: trio.TaskStatus[None]) -> None:
        """Bind the client listeners, then register, open the partitions and serve clients."""
        listeners = await self._bind(self.config.listeners, self.config.advertised_listeners)
        try:
            self.endpoints = [endpoint for endpoint, _ in listeners]
            async with trio.open_nursery() as nursery:
                await self._start_broker_tasks(nursery)
                await self._register(nursery)
                # Only after registration: until then the broker does not know which partitions it still leads.
                await self.services.replicas.start(nursery)
                await self._serve_clients(listeners, task_status)
                nursery.cancel_scope.cancel()
        finally:
            await close_listeners(listeners)

    async def _start_broker_tasks(self, nursery: trio.Nursery) -> None:
        services, replicas = self.services, self.services.replicas
        nursery.start_soon(self._stop_on_failure, services.logs.storage_failed)
        nursery.start_soon(
            self._stop_on_failure, replicas.log_directory_reporter.not_reported_in_time
        )
        nursery.start_soon(services.fetch_timers.run)
        services.producer_ids.start(nursery)
        services.coordinators.start(nursery)
        if self.config.get_bool("remote.log.storage.system.enable"):
            from odradek.broker.tiered.tiered_storage import open_tiered_storage

            services.tiered_storage = replicas.tiered_storage = await open_tiered_storage(
                self.environment, services.logs, services.partitions, self.endpoints
            )
            await nursery.start(services.tiered_storage.run)
        if self.config.get_bool("diskless.storage.system.enable"):
            from odradek.broker.diskless.diskless import open_diskless

            services.diskless = replicas.diskless = await open_diskless(self.environment)
            services.diskless.reader.traffic = services.partitions.traffic_without_replica
            await nursery.start(services.diskless.run)
        await nursery.start(services.logs.run)

    async def _register(self, nursery: trio.Nursery) -> None:
        """Register with the active controller, and wait until this node's metadata has the registration."""
        lifecycle = self.services.lifecycle
        await lifecycle.register(
            broker_registration_request(
                self.environment,
                self.endpoints,
                previous_epoch=self.services.logs.previous_broker_epoch,
            )
        )
        await nursery.start(lifecycle.run)
        nursery.start_soon(self._fail_unregistered)
        await self._wait_for_cluster(
            "this broker has not caught up with its registration", lifecycle.caught_up.wait
        )

    async def _serve_clients(
        self, listeners: BoundListeners, task_status: trio.TaskStatus[None]
    ) -> None:
        """Serve clients until `stop`, then complete the controlled shutdown."""
        lifecycle = self.services.lifecycle
        self.server = Server(self.services)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.server.serve, listeners)
            await self._wait_for_cluster(
                "the active controller has not unfenced this broker", lifecycle.serve
            )
            task_status.started()
            await self._stop_requested.wait()
            with self._quorum_availability.cancel_without_majority(nursery):
                await lifecycle.shut_down()
                if self.services.diskless is not None:
                    await self.services.diskless.writer.close()
            nursery.cancel_scope.cancel()

    async def _wait_for_cluster(self, what: str, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait for other nodes, and log `what` repeatedly if it takes long. `wait` may be called again.

        Raises Stopped if `stop` is called meanwhile.
        """
        with trio.CancelScope() as self._waiting:
            if self._stop_requested.is_set():
                self._waiting.cancel()
            seconds = SLOW_START_SECONDS
            while True:
                with trio.move_on_after(seconds) as waiting:
                    await wait()
                if not waiting.cancelled_caught:
                    break
                log.warning("still waiting: %s", what)
                seconds = REMIND_SECONDS
        if self._waiting.cancelled_caught:
            raise Stopped("the node was stopped before it could serve")

    # Failures and shutdown

    async def _fail_unregistered(self) -> None:
        await self.services.lifecycle.failed.wait()
        raise CannotStart(self.services.lifecycle.failure)

    async def _stop_on_failure(self, failed: trio.Event) -> None:
        await failed.wait()
        log.critical("%s", self._failure_text())
        self.stop()

    async def _close(self) -> None:
        """Close the metadata log and the logs. Raises NodeFailed if the metadata log or all log directories have
        failed."""
        services, metadata = self.services, self.metadata
        failures = [metadata.failed]
        replicas = self._replicas
        if replicas is not None:
            failures += [
                replicas.logs.storage_failed,
                replicas.log_directory_reporter.not_reported_in_time,
            ]
        if any(failure.is_set() for failure in failures):
            raise NodeFailed(self._failure_text())
        with trio.CancelScope(shield=True):
            await metadata.close()
            if replicas is not None and replicas.partitions is not None:
                registered = services.lifecycle.broker_epoch >= 0
                epoch = (
                    services.lifecycle.broker_epoch
                    if registered
                    else services.logs.previous_broker_epoch
                )
                await services.logs.close(broker_epoch=epoch)
        if metadata.failed.is_set():
            raise NodeFailed(self._failure_text())

    def _failure_text(self) -> str:
        directories, replicas = self.services.directories, self._replicas
        causes: list[str] = []
        if all(directory.failed for directory in directories.all):
            texts = (f"{directory.path}: {directory.failure}" for directory in directories.all)
            causes.append(f"all log dirs have failed: {'; '.join(texts)}")
        metadata, reason = directories.metadata, self.metadata.failure
        if metadata.failed and causes and metadata in directories.all:
            pass  # it is among the causes
        elif metadata.failed:
            causes.append(f"the metadata log failed: {metadata.path}: {metadata.failure}")
        elif reason is not None:
            causes.append(f"the metadata log failed: {reason}")
        if replicas is not None and replicas.log_directory_reporter.failure is not None:
            causes.append(replicas.log_directory_reporter.failure)
        role = "broker" if self.config.is_broker else "controller"
        return f"Shutdown {role} because " + "; ".join(causes)

    # Metadata changes

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        if any(kind == images.BROKER for kind, _ in delta.changed_configs):
            self.apply_broker_configs(delta.image)
        if delta.image.quotas is not delta.before.quotas:
            self.apply_quotas(delta.image)
        replicas = self._replicas
        if replicas is not None and replicas.partitions is not None:
            replicas.metadata_changed(delta)
            self.services.coordinators.metadata_changed(delta)

    def apply_broker_configs(self, image: MetadataImage) -> None:
        """Apply the image's dynamic broker configs."""
        self.config.apply_dynamic(
            image.config(images.BROKER, ""), image.config(images.BROKER, str(self.node_id))
        )

    def apply_quotas(self, image: MetadataImage) -> None:
        """Apply the image's client quotas and connection quotas."""
        services = self.services
        if image.quotas:
            from odradek.broker.quotas.client_quotas import quotas_from
            from odradek.broker.quotas.connection_quotas import connection_quotas_from

            quotas, config = image.quotas, self.config
            services.client_quotas = quotas_from(quotas, config, services.client_quotas)
            services.connection_quotas = connection_quotas_from(
                quotas, config, services.connection_quotas
            )
        else:
            services.client_quotas = services.connection_quotas = None

    # Requests to the active controller

    async def _handle_locally(self, api: Api, values: Mapping[str, Any]) -> Any:
        """Handle a controller request of this node while it is the active controller itself."""
        from odradek.broker.requests.dispatch import handle_locally

        return await handle_locally(self.services, api, values)

    async def _reserve_producer_ids(self) -> range:
        from odradek.broker.transactions.producer_ids import reserve_producer_ids

        services = self.services
        epoch = services.lifecycle.broker_epoch
        return await reserve_producer_ids(services.controller_channel, self.node_id, epoch)

    async def ensure_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create the topic unless it exists. Raises KafkaError with the controller's error."""
        from odradek.broker.replicas.topic_creation import ensure_topic

        await ensure_topic(self.services, name, partitions, replication_factor, configs)


__all__ = ["CannotStart", "Node", "Stopped", "NodeFailed"]
