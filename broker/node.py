"""A node: the rooms in the order in which they open, and close.

    directories → logs recovered → metadata → partitions → coordinators → listeners

Every task lives in a nursery of `Broker.run`; stopping is cancellation in the reverse order. The mark
of a clean shutdown is the last thing written, and only where nothing went wrong on the way: a broker
that ends by an error leaves its directories for recovery.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from odradek.broker import storage_settings
from odradek.broker.config.server_config import ServerConfig
from odradek.broker.coordination.topics import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    InternalTopic,
)
from odradek.broker.coordinators import Coordinators
from odradek.broker.deadlines import Deadlines
from odradek.broker.directory_reports import DirectoryReports
from odradek.broker.fetch_wait import DueFetches
from odradek.broker.partitions import PartitionTable
from odradek.broker.producer_ids import ProducerIds
from odradek.broker.security.configured import change_acls, configured_authorizer, load_acls
from odradek.broker.server import Endpoint, Server, open_listeners
from odradek.broker.transactions.local import LocalCoordinator
from odradek.broker.turnstile import Turnstile
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller import image as images
from odradek.replication.controller.brokers import BrokerRegistration, start_broker
from odradek.replication.controller.errors import InvalidMetadata
from odradek.replication.controller.image import MetadataDelta, MetadataImage, TopicImage
from odradek.replication.controller.operations import Plan
from odradek.replication.partition.partition import Partition
from odradek.replication.raft.errors import InvalidQuorum
from odradek.replication.raft.metadata import Metadata
from odradek.seams import Seams
from odradek.storage.directories.directory import LogDirectory
from odradek.storage.directories.names import TopicPartition
from odradek.storage.directories.opening import Directories, open_directories
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager import LogManager

if TYPE_CHECKING:
    from odradek.broker.fetch_sessions import FetchSessions
    from odradek.broker.groups.coordinator import GroupCoordinator
    from odradek.broker.transactions.coordinator import TransactionCoordinator
    from odradek.broker.transactions.markers import MarkerWriter
    from odradek.broker.transactions.verification import TransactionPartitions
    from odradek.replication.controller.producer_ids import ProducerIdBlock
    from odradek.replication.controller.topics import CreatedTopic, NewTopic

log = logging.getLogger("odradek.node")

INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state"})


class CannotStart(Exception):
    """The node can't start; the text says why and what to do."""


class StorageLost(Exception):
    """No log directory is left, or the metadata directory failed: the node had to end."""


