"""All partition logs of a node: found at start, created, deleted, looked after, closed.

Not among them: `__cluster_metadata-0`, which the Raft log opens itself in the metadata directory.

The registry is changed on the loop alone; what touches the disk for long goes through offload, on
the lane of its directory. Every log is in exactly one directory, and goes with it:

- A directory that meets an I/O error (`directories/failure.py`) is taken offline as a whole: its
  logs raise LogFailed from then on, the others go on. When none is left, or the metadata directory
  failed, `all_failed` is set, and the node has to end.
- A partition found in several directories is served from none until one alone is left; a copy that holds nothing
  gives way to another one.
- A log that makes no sense (`partition.metadata` is damaged) is offline by itself.

In which order things become durable:

- create: checkpoints without an earlier log of that name, the partition's directory and files, its name
  in the log directory, then it is visible.
  A crash before leaves a directory without records, which the next start opens, and which is a
  stray if the cluster's state does not know it.
- delete: the rename to `-delete`, the log directory synced, checkpoints without it; then the name
  may be used again, and the removal is scheduled. A crash before the sync may bring the old name
  back: a stray again. One after it leaves a `-delete` directory, and a checkpoint entry at worst,
  which the end of the next load drops before any log of that name can be created.
- load and close: `loading.py`, `shutdown.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVarTuple
from uuid import UUID

import trio

from odradek.seams.files import Path
from odradek.seams.workers import Workers
from odradek.storage.compaction.cleaners import Cleaners
from odradek.storage.compaction.settings import CleanerSettings
from odradek.storage.descriptors import run_retrying_descriptors
from odradek.storage.directories import names
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.clean_shutdown import CleanMark
from odradek.storage.directories.directory import LogDirectory
from odradek.storage.directories.errors import NoDirectory
from odradek.storage.directories.names import TopicPartition
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import LogEnvironment, PartitionLog
from odradek.storage.log.truncation import EmptyLogStart
from odradek.storage.log_manager import background_tasks, shutdown
from odradek.storage.log_manager import loading as log_loading
from odradek.storage.log_manager.background_tasks import Flushing
from odradek.storage.log_manager.creation import Creation
from odradek.storage.log_manager.deletion import LogRemoval
from odradek.storage.log_manager.directory_logs import DirectoryLogs
from odradek.storage.log_manager.loaded_logs import LoadedLogs
from odradek.storage.log_manager.registry import (
    IsStray,
    OfflineLog,
    no_stray_logs,
    offline_reason,
)
from odradek.storage.log_manager.services import Intervals, LogServices
from odradek.storage.moving.leftovers import Leftovers
from odradek.storage.moving.mover import Mover
from odradek.storage.moving.settings import MoverSettings

log = logging.getLogger(__name__)

__all__ = ["Intervals", "LogManager", "LogServices"]


Ts = TypeVarTuple("Ts")


def _now() -> None:
    """Whenever its turn comes."""


class LogManager:
    """See the module. Everything but `get`, `logs` and the properties may wait for the disk."""

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
        self.homes = services.homes
        self.home_of = services.registry.home_of
        self.logs = services.logs
        self.report = services.report
        self.report_at = services.report_at
        self.checkpoint = services.checkpoint
        self.all_failed = trio.Event()
        """Set when the last directory or the metadata directory has failed: the node must shut down."""
        self._on_failure = on_failure
        self._on_failed_alone = on_log_failed
        self.flushing = Flushing(services)
        self.cleaners = (
            None
            if workers is None
            else Cleaners(services, workers, services.entropy, cleaner_settings)
        )
        self._opener = log_loading.LogOpener(
            LogEnvironment(
                services.files,
                services.clock,
                services.entropy,
                producer_id_expiration_ms=lambda: self.intervals().producer_id_expiration_ms,
            ),
            on_failure=services.report,
            on_full=partial(services.report, undone=True),
            on_log_failed=self._failed_alone,
            on_checkpoint_due=self._checkpoint_due,
            on_flush_due=self._flush_due,
        )
        self.mover = Mover(services, self.cleaners, mover_settings)
        self._marks: list[CleanMark | None] = []
        self._exhausted: Exception | None = None
        self._creation = Creation(
            self.registry, self._opener, self.clock, self.offload, self.config_of
        )
        self.log_removal = LogRemoval(
            self.registry,
            self.directory_deletion,
            self.files,
            self.clock,
            services.entropy,
            self.offload,
            self.mover.cancel,
        )
        self._leftovers = Leftovers(services, self.mover, self.log_removal)
        self._token: trio.lowlevel.TrioToken | None = None
        for directory in self.directories.every:
            directory.on_failure = self._directory_failed

    # What there is

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """None: not here. Raises LogFailed if it is in a directory that went offline."""
        return self.registry.get(TopicPartition(topic, partition))

    def directory_of(self, log: PartitionLog) -> LogDirectory:
        """The directory a log is in. KeyError for a log of nobody's here."""
        return self.registry.home_of(log).directory

    @property
    def offline(self) -> Sequence[TopicPartition]:
        """Partitions that are known to be here, and cannot be served."""
        return tuple(self.registry.offline)

    @property
    def previous_broker_epoch(self) -> int:
        """What the node's last run was registered with, if it ended cleanly (KIP-966); else -1.

        Known after `load`, and only where every directory says so, and the same.
        """
        return log_loading.common_broker_epoch(self._marks, len(self.registry.every_home))

    def gauges(self) -> dict[str, int]:
        """Kafka's of `kafka.log:type=LogManager`, by name and, where there is one, `logDirectory`."""
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
        """Open all logs there are; recovers what was not closed cleanly. Once, before all else.

        Of a partition that is in several directories, those that the cluster does not have here are set
        aside, as `rename_stray_logs` does it, until one is left, or only such as it has. A disk that fails takes its directory offline, a log that makes no sense only itself. Raises
        NoDirectory where there are too few file descriptors.
        """
        self._token = trio.lowlevel.current_trio_token()
        started = self.clock.monotonic()
        loadings = [self._loading(home) for home in self.homes()]
        async with trio.open_nursery() as nursery:
            for loading in loadings:
                nursery.start_soon(loading.survey)
        await self._leftovers.judge(loadings)
        adoption = LoadedLogs(self.registry, self.offload, is_stray)
        async with trio.open_nursery() as nursery:
            for loading in loadings:
                nursery.start_soon(self._load, loading, adoption)
        if self._exhausted is not None:
            raise NoDirectory(f"too few file descriptors ({self._exhausted}): raise ulimit -n")
        for home, stray in adoption.strays:
            name = TopicPartition(stray.topic, stray.partition)
            await self.log_removal.rename_found_to_stray(home, name, [str(name)], stray)
        await self._leftovers.see_to()
        log.info(
            "loaded %d logs in %.2f s", len(self.registry.logs), self.clock.monotonic() - started
        )
        if not self.homes():
            self.all_failed.set()

    async def promote_moved(
        self,
        is_elsewhere: Callable[[TopicPartition, UUID | None], bool] = lambda name, id: False,
        is_stray: IsStray = no_stray_logs,
    ) -> None:
        """After `load`, once the cluster's metadata is known and strays were set aside: replicas whose swap
        a crash cut short are served from where they were moved to (J-14), unless `is_elsewhere(replica,
        topic id)`. Copies of other topics than the cluster has here are set aside, too."""
        await self._leftovers.promote(is_elsewhere, is_stray)

    def _loading(self, home: DirectoryLogs) -> log_loading.DirectoryLoader:
        return log_loading.DirectoryLoader(
            home,
            self._opener,
            self.offload,
            self.config_of,
            self.intervals().recovery_threads_per_directory,
        )

    async def _load(self, loading: log_loading.DirectoryLoader, adoption: LoadedLogs) -> None:
        home = loading.home
        await loading.open(adoption.adopt)
        self._marks.append(loading.mark)
        self._exhausted = self._exhausted or loading.exhausted
        if home.directory.failed:
            for name in loading.found.live:
                if name not in self.registry.logs:
                    self.registry.offline[name] = OfflineLog(offline_reason(home.directory), None)
            return
        for directory_name in loading.found.deleted:
            path = home.directory.path / directory_name
            topic = names.parse(directory_name).topic_partition.topic
            self.directory_deletion.schedule(
                home.directory, path, self.config_of(topic).file_delete_delay_ms
            )

    # Creating

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
        """Open a new log, in `directory_id` or where placement likes it best; or get the one there is.

        `is_new=False` (the replica existed before) is refused while a directory is offline: the log
        may be in there. A new topic may have the name of one that is offline: when that comes back
        it is a stray. Raises LogFailed, DiskFull, NoDescriptors; InconsistentTopicId if the one
        there is belongs to another topic.
        """
        return await self._creation.create(
            TopicPartition(topic, partition),
            topic_id,
            config,
            is_new=is_new,
            directory_id=directory_id,
        )

    async def assign_topic_id(self, which: PartitionLog, topic_id: UUID) -> None:
        """See `PartitionLog.assign_topic_id`. Raises LogFailed, DiskFull."""
        async with self.registry.maintenance_lock_held(which) as home:
            await self.offload.run(which.assign_topic_id, topic_id, lane=home.directory.lane)

    # Taking away

    async def delete(self, *partitions: TopicPartition) -> None:
        """Take logs away: renamed to `-delete` now, removed after `file.delete.delay.ms`.

        Those that are not here are skipped. After this returns the names can be used again. Raises
        LogFailed, after all others are done, if one is in a directory that is offline.
        """
        await self.log_removal.delete(partitions)

    async def rename_stray_logs(self, is_stray: IsStray) -> list[TopicPartition]:
        """Rename to `-stray`, and close, the logs that the cluster does not assign to this node.

        They are kept: a directory that was offline while its topics were deleted and created anew
        looks the same as one that somebody put here by mistake.
        """
        logs = self.registry.logs
        strays = [name for name, each in logs.items() if is_stray(name, each.topic_id)]
        await self.log_removal.rename_to_stray(strays)
        return strays

    async def rename_to_stray(self, name: TopicPartition) -> None:
        """As `rename_stray_logs`, all that is here of a partition, served or not: its name is another
        topic's by now. What can't be renamed stays, and goes on being in the way."""
        await self.log_removal.rename_to_stray([name])
        await self.log_removal.rename_unserved_to_stray(name)

    # Flushing

    async def flush(self, which: PartitionLog, up_to: int) -> None:
        """Return when all below offset `up_to` is durable; those who wait together share a flush.

        Raises LogFailed, DiskFull.
        """
        async with self.registry.maintenance_lock_held(which) as home:
            if which.recovery_point < up_to:
                await self.offload.run(which.flush, lane=home.directory.lane)
            which.flushed()

    # Truncating

    async def truncate(
        self, which: PartitionLog, offset: int, *, begin: Callable[[], None] = _now
    ) -> None:
        """As `PartitionLog.truncate_to`, beside nothing else that changes the log's files.

        `begin` is called when the log's turn has come, which may take long: on the loop, and the cut
        is made unless it raises. From then on the caller sees to it that nothing is appended. Raises
        what `begin` does, LogFailed, DiskFull.
        """
        async with self.registry.maintenance_lock_held(which) as home:
            begin()
            before = which.log_start_offset
            await self.offload.run(which.truncate_to, offset, lane=home.directory.lane)
            await self._started_lower(which, home, before)

    async def truncate_fully(
        self, which: PartitionLog, beginning: EmptyLogStart, *, begin: Callable[[], None] = _now
    ) -> None:
        """As `PartitionLog.truncate_fully`; else as `truncate`. The checkpoint of where the log starts comes
        last. Raises what `begin` does, LogFailed."""
        async with self.registry.maintenance_lock_held(which) as home:
            begin()
            before = which.log_start_offset
            await self.offload.run(which.truncate_fully, beginning, lane=home.directory.lane)
            await self._started_lower(which, home, before)
        if beginning.log_start_offset != beginning.offset:
            await self.checkpoint((Checkpoint.LOG_START,), home.directory)

    async def _started_lower(self, which: PartitionLog, home: DirectoryLogs, before: int) -> None:
        """By the old checkpoint the next start would take for deleted what is appended from here on. A
        directory that can't have the new one is offline, be it full: here nothing is undone."""
        if which.log_start_offset >= before:
            return
        write, lane = partial(home.write_checkpoints, (Checkpoint.LOG_START,)), home.directory.lane
        try:
            await run_retrying_descriptors(self.clock, self.offload, write, lane=lane)
        except OSError as error:
            home.directory.report(error)

    # Configs

    def update_configs(self, topics: Iterable[str] | None = None) -> None:
        """Ask `config_for` again, for these topics' logs or for all; all means the broker's own
        configs have changed, and the cleaner's with them."""
        if topics is None:
            self.mover.settings_changed()
            if self.cleaners is not None:
                self.cleaners.settings_changed()
        wanted = None if topics is None else frozenset(topics)
        configs: dict[str, LogConfig] = {}
        for name, each in self.registry.logs.items():
            if wanted is not None and name.topic not in wanted:
                continue
            if name.topic not in configs:
                configs[name.topic] = self.config_of(name.topic)
            each.update_config(configs[name.topic])

    def cordon(self, paths: frozenset[Path]) -> None:
        """These log directories get no new partitions from now on, and no moves that are asked for
        (KIP-1066); what is in them, or on its way, stays."""
        registry = self.registry
        for path in sorted(paths - registry.cordoned):
            log.info("log directory %s is cordoned: it gets no new partitions", path)
        for path in sorted(registry.cordoned - paths):
            log.info("log directory %s is not cordoned any more", path)
        registry.cordoned = paths

    # Failure

    def _checkpoint_due(self, which: PartitionLog) -> None:
        """A log goes on once its recovery point is durable, which may be lower than before."""
        home = self.registry.every_home[which.directory.parent]
        home.write_checkpoints((Checkpoint.RECOVERY_POINT, Checkpoint.CLEANER))

    def _flush_due(self, which: PartitionLog, up_to: int) -> None:
        """From any thread: a log wants to be synced."""
        self._on_loop(self.flushing.due, which, up_to)

    def _failed_alone(self, which: PartitionLog) -> None:
        """From any thread: a log is offline by itself."""
        if self._on_failed_alone is not None:
            self._on_loop(self._on_failed_alone, which)

    def _directory_failed(self, directory: LogDirectory) -> None:
        self._on_loop(self._drop, directory)

    def _on_loop(self, act: Callable[[*Ts], object], *args: *Ts) -> None:
        """Now, if this is the loop; soon, from another thread; now, where there is no loop yet."""
        if self._token is None or trio.lowlevel.in_trio_run():
            act(*args)
        else:
            self._token.run_sync_soon(act, *args)

    def _drop(self, directory: LogDirectory) -> None:
        """On the loop: the logs of a failed directory are served no longer."""
        lost = self.registry.drop(directory)
        self.mover.directory_failed(directory.path)
        if self._on_failure is not None:
            self._on_failure(directory, lost)
        if not self.homes() or directory is self.directories.metadata:
            log.critical(
                "%s was the last or the metadata directory: the node must end", directory.path
            )
            self.all_failed.set()

    # Housekeeping and the end

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Housekeeping, until cancelled: retention, flushes, checkpoints, removal of the deleted."""
        tasks = [self.mover.run]
        if self.cleaners is not None:
            tasks.append(self.cleaners.run)
        await background_tasks.run(self.services, self.flushing, tasks, task_status=task_status)

    async def close(self, *, broker_epoch: int = -1) -> None:
        """Flush, snapshot and close all logs, write the checkpoints, and the clean mark last.

        The directories' locks are still held: `directories.close()` gives them back, once whoever
        else has files in them (the metadata log) has closed too.
        """
        await self.mover.park_all()
        async with trio.open_nursery() as nursery:
            for home in self.homes():
                nursery.start_soon(self._close, home, broker_epoch)
        self.registry.logs.clear()

    async def _close(self, home: DirectoryLogs, broker_epoch: int) -> None:
        workers = self.intervals().recovery_threads_per_directory
        await shutdown.close(home, self.offload, workers, broker_epoch=broker_epoch)
