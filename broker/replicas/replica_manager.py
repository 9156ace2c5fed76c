"""ReplicaManager: the replicas of a broker, with their logs, roles and log directories.

logs recovered → stray logs renamed → partitions opened → metadata and log events handled

Metadata changes of topics, configs and replicas are applied to the logs. Log events (a directory
fails, a log was moved) are passed on to the coordinators and the controller.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from odradek.broker.coordination.internal_topics import is_internal_topic
from odradek.broker.lifecycle import storage_settings
from odradek.broker.lifecycle.errors import CannotStart
from odradek.broker.replicas.isr_maintenance import IsrMaintenance
from odradek.broker.replicas.lazy_replica_fetchers import LazyReplicaFetchers
from odradek.broker.replicas.log_directory_reports import LogDirectoryReporter
from odradek.broker.replicas.partition_table import PartitionTable
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller import image as images
from odradek.replication.controller.image import MetadataDelta, TopicImage
from odradek.replication.controller.topic_tiering import is_tiered
from odradek.replication.partition.partition import Partition
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.errors import DiskFull, NoDirectory
from odradek.storage.log.config import LogConfig, with_disable_policy
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager, LogServices

if TYPE_CHECKING:
    from odradek.broker.coordination.coordinators import Coordinators
    from odradek.broker.diskless.diskless import Diskless
    from odradek.broker.environment import NodeEnvironment
    from odradek.broker.lifecycle.broker_lifecycle import BrokerLifecycle
    from odradek.broker.replicas.alter_partition_manager import AlterPartitionManager
    from odradek.broker.replicas.leader_throttle import LeaderThrottle
    from odradek.broker.tiered.tiered_storage import TieredStorage

log = logging.getLogger("odradek.node")

LOOK_SECONDS = 1.0
"""Minimum time between two checks whether a full log directory can be taken offline."""


class ReplicaManager:
    """Replicas of this node. `load` comes first, `start` after the registration of the broker."""

    def __init__(
        self, environment: NodeEnvironment, lifecycle: BrokerLifecycle, coordinators: Coordinators
    ) -> None:
        self._environment = environment
        self._lifecycle = lifecycle
        self._coordinators = coordinators
        self.tiered_storage: TieredStorage | None = None
        """Set before `start` if `remote.log.storage.system.enable` is true."""
        self.diskless: Diskless | None = None
        """Set before `start` if `diskless.storage.system.enable` is true."""
        self.logs = self._new_log_manager()
        self.partitions: PartitionTable | None = None
        self.log_directory_reporter = LogDirectoryReporter(
            lambda: environment.metadata.image,
            environment.node_id,
            lambda: lifecycle.broker_epoch,
            environment.controller_channel,
            lambda: lifecycle.report(),
            timeout_ms=environment.config.get_int("log.dir.failure.timeout.ms"),
        )

        self._isr_maintenance = IsrMaintenance(
            lambda: self.partitions or (),
            lambda node_id: environment.metadata.image.brokers.get(node_id),
            self._new_alter_partition_manager,
            self._disk_full,
            lag_max_ms=environment.config.get_int("replica.lag.time.max.ms"),
        )

        self._fetchers = LazyReplicaFetchers(
            environment,
            self.logs,
            lambda: lifecycle.broker_epoch,
            self._role_changed,
            tier=lambda: None if self.tiered_storage is None else self.tiered_storage.tier,
        )
        self._next_full_check = 0.0

    @cached_property
    def leader_throttle(self) -> LeaderThrottle:
        from odradek.broker.replicas.leader_throttle import LeaderThrottle

        environment = self._environment
        return LeaderThrottle(
            environment.config,
            lambda topic: environment.metadata.image.topic_configs(topic),
            environment.seams.clock,
        )

    def _new_alter_partition_manager(self) -> AlterPartitionManager:
        from odradek.broker.replicas.alter_partition_manager import AlterPartitionManager

        environment = self._environment
        return AlterPartitionManager(
            environment.node_id,
            lambda: self._lifecycle.broker_epoch,
            environment.controller_channel,
            environment.metrics,
        )

    def _new_log_manager(self) -> LogManager:
        seams, config = self._environment.seams, self._environment.config
        services = LogServices(
            seams.files,
            seams.clock,
            seams.entropy,
            seams.offload,
            self._environment.directories,
            config_for=self.log_config,
            intervals=lambda: storage_settings.intervals(config),
        )
        return LogManager(
            services,
            on_failure=self._directory_failed,
            on_log_failed=self._log_failed,
            workers=seams.workers,
            cleaner_settings=lambda: storage_settings.cleaner(config),
            mover_settings=lambda: storage_settings.mover(config),
        )

    def log_config(self, topic: str) -> LogConfig:
        """Return the effective config of a topic; the broker's defaults for an unknown topic.

        remote.storage.enable is only effective with a remote tier, and as in Kafka not for internal
        or compacted topics.
        """
        environment = self._environment
        config = environment.config.log_config(environment.metadata.image.topic_configs(topic))
        if config.remote_storage_enable and (
            not environment.config.get_bool("remote.log.storage.system.enable")
            or config.compact
            or is_internal_topic(topic)
        ):
            return replace(config, remote_storage_enable=False)
        return config

    # Start

    def check_no_tiered_topics(self) -> None:
        """Check at start without tiered storage that no topic is tiered, as Kafka does, or has retained
        remote data (KIP-950). Raises CannotStart.

        The logs of such a topic would lose their remote records and their log start offsets.
        """
        image = self._environment.metadata.image
        for name in image.topics_by_name:
            configs = image.topic_configs(name)
            if is_tiered(with_disable_policy(configs)):
                is_retained = configs.get("remote.log.disable.policy") == "retain"
                config = (
                    "remote.log.disable.policy=retain"
                    if is_retained
                    else "remote.storage.enable=true"
                )
                raise CannotStart(
                    f"topic {name} has {config}, but this broker does not have"
                    " remote.log.storage.system.enable=true: start it with that and an object store"
                    " (--tiered sets both), or delete such topics or their remote data before you disable"
                    " tiered storage"
                )

    def check_no_diskless_topics(self) -> None:
        """Check at start without diskless topics that none exists. Raises CannotStart.

        Clients would use this broker as a gateway of such a topic, which it cannot serve.
        """
        for name in self._environment.metadata.image.diskless_topics.values():
            raise CannotStart(
                f"topic {name} is diskless, but this broker does not have diskless.storage.system.enable=true: start"
                " it with that and the object store of the other brokers (--diskless sets both), or delete such topics"
                " before you disable them"
            )

    async def load(self) -> PartitionTable:
        """Recover the logs with the configs of the image, to know which are compacted.

        Raises CannotStart if there are too few file descriptors.
        """
        environment = self._environment
        self.cordon()
        try:
            await self.logs.load(self._is_stray)
        except NoDirectory as error:
            raise CannotStart(str(error)) from None
        self.partitions = PartitionTable(
            self.logs,
            lambda: environment.metadata.image,
            environment.node_id,
            cluster_context=self._isr_maintenance.cluster_context,
            on_role=self._role_changed,
            on_gone=self._gone,
            on_log_offline=self._replica_lost,
        )
        self.logs.mover.on_moved = self._replica_moved
        return self.partitions

    async def start(self, nursery: trio.Nursery) -> None:
        """Open the partitions, and run the tasks of replicas in `nursery`."""
        assert self.partitions is not None
        await nursery.start(self.log_directory_reporter.run)
        await nursery.start(self._isr_maintenance.run)
        await nursery.start(self._fetchers.run)
        # Before opening: a stray log would be opened for a new topic of the same name.
        await self._rename_stray_logs()
        await self.logs.promote_moved(self._is_elsewhere, self._is_stray)
        await nursery.start(self.partitions.run)
        await self.partitions.open_all()

    @property
    def is_catching_up(self) -> bool:
        """Whether a followed partition is behind its leader or has not fetched yet."""
        return self._fetchers.is_catching_up

    async def _rename_stray_logs(self) -> None:
        """Rename logs of partitions that the cluster does not assign to this broker to -stray."""
        for stray in await self.logs.rename_stray_logs(self._is_stray):
            log.warning(
                "Found stray log %s, which the cluster does not assign to this broker: renamed to -stray",
                stray,
            )

    def _is_stray(self, name: TopicPartition, topic_id: UUID | None) -> bool:
        topic = self._environment.metadata.image.topics_by_name.get(name.topic)
        if topic is None or topic_id not in (None, topic.id):
            return True
        partition = topic.partitions.get(name.partition)
        return partition is None or self._environment.node_id not in partition.replicas

    # Metadata

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Apply a metadata delta, including broker configs."""
        assert self.partitions is not None
        broker_configs = any(kind == images.BROKER for kind, _ in delta.changed_configs)
        if broker_configs:
            self.cordon()
            self.logs.update_configs()
            self._fetchers.settings_changed()
        if delta.changed_features or broker_configs:
            self.log_directory_reporter.cordoned(self.cordoned_ids())
        if self.tiered_storage is not None:
            self.tiered_storage.topics_deleted(delta)
        topics = [name for kind, name in delta.changed_configs if kind == images.TOPIC]
        if topics:
            self.logs.update_configs(topics)
        self.partitions.metadata_changed(delta)
        if delta.changed_brokers:
            self._isr_maintenance.brokers_changed()
            self._fetchers.brokers_changed()
        if self.tiered_storage is not None:
            self.tiered_storage.metadata_changed(delta)
        if self.diskless is not None:
            self.diskless.metadata_changed(delta)

    def cordon(self) -> None:
        self.logs.cordon(self._environment.config.cordoned_log_dirs)

    def cordoned_ids(self) -> list[UUID]:
        """Return the directories that get no new replicas (KIP-1066)."""
        cordoned = self.logs.registry.cordoned
        every = self._environment.directories.all
        return [each.id for each in every if each.path in cordoned and each.id is not None]

    # Log events

    def _directory_failed(self, directory: LogDirectory, logs: Sequence[PartitionLog]) -> None:
        log.info(
            "Log directory %s failed: %d partitions are offline; OfflineLogDirectoryCount is %d of %d",
            directory.path,
            len(logs),
            self.logs.gauges()["OfflineLogDirectoryCount"],
            len(self._environment.directories.all),
        )
        if self.partitions is None:
            return  # found during log loading; nothing uses the logs yet
        lost = self.partitions.logs_failed(logs)
        for failed in logs:
            self._gone(failed.topic, failed.partition)
        self.log_directory_reporter.directory_failed(directory.id, lost)

    def _log_failed(self, which: PartitionLog) -> None:
        """Handle a log that failed alone; it stays offline until the next start.

        Its log directory is online, so the controller elects another leader only after a report of
        the replica.
        """
        if self.partitions is None:
            return
        log.error("%s; the replica stays offline until the next start", which.offline().message)
        for partition in self.partitions.logs_failed([which]):
            self._gone(which.topic, which.partition)
            self.log_directory_reporter.lost(partition.topic_id, partition.index)

    def _disk_full(self, which: PartitionLog, error: DiskFull) -> None:
        """Take a full log directory offline if other replicas can lead everything in it.

        Kafka always does so, and stops with its last directory. Otherwise the directory stays
        online, so that it can be read.
        """
        clock = self._environment.seams.clock
        if self.partitions is None or clock.monotonic() < self._next_full_check:
            return
        self._next_full_check = clock.monotonic() + LOOK_SECONDS
        directory = self.logs.directory_of(which)
        live = self._environment.directories.live
        is_last_directory = directory is self._environment.directories.metadata or list(live) == [
            directory
        ]
        for partition in self.partitions:
            if not partition.is_leader or partition.log.failure is not None:
                continue
            goes = is_last_directory or self.logs.directory_of(partition.log) is directory
            leader_role = partition.leader_role
            if goes and (leader_role is None or not leader_role.is_dispensable()):
                return
        directory.fail(error)

    def _role_changed(self, partition: Partition) -> None:
        if partition.log.failure is None:
            self._fetchers.role_changed(partition)
            self._coordinators.role_changed(partition)
            if self.tiered_storage is not None:
                self.tiered_storage.role_changed(partition)
            if self.diskless is not None:
                self.diskless.role_changed(partition)
            self.log_directory_reporter.seen(partition, self.logs.directory_of(partition.log).id)

    def _gone(self, topic: str, index: int) -> None:
        """Stop serving the replica: it was removed, or its log directory is offline."""
        self._fetchers.gone(topic, index)
        self._coordinators.partition_gone(topic, index)
        if self.tiered_storage is not None:
            self.tiered_storage.gone(topic, index)
        if self.diskless is not None:
            self.diskless.partition_gone(topic, index)

    def _replica_lost(self, topic: TopicImage, index: int) -> None:
        """Report a replica without a log.

        If its assigned directory failed or is not in log.dirs, the controller knows that already.
        """
        assigned = topic.partitions[index].directory_of(self._environment.node_id)
        live = (each.id for each in self._environment.directories.live)
        if assigned in (images.UNASSIGNED, images.MIGRATING, *live):
            self.log_directory_reporter.lost(topic.id, index)

    def _replica_moved(self, which: PartitionLog) -> None:
        """Report the new log directory of a moved log."""
        assert self.partitions is not None
        partition = self.partitions.opened(which.topic, which.partition)
        if partition is not None and partition.log is which:
            self.log_directory_reporter.seen(partition, self.logs.directory_of(which).id)

    def _is_elsewhere(self, name: TopicPartition, topic_id: UUID | None) -> bool:
        """Whether the replica is assigned to a log directory that is not online here."""
        if self._is_stray(name, topic_id):
            return False
        image, node_id = self._environment.metadata.image, self._environment.node_id
        assigned = image.topics_by_name[name.topic].partitions[name.partition].directory_of(node_id)
        live = {each.id for each in self._environment.directories.live}
        return assigned.int >= images.RESERVED_DIRECTORIES and assigned not in live