class Broker:
    """One broker and controller. `run` serves until `stop`; what handlers use are its attributes,
    which are there from before the first request on."""

    directories: Directories
    logs: LogManager
    metadata: Metadata
    endpoints: Sequence[Endpoint]
    broker_epoch: int

    def __init__(self, seams: Seams, config: ServerConfig) -> None:
        self.seams = seams
        self.config = config
        self.node_id = config.node_id
        self._stop_asked = trio.Event()
        self.stopped = trio.Event()
        """Set when all is closed, however it ended."""
        self.due_fetches = DueFetches()
        self.fetch_deadlines = Deadlines()
        self.producer_ids = ProducerIds(self._reserve_producer_ids)
        self.authorizer = configured_authorizer(config)
        self.server = Server(self)
        self.turnstile = Turnstile()
        self.transaction_partitions: TransactionPartitions = LocalCoordinator(
            lambda: self.transactions
        )
        """Who adds partitions to transactions."""
        self._partitions: PartitionTable | None = None
        self.coordinators = Coordinators(self)

    @property
    def cluster_id(self) -> str:
        return self.directories.cluster_id

    @property
    def partitions(self) -> PartitionTable:
        assert self._partitions is not None, "the node is not that far yet"
        return self._partitions

    @cached_property
    def fetch_sessions(self) -> FetchSessions:
        from odradek.broker.fetch_sessions import FetchSessions

        slots = self.config.get_int("max.incremental.fetch.session.cache.slots")
        return FetchSessions(slots, self.seams.entropy)

    @property
    def groups(self) -> GroupCoordinator:
        return self.coordinators.groups

    @property
    def transactions(self) -> TransactionCoordinator:
        return self.coordinators.transactions

    @property
    def markers(self) -> MarkerWriter:
        """Who ends transactions in the partitions of this node."""
        return self.coordinators.markers

    @staticmethod
    def is_internal(topic: str) -> bool:
        """Whether brokers alone write the topic."""
        return topic in INTERNAL_TOPICS

    def stop(self) -> None:
        """Ask the node to end; `run` returns when all is closed."""
        self._stop_asked.set()

    # The life of a node

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start, report started when requests are answered, serve until `stop` or cancellation,
        and close cleanly.

        Raises CannotStart, or StorageLost when the disks went away under it.
        """
        self.directories = await self._open_directories()
        try:
            await self._run_on_directories(task_status)
        finally:
            self.directories.close()
            self.stopped.set()

    async def _open_directories(self) -> Directories:
        def opened() -> Directories:
            return open_directories(
                self.seams.files,
                self.seams.entropy,
                self.config.log_dirs,
                node_id=self.node_id,
                metadata_path=self.config.metadata_log_dir,
            )

        from odradek.storage.directories.errors import DirectoryError

        try:
            return await self.seams.offload.run(opened, lane="start")
        except DirectoryError as error:
            raise CannotStart(str(error)) from None

    async def _run_on_directories(self, task_status: trio.TaskStatus[None]) -> None:
        self.logs = self._new_log_manager()
        metadata_directory = self.directories.metadata
        assert metadata_directory.id is not None
        self.metadata = Metadata(
            self.seams,
            metadata_directory.path,
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            directory_id=metadata_directory.id,
            settings=storage_settings.metadata_log(self.config),
            min_insync_replicas=self.config.get_int("min.insync.replicas"),
        )
        try:
            await self.metadata.start()
        except (InvalidMetadata, InvalidQuorum, KafkaError, OSError) as error:
            raise CannotStart(f"the metadata log can't be used: {error}") from error
        self.apply_broker_configs(self.metadata.image)
        await self.logs.load()  # with the topics' configs: compacted logs are recovered otherwise
        if self.authorizer is not None:
            load_acls(self.authorizer, self.metadata.image)
        self.directory_reports = DirectoryReports(
            self.metadata,
            self.node_id,
            lambda: self.broker_epoch,
            timeout_ms=self.config.get_int("log.dir.failure.timeout.ms"),
            unclean_election=self.config.get_bool("unclean.leader.election.enable"),
        )
        self._partitions = PartitionTable(
            self.logs,
            lambda: self.metadata.image,
            self.node_id,
            on_role=self._role_changed,
            on_gone=self.coordinators.partition_gone,
            on_lost=self._replica_lost,
        )
        self.logs.mover.on_moved = self._replica_moved
        self.metadata.subscribe(self._metadata_changed)
        try:
            await self._serve(task_status)
        except BaseException as error:
            if _is_cancellation(error):
                await self._close()
            raise
        await self._close()

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            opened = await open_listeners(self)
        except OSError as error:
            raise CannotStart(_cannot_listen(self.config, error)) from None
        self.endpoints = [endpoint for endpoint, _ in opened]
        async with trio.open_nursery() as house:
            house.start_soon(self.fetch_deadlines.run)
            self.coordinators.start(house)
            await house.start(self.metadata.run)
            await house.start(self.partitions.run)
            await house.start(self.logs.run)
            await self._register()
            await house.start(self.directory_reports.run)
            await self.logs.promote_moved(self._is_elsewhere)
            await self._set_aside_strays()
            await self.partitions.open_all()
            async with trio.open_nursery() as serving:
                await serving.start(self.server.serve, opened)
                serving.start_soon(self._stop_when, self.logs.all_failed)
                serving.start_soon(self._stop_when, self.metadata.failed)
                serving.start_soon(self._stop_when, self.directory_reports.unheard)
                task_status.started()
                await self._stop_asked.wait()
                serving.cancel_scope.cancel()
            house.cancel_scope.cancel()

    async def _stop_when(self, lost: trio.Event) -> None:
        await lost.wait()
        log.critical("%s", self._why_lost())
        self.stop()

    async def _close(self) -> None:
        lost = (self.logs.all_failed, self.metadata.failed, self.directory_reports.unheard)
        if any(each.is_set() for each in lost):
            raise StorageLost(self._why_lost())
        with trio.CancelScope(shield=True):
            await self.metadata.close()
            await self.logs.close(broker_epoch=self.broker_epoch)

    def _why_lost(self) -> str:
        failures = [
            f"{directory.path}: {directory.failure}"
            for directory in (*self.directories.all, self.directories.metadata)
            if directory.failed
        ]
        if self.metadata.failure is not None:
            failures.append(f"the metadata log: {self.metadata.failure}")
        if self.directory_reports.failure is not None:
            failures.append(self.directory_reports.failure)
        return "the storage to serve from is lost: " + "; ".join(dict.fromkeys(failures))

    # Rooms

    def _new_log_manager(self) -> LogManager:
        config = self.config
        return LogManager(
            self.seams.files,
            self.seams.clock,
            self.seams.entropy,
            self.seams.offload,
            self.directories,
            config_for=self.log_config,
            intervals=storage_settings.intervals(config),
            on_failure=self._directory_failed,
            workers=self.seams.workers,
            cleaner_settings=lambda: storage_settings.cleaner(config),
            mover_settings=lambda: storage_settings.mover(config),
        )

    def log_config(self, topic: str) -> LogConfig:
        """A topic's effective config; the broker's defaults for one that is not known."""
        return self.config.log_config(self.metadata.image.topic_configs(topic))

    # What changes

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        if any(kind == images.BROKER for kind, _ in delta.changed_configs):
            self.apply_broker_configs(delta.image)
            self.logs.update_configs()
        if delta.changed_features or any(
            kind == images.BROKER for kind, _ in delta.changed_configs
        ):
            self.directory_reports.cordoned(self._cordoned_ids())
        topics = [name for kind, name in delta.changed_configs if kind == images.TOPIC]
        if topics:
            self.logs.update_configs(topics)
        if self.authorizer is not None and delta.image.acls is not delta.before.acls:
            change_acls(self.authorizer, delta.before, delta.image)
        self.partitions.metadata_changed(delta)
        self.coordinators.metadata_changed(delta)

    def apply_broker_configs(self, image: MetadataImage) -> None:
        """Take over the dynamic broker configs."""
        self.config.apply_dynamic(
            image.config(images.BROKER, ""), image.config(images.BROKER, str(self.node_id))
        )
        self.logs.cordon(self.config.cordoned_log_dirs)

    def _cordoned_ids(self) -> list[UUID]:
        cordoned = self.logs.registry.cordoned
        every = self.directories.all
        return [each.id for each in every if each.path in cordoned and each.id is not None]

    def _directory_failed(self, directory: LogDirectory, logs: Sequence[PartitionLog]) -> None:
        log.error(
            "log directory %s took %d partitions offline; OfflineLogDirectoryCount is %d of %d",
            directory.path,
            len(logs),
            self.logs.gauges()["OfflineLogDirectoryCount"],
            len(self.directories.all),
        )
        if self._partitions is None:
            return  # found while logs are loaded: nobody waits for any yet
        lost = self._partitions.directory_failed(logs)
        for failed in logs:
            self.coordinators.partition_gone(failed.topic, failed.partition)
        self.directory_reports.directory_failed(directory.id, lost)

    def _role_changed(self, partition: Partition) -> None:
        if partition.log.failure is None:
            self.coordinators.role_changed(partition)
            self.directory_reports.seen(partition, self.logs.directory_of(partition.log).id)

    def _replica_lost(self, topic: TopicImage, index: int) -> None:
        """A replica's log cannot be had. Where its directory failed, or is none of ours, the
        controller knows it by that."""
        assigned = topic.partitions[index].directory_of(self.node_id)
        live = (each.id for each in self.directories.live)
        if assigned in (images.UNASSIGNED, images.MIGRATING, *live):
            self.directory_reports.lost(topic.id, index)

    def _replica_moved(self, which: PartitionLog) -> None:
        """It is in another of our log directories now."""
        partition = self.partitions.opened(which.topic, which.partition)
        if partition is not None and partition.log is which:
            self.directory_reports.seen(partition, self.logs.directory_of(which).id)

    def _is_elsewhere(self, name: TopicPartition, topic_id: UUID | None) -> bool:
        """Whether the cluster knows a replica of ours to be in a directory that is not here now."""
        topic = self.metadata.image.topics_by_name.get(name.topic)
        partition = None if topic is None else topic.partitions.get(name.partition)
        if topic is None or partition is None or topic_id not in (None, topic.id):
            return False  # a stray, wherever it is
        if self.node_id not in partition.replicas:
            return False
        assigned = partition.directory_of(self.node_id)
        live = {each.id for each in self.directories.live}
        return assigned.int >= images.RESERVED_DIRECTORIES and assigned not in live

    # What the cluster is told

    async def _register(self) -> None:
        registration = BrokerRegistration(
            id=self.node_id,
            incarnation_id=self.seams.entropy.uuid(),
            endpoints=[
                images.Endpoint(
                    each.name,
                    each.advertised.host,
                    each.advertised.port,
                    SECURITY_PROTOCOLS[each.security_protocol],
                )
                for each in self.endpoints
                if each.advertised is not None
            ],
            directories=[each.id for each in self.directories.live if each.id is not None],
            features=images.SUPPORTED_FEATURES,
            rack=self.config.optional_str("broker.rack"),
            previous_epoch=self.logs.previous_broker_epoch,
        )
        self.broker_epoch = await self.metadata.perform(
            lambda image: start_broker(
                image,
                registration,
                next_offset=image.offset + 1,
                cordoned=self._cordoned_ids(),
            )
        )

    async def _set_aside_strays(self) -> None:
        """Logs of topics that the cluster does not know, or knows elsewhere, are renamed."""
        image = self.metadata.image

        def is_stray(found: PartitionLog) -> bool:
            topic = image.topics_by_name.get(found.topic)
            if topic is None or (found.topic_id is not None and topic.id != found.topic_id):
                return True
            partition = topic.partitions.get(found.partition)
            return partition is None or self.node_id not in partition.replicas

        for stray in await self.logs.set_aside_strays(is_stray):
            log.warning("%s belongs to no topic of this cluster: set aside as -stray", stray)

    async def _reserve_producer_ids(self) -> range:
        from odradek.replication.controller.producer_ids import allocate_producer_ids

        block: ProducerIdBlock = await self.metadata.perform(
            lambda image: allocate_producer_ids(image, self.node_id, self.broker_epoch)
        )
        return range(block.first, block.first + block.size)

    # Topics that are made on the way

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[CreatedTopic]:
        """Create topics in the metadata log; one answer each."""
        from odradek.replication.controller.topics import TopicDefaults, create_topics

        defaults = TopicDefaults(
            self.config.get_int("num.partitions"),
            self.config.get_int("default.replication.factor"),
        )

        def operation(image: MetadataImage) -> Plan[list[CreatedTopic]]:
            return create_topics(
                image,
                topics,
                entropy=self.seams.entropy,
                defaults=defaults,
                validate_config=self.validate_config,
                validate_only=validate_only,
            )

        return await self.metadata.perform(operation)

    async def ensure_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create the topic unless it is there. Raises KafkaError with what the controller says."""
        if name in self.metadata.image.topics_by_name:
            return
        from odradek.replication.controller.topics import NewTopic

        (created,) = await self.create_topics(
            [NewTopic(name, partitions, replication_factor, configs=dict(configs or {}))]
        )
        if created.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
            raise KafkaError(created.error_code, created.error_message or "")

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


def _is_cancellation(error: BaseException) -> bool:
    """Whether nothing went wrong: the node's nurseries were cancelled, or Ctrl-C came."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_cancellation(each) for each in error.exceptions)
    return isinstance(error, (trio.Cancelled, KeyboardInterrupt))


SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


def _cannot_listen(config: ServerConfig, error: OSError) -> str:
    wanted = ", ".join(f"{each.host}:{each.port}" for each in config.listeners)
    return f"can't listen on {wanted}: {error.strerror or error}"


__all__ = ["Broker", "CannotStart", "StorageLost"]
