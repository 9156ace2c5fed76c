"""Manager of all partition logs of a node (Kafka's LogManager): load, create, delete, background tasks,
close.

It does not manage `__cluster_metadata-0`, which the Raft log opens itself in the metadata directory.

The registry is changed only on the loop; slow disk operations run in worker threads, on the lane of
their directory. Every log is in exactly one log directory:

- A directory with an I/O error (`directories/io_errors.py`) goes offline as a whole: its logs raise
  LogFailed, the others are served. If it was the last one or the metadata directory, `storage_failed` is
  set, and the node must shut down.
- A partition that is found in several directories is not served until only one log remains; an empty
  copy is removed.
- A log that cannot be opened (`partition.metadata` is damaged) is offline alone.

Durability:

- create: see `creation.py`.
- delete: the rename to `-delete`, the sync of the log directory, the checkpoints without the log; then
  the name is free and the removal is scheduled. After a crash before the sync the old name may return: a
  stray log. After a later crash a `-delete` directory remains, and at most a checkpoint entry, which the
  next load removes before a log of that name can be created.
- load and close: see `loading.py` and `directory_logs.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVarTuple
from uuid import UUID

import trio

from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Path
from odradek.seams.workers import Workers
from odradek.storage.compaction.cleaner_settings import CleanerSettings
from odradek.storage.compaction.log_cleaner import LogCleaner
from odradek.storage.directories import names
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.clean_shutdown import CleanShutdownFile
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.errors import NoDirectory
from odradek.storage.file_descriptor_retry import retry_without_descriptors
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import LogEnvironment, PartitionLog
from odradek.storage.log.truncation import EmptyLogStart
from odradek.storage.log_manager import background_tasks
from odradek.storage.log_manager import loading as log_loading
from odradek.storage.log_manager.background_tasks import FlushQueues
from odradek.storage.log_manager.creation import LogCreation
from odradek.storage.log_manager.interrupted_moves import InterruptedMoves
from odradek.storage.log_manager.loaded_logs import LoadedLogs
from odradek.storage.log_registry.deletion import LogRemoval
from odradek.storage.log_registry.directory_logs import DirectoryLogs, close_cleanly
from odradek.storage.log_registry.registry import (
    IsStray,
    OfflineLog,
    no_stray_logs,
    offline_reason,
)
from odradek.storage.log_registry.services import LogManagerIntervals, LogServices
from odradek.storage.moving.mover import Mover, MoverSettings

_logger = logging.getLogger("odradek.log_manager")

__all__ = ["LogManagerIntervals", "LogManager", "LogServices"]


Ts = TypeVarTuple("Ts")


def _do_nothing() -> None:
    """Default of `begin`: does nothing."""


class LogManager:
    """All partition logs of a node. Methods other than `get`, `logs` and the properties may wait for
    the disk."""

    def __init__(
        self,
        services: LogServices,
        *,
        on_failure: Callable[[LogDirectory, Sequence[PartitionLog]], None] | None = None,
        on_log_failed: Callable[[PartitionLog], None] | None = None,
        workers: Workers | None = None,
        cleaner_settings: Callable[[], CleanerSettings] = CleanerSettings,
        mover_settings: Callable[[], MoverSettings] = MoverSettings,
    ) -> None:
        """Create the manager; `load` opens the logs.

        `on_failure` is called on the loop after a directory went offline, with its logs;
        `on_log_failed` after a single log did. Without `workers` there is no log cleaner.
        """
        self.services = services
        self.directories = services.directories
        self.registry = services.registry
        self.intervals = services.intervals
        self.files = services.files
        self.clock = services.clock
        self.offload = services.offload
        self.directory_deletion = services.directory_deletion
        self.config_of = services.config_for
        self.online_directories = services.online_directories
        self.directory_logs_of = services.registry.directory_logs_of
        self.logs = services.logs
        self.report = services.report
        self.report_at = services.report_at
        self.checkpoint = services.checkpoint
        self.storage_failed = trio.Event()
        """Set when the last directory or the metadata directory has failed: the node must shut down."""
        self._on_failure = on_failure
        self._on_failed_alone = on_log_failed
        self.flushing = FlushQueues(services)
        self.log_cleaner = (
            None
            if workers is None
            else LogCleaner(services, workers, services.entropy, cleaner_settings)
        )
        self._opener = self._new_opener()
        self.mover = Mover(services, self.log_cleaner, mover_settings)
        self._clean_shutdown_files: list[CleanShutdownFile | None] = []
        self._exhausted: Exception | None = None
        self._creation = LogCreation(
            self.registry, self._opener, self.clock, self.offload, self.config_of
        )
        self.log_removal = self._new_log_removal()
        self._interrupted_moves = InterruptedMoves(services, self.mover, self.log_removal)
        self._token: trio.lowlevel.TrioToken | None = None
        for directory in self.directories.every:
            directory.on_failure = self._directory_failed

    def _new_opener(self) -> log_loading.LogOpener:
        services = self.services
        return log_loading.LogOpener(
            LogEnvironment(
                services.files,
                services.clock,
                services.entropy,
                producer_id_expiration_ms=lambda: self.intervals().producer_id_expiration_ms,
            ),
            on_failure=services.report,
            on_full=partial(services.report, files_unchanged=True),
            on_log_failed=self._failed_alone,
            on_checkpoint_due=self._checkpoint_due,
            on_flush_due=self._flush_due,
        )

    def _new_log_removal(self) -> LogRemoval:
        return LogRemoval(
            self.registry,
            self.directory_deletion,
            self.files,
            self.clock,
            self.services.entropy,
            self.offload,
            self.mover.cancel,
        )

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """The log of a partition; None if it is not on this node. Raises LogFailed if it is offline."""
        return self.registry.get(TopicPartition(topic, partition))

    def directory_of(self, log: PartitionLog) -> LogDirectory:
        """The log directory of a log. Raises KeyError if the log is not of this manager."""
        return self.registry.directory_logs_of(log).directory

    @property
    def offline(self) -> Sequence[TopicPartition]:
        """Partitions that are on this node and cannot be served."""
        return tuple(self.registry.offline)

    @property
    def previous_broker_epoch(self) -> int:
        """Broker epoch of the previous run if it ended with a clean shutdown (KIP-966); otherwise -1.

        Available after `load`; the clean shutdown files of all log directories must contain the same epoch.
        """
        return log_loading.common_broker_epoch(
            self._clean_shutdown_files, len(self.registry.logs_by_directory)
        )

    def gauges(self) -> dict[str, int]:
        """Values of Kafka's `kafka.log:type=LogManager` metrics, by name and, if any, `logDirectory`."""
        found = {
            "OfflineLogDirectoryCount": sum(each.failed for each in self.directories.all),
            "CordonedLogDirectoryCount": len(self.registry.cordoned),
        }
        for each in self.directories.all:
            found[f"LogDirectoryOffline,logDirectory={each.path}"] = int(each.failed)
            found[f"LogDirectoryCordoned,logDirectory={each.path}"] = int(
                each.path in self.registry.cordoned
            )
        return found

    # Start

    async def load(self, is_stray: IsStray = no_stray_logs) -> None:
        """Open all logs, and recover those that were not closed cleanly. Called once, first.

        If a partition is in several directories, copies that the cluster does not assign here are
        renamed to `-stray` while others remain. A failing disk takes its directory offline, a damaged
        log only itself. Raises NoDirectory if there are too few file descriptors.
        """
        self._token = trio.lowlevel.current_trio_token()
        started = self.clock.monotonic()
        loaders = [self._new_loader(directory_logs) for directory_logs in self.online_directories()]
        async with trio.open_nursery() as nursery:
            for loader in loaders:
                nursery.start_soon(loader.scan_directory)
        await self._interrupted_moves.find(loaders)
        loaded_logs = LoadedLogs(self.registry, self.offload, is_stray)
        async with trio.open_nursery() as nursery:
            for loader in loaders:
                nursery.start_soon(self._load, loader, loaded_logs)
        if self._exhausted is not None:
            raise NoDirectory(f"too few file descriptors ({self._exhausted}): raise ulimit -n")
        for directory_logs, stray in loaded_logs.strays:
            name = TopicPartition(stray.topic, stray.partition)
            await self.log_removal.rename_found_to_stray(directory_logs, name, [str(name)], stray)
        await self._interrupted_moves.resume()
        _logger.info(
            "loaded %d logs in %.2f s", len(self.registry.logs), self.clock.monotonic() - started
        )
        if not self.online_directories():
            self.storage_failed.set()

    async def promote_moved(
        self,
        is_elsewhere: Callable[[TopicPartition, UUID | None], bool] = lambda name, id: False,
        is_stray: IsStray = no_stray_logs,
    ) -> None:
        """Complete swaps that a crash interrupted: the future replica becomes the log (J-14), unless
        `is_elsewhere(replica, topic id)`. Called after `load`, once the cluster metadata is known
        and stray logs are renamed. Future replicas with another topic id than the cluster has are
        renamed to `-stray`."""
        await self._interrupted_moves.promote(is_elsewhere, is_stray)

    def _new_loader(self, directory_logs: DirectoryLogs) -> log_loading.DirectoryLoader:
        return log_loading.DirectoryLoader(
            directory_logs,
            self._opener,
            self.offload,
            self.config_of,
            self.intervals().recovery_threads_per_directory,
        )

    async def _load(self, loader: log_loading.DirectoryLoader, loaded_logs: LoadedLogs) -> None:
        directory_logs = loader.directory_logs
        await loader.open(loaded_logs.adopt)
        self._clean_shutdown_files.append(loader.clean_shutdown_file)
        self._exhausted = self._exhausted or loader.exhausted
        if directory_logs.directory.failed:
            for name in loader.found.live:
                if name not in self.registry.logs:
                    self.registry.offline[name] = OfflineLog(
                        offline_reason(directory_logs.directory), None
                    )
            return
        for directory_name in loader.found.deleted:
            path = directory_logs.directory.path / directory_name
            topic = names.parse(directory_name).topic_partition.topic
            self.directory_deletion.schedule(
                directory_logs.directory, path, self.config_of(topic).file_delete_delay_ms
            )

    # Creation

    async def create(
        self,
        topic: str,
        partition: int,
        topic_id: UUID,
        config: LogConfig | None = None,
        *,
        is_new: bool = True,
        directory_id: UUID | None = None,
    ) -> PartitionLog:
        """Create a log in `directory_id` or in the directory that placement prefers; return an existing
        log.

        With `is_new=False` (an existing replica) the call fails while a directory is offline, because
        the log may be in it. A new topic may have the name of an offline log, which is a stray log when
        its directory returns. Raises LogFailed, DiskFull, NoDescriptors; InconsistentTopicId if the
        existing log belongs to another topic.
        """
        return await self._creation.create(
            TopicPartition(topic, partition),
            topic_id,
            config,
            is_new=is_new,
            directory_id=directory_id,
        )

    async def assign_topic_id(self, partition_log: PartitionLog, topic_id: UUID) -> None:
        """Write the topic id of a log that has none; see `PartitionLog.assign_topic_id`. Raises
        LogFailed, DiskFull."""
        async with self.registry.holding_file_lock(partition_log) as directory_logs:
            await self.offload.run(
                partition_log.assign_topic_id, topic_id, lane=directory_logs.directory.lane
            )

    # Deletion

    async def delete(self, *partitions: TopicPartition) -> None:
        """Delete logs: rename them to `-delete` now, remove them after `file.delete.delay.ms`.

        Partitions that are not on this node are skipped. When this returns, the names are free. Raises
        LogFailed, after all others are deleted, if a log is in an offline directory.
        """
        await self.log_removal.delete(partitions)

    async def rename_stray_logs(self, is_stray: IsStray) -> list[TopicPartition]:
        """Close the logs that the cluster does not assign to this node, and rename them to `-stray`.

        They are kept, because a log whose topic was deleted while the directory was offline cannot be
        distinguished from one that an operator has put here by mistake.
        """
        logs = self.registry.logs
        strays = [name for name, each in logs.items() if is_stray(name, each.topic_id)]
        await self.log_removal.rename_to_stray(strays)
        return strays

    async def rename_to_stray(self, name: TopicPartition) -> None:
        """Rename all logs of a partition to `-stray`, served or not: its name now belongs to another
        topic. A log that cannot be renamed stays, and its name stays in use."""
        await self.log_removal.rename_to_stray([name])
        await self.log_removal.rename_offline_to_stray(name)

    async def flush(self, partition_log: PartitionLog, up_to: int) -> None:
        """Return when everything below offset `up_to` is durable; concurrent callers share a flush.

        Raises LogFailed, DiskFull.
        """
        async with self.registry.holding_file_lock(partition_log) as directory_logs:
            if partition_log.recovery_point < up_to:
                await self.offload.run(partition_log.flush, lane=directory_logs.directory.lane)
            partition_log.flushed()

    # Truncation

    async def truncate(
        self, partition_log: PartitionLog, offset: int, *, begin: Callable[[], None] = _do_nothing
    ) -> None:
        """Truncate a log (`PartitionLog.truncate_to`); no other operation changes its files meanwhile.

        `begin` is called on the loop once the file lock is held, which may take long; if it raises,
        nothing is truncated. After `begin` the caller must not append. Raises what `begin` raises,
        LogFailed, DiskFull.
        """
        async with self.registry.holding_file_lock(partition_log) as directory_logs:
            begin()
            before = partition_log.log_start_offset
            await self.offload.run(
                partition_log.truncate_to, offset, lane=directory_logs.directory.lane
            )
            await self._write_lowered_log_start(partition_log, directory_logs, before)

    async def truncate_fully(
        self,
        partition_log: PartitionLog,
        beginning: EmptyLogStart,
        *,
        begin: Callable[[], None] = _do_nothing,
    ) -> None:
        """Delete a log's records (`PartitionLog.truncate_fully`), under the same rules as `truncate`.
        The log start offset checkpoint is written last. Raises what `begin` raises, LogFailed."""
        async with self.registry.holding_file_lock(partition_log) as directory_logs:
            begin()
            before = partition_log.log_start_offset
            await self.offload.run(
                partition_log.truncate_fully, beginning, lane=directory_logs.directory.lane
            )
            await self._write_lowered_log_start(partition_log, directory_logs, before)
        if beginning.log_start_offset != beginning.offset:
            await self.checkpoint((Checkpoint.LOG_START,), directory_logs.directory)

    async def _write_lowered_log_start(
        self, partition_log: PartitionLog, directory_logs: DirectoryLogs, before: int
    ) -> None:
        """Write a lowered log start offset: with the old checkpoint, the next start would delete
        later appends. If this fails, the directory goes offline, even if it is only full, because the
        truncation cannot be undone."""
        if partition_log.log_start_offset >= before:
            return
        write, lane = (
            partial(directory_logs.write_checkpoints, (Checkpoint.LOG_START,)),
            directory_logs.directory.lane,
        )
        try:
            await retry_without_descriptors(self.clock, self.offload, write, lane=lane)
        except OSError as error:
            directory_logs.directory.report(error)

    # Configs

    def update_configs(self, topics: Iterable[str] | None = None) -> None:
        """Apply the configs of these topics, or of all topics, brokers and the log cleaner, to their
        logs."""
        if topics is None:
            self.mover.settings_changed()
            if self.log_cleaner is not None:
                self.log_cleaner.settings_changed()
        wanted = None if topics is None else frozenset(topics)
        configs: dict[str, LogConfig] = {}
        for name, each in self.registry.logs.items():
            if wanted is not None and name.topic not in wanted:
                continue
            if name.topic not in configs:
                configs[name.topic] = self.config_of(name.topic)
            each.update_config(configs[name.topic])

    def cordon(self, paths: frozenset[Path]) -> None:
        """Cordon these log directories (KIP-1066): they get no new partitions and accept no new
        moves. Their logs and the moves in progress stay."""
        registry = self.registry
        for path in sorted(paths - registry.cordoned):
            _logger.info("log directory %s is cordoned and gets no new partitions", path)
        for path in sorted(registry.cordoned - paths):
            _logger.info("log directory %s is no longer cordoned", path)
        registry.cordoned = paths

    # Failure

    def _checkpoint_due(self, partition_log: PartitionLog) -> None:
        """Write the recovery point of a log, which may be lower than before, before the log
        continues."""
        directory_logs = self.registry.logs_by_directory[partition_log.directory.parent]
        directory_logs.write_checkpoints((Checkpoint.RECOVERY_POINT, Checkpoint.CLEANER))

    def _flush_due(self, partition_log: PartitionLog, up_to: int) -> None:
        """Queue a flush; called from any thread."""
        self._on_loop(self.flushing.due, partition_log, up_to)

    def _failed_alone(self, partition_log: PartitionLog) -> None:
        """Notify `on_log_failed`; called from any thread."""
        if self._on_failed_alone is not None:
            self._on_loop(self._on_failed_alone, partition_log)

    def _directory_failed(self, directory: LogDirectory) -> None:
        self._on_loop(self._drop, directory)

    def _on_loop(self, act: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call `act` on the loop: now if this is the loop or no loop runs yet, otherwise soon."""
        if self._token is None or trio.lowlevel.in_trio_run():
            act(*args)
        else:
            self._token.run_sync_soon(act, *args)

    def _drop(self, directory: LogDirectory) -> None:
        """Stop serving the logs of a failed directory, on the loop."""
        lost = self.registry.drop(directory)
        self.mover.directory_failed(directory.path)
        if self._on_failure is not None:
            self._on_failure(directory, lost)
        if not self.online_directories() or directory is self.directories.metadata:
            _logger.info(
                "shutting down, because the last log directory or the metadata log directory has failed: %s",
                directory.path,
            )
            self.storage_failed.set()

    # Background tasks and shutdown

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the background tasks until cancelled: retention, flushes, checkpoints, deletion, log
        cleaner, moves."""
        tasks = [self.mover.run]
        if self.log_cleaner is not None:
            tasks.append(self.log_cleaner.run)
        await background_tasks.run(self.services, self.flushing, tasks, task_status=task_status)

    async def close(self, *, broker_epoch: int = -1) -> None:
        """Flush, snapshot and close all logs, write the checkpoints, and the clean shutdown file last.

        The directories stay locked: `LogDirectories.close` unlocks them, after the metadata log in them
        is closed too.
        """
        await self.mover.convert_all_for_kafka()
        async with trio.open_nursery() as nursery:
            for directory_logs in self.online_directories():
                nursery.start_soon(self._close, directory_logs, broker_epoch)
        self.registry.logs.clear()

    async def _close(self, directory_logs: DirectoryLogs, broker_epoch: int) -> None:
        workers = self.intervals().recovery_threads_per_directory
        await close_cleanly(directory_logs, self.offload, workers, broker_epoch=broker_epoch)
