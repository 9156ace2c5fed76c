"""All partition logs of a node: found at start, created, deleted, looked after, closed.

Not among them: `__cluster_metadata-0`, which the Raft log opens itself in the metadata directory.

The registry is changed on the loop alone; what touches the disk for long goes through offload, on
the lane of its directory. Every log is in exactly one directory, and goes with it:

- A directory that meets an I/O error (`directories/failure.py`) is taken offline as a whole: its
  logs raise LogFailed from then on, the others go on. When none is left, or the metadata directory
  failed, `all_failed` is set, and the node has to end.
- A partition found in several directories is served from none until one alone is left.
- A log that makes no sense (`partition.metadata` is damaged) is offline by itself.

In which order things become durable:

- create: the partition's directory and files, its name in the log directory, then it is visible.
  A crash before leaves a directory without records, which the next start opens, and which is a
  stray if the cluster's state does not know it.
- delete: the rename to `-delete`, the log directory synced, checkpoints without it; then the name
  may be used again, and the removal is scheduled. A crash before the sync may bring the old name
  back: a stray again. One after it leaves a `-delete` directory, and a checkpoint entry at worst,
  which the end of the next load drops before any log of that name can be created.
- load and close: `log_loading.py`, `log_closing.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVarTuple
from uuid import UUID

import trio

from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, OutOfDescriptors, Path
from odradek.seams.offload import Offload
from odradek.seams.workers import Workers
from odradek.storage import log_closing, log_housekeeping, log_loading
from odradek.storage.compaction.cleaners import Cleaners
from odradek.storage.compaction.settings import CleanerSettings
from odradek.storage.directories import names, placement
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.clean_shutdown import CleanMark
from odradek.storage.directories.directory import LogDirectory
from odradek.storage.directories.errors import NoDirectory
from odradek.storage.directories.names import TopicPartition
from odradek.storage.directories.opening import Directories
from odradek.storage.directory_logs import DirectoryLogs
from odradek.storage.errors import (
    DiskFull,
    InconsistentTopicId,
    LogFailed,
    NoDescriptors,
    StorageError,
)
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.partition_metadata import CorruptMetadata
from odradek.storage.log_flushing import Flushing
from odradek.storage.log_housekeeping import Intervals
from odradek.storage.log_loading import Damaged
from odradek.storage.log_removal import Leaving, Removals, rename_away

__all__ = ["Intervals", "LogManager"]

log = logging.getLogger(__name__)

Ts = TypeVarTuple("Ts")


class Offline(NamedTuple):
    """A log that is here and cannot be served; whose it is, as far as is known."""

    reason: str
    topic_id: UUID | None


class LogManager:
    """See the module. Everything but `get`, `logs` and the properties may wait for the disk."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        directories: Directories,
        *,
        config_for: Callable[[str], LogConfig],
        intervals: Intervals | None = None,
        on_failure: Callable[[LogDirectory, Sequence[PartitionLog]], None] | None = None,
        workers: Workers | None = None,
        cleaner_settings: Callable[[], CleanerSettings] = CleanerSettings,
    ) -> None:
        """`config_for` gives a topic's effective config (the broker's defaults for an unknown one).

        `on_failure` is called on the loop when a directory went offline, with the logs that were
        in it. Logs are compacted where there are `workers`, as `cleaner_settings` says by then.
        """
        self.directories = directories
        self.cordoned: frozenset[Path] = frozenset()
        """cordoned.log.dirs: they get no new partitions (KIP-1066)."""
        self.all_failed = trio.Event()
        self.intervals = intervals or Intervals()
        self.files = files
        self.clock = clock
        self.offload = offload
        self.removals = Removals(files, clock, offload)
        self._entropy = entropy
        self._config_for = config_for
        self._on_failure = on_failure
        self.flushing = Flushing(self)
        self.cleaners = (
            None if workers is None else Cleaners(self, workers, entropy, cleaner_settings)
        )
        self._opener = log_loading.Opener(
            files,
            clock,
            entropy,
            on_failure=self.report,
            on_recovery_point_lowered=self._recovery_point_lowered,
            on_flush_due=self._flush_due,
            producer_id_expiration_ms=self.intervals.producer_id_expiration_ms,
        )
        self._marks: list[CleanMark | None] = []
        self._exhausted: Exception | None = None
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._offline: dict[TopicPartition, Offline] = {}
        self._homes = {each.path: DirectoryLogs(each) for each in directories.all}
        self._busy: dict[TopicPartition, trio.Event] = {}
        """Names that are being created or taken away."""
        self._token: trio.lowlevel.TrioToken | None = None
        for directory in directories.every:
            directory.on_failure = self._directory_failed

    # What there is

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """None: not here. Raises LogFailed if it is in a directory that went offline."""
        wanted = TopicPartition(topic, partition)
        found = self._logs.get(wanted)
        if found is None and wanted in self._offline:
            raise LogFailed(self._offline[wanted].reason)
        return found

    def logs(self) -> Sequence[PartitionLog]:
        return tuple(self._logs.values())

    def homes(self) -> Sequence[DirectoryLogs]:
        """The directories that are online, with their logs."""
        return [home for home in self._homes.values() if not home.directory.failed]

    def directory_of(self, log: PartitionLog) -> LogDirectory:
        """The directory a log is in. KeyError for a log of nobody's here."""
        return self.home_of(log).directory

    def home_of(self, log: PartitionLog) -> DirectoryLogs:
        """As `directory_of`, with all its logs."""
        return self._homes[log.directory.parent]

    def directory_by_id(self, id: UUID) -> LogDirectory | None:
        return next((each for each in self.directories.all if each.id == id), None)

    @property
    def offline(self) -> Sequence[TopicPartition]:
        """Partitions that are known to be here, and cannot be served."""
        return tuple(self._offline)

    @property
    def previous_broker_epoch(self) -> int:
        """What the node's last run was registered with, if it ended cleanly (KIP-966); else -1.

        Known after `load`, and only where every directory says so, and the same.
        """
        return log_loading.agreed_epoch(self._marks, len(self._homes))

    # Start

    async def load(self) -> None:
        """Open all logs there are; recovers what was not closed cleanly. Once, before all else.

        A disk that fails takes its directory offline, a log that makes no sense only itself. Raises NoDirectory where there are
        too few file descriptors.
        """
        self._token = trio.lowlevel.current_trio_token()
        started = self.clock.monotonic()
        async with trio.open_nursery() as nursery:
            for home in self.homes():
                nursery.start_soon(self._load, home)
        if self._exhausted is not None:
            raise NoDirectory(f"too few file descriptors ({self._exhausted}): raise ulimit -n")
        log.info("loaded %d logs in %.2f s", len(self._logs), self.clock.monotonic() - started)
        if not self.homes():
            self.all_failed.set()

    async def _load(self, home: DirectoryLogs) -> None:
        loading = log_loading.Loading(
            home,
            self._opener,
            self.offload,
            self._config_for,
            self.intervals.recovery_threads_per_directory,
        )
        await loading.run(self._adopt)
        self._marks.append(loading.mark)
        self._exhausted = self._exhausted or loading.exhausted
        if home.directory.failed:
            for name in loading.found.live:
                if name not in self._logs:
                    self._offline[name] = Offline(_offline_reason(home.directory), None)
            return
        for directory_name in loading.found.deleted:
            path = home.directory.path / directory_name
            topic = names.parse(directory_name).topic_partition.topic
            self.removals.schedule(
                home.directory, path, self._config_for(topic).file_delete_delay_ms
            )

    async def _adopt(
        self, home: DirectoryLogs, name: TopicPartition, found: PartitionLog | Damaged
    ) -> None:
        """A log was found at start: it is served if it is whole, and in no other directory."""
        opened = found if isinstance(found, PartitionLog) else None
        if home.directory.failed:
            reason = _offline_reason(home.directory)
            if opened is not None:
                opened.fail(LogFailed(reason))
            if name not in self._logs:
                self._offline[name] = Offline(reason, None if opened is None else opened.topic_id)
        elif isinstance(found, Damaged):
            home.is_whole = False
            await self._withhold(home, name, None, found.reason)
        elif name in self._logs or name in self._offline:
            await self._withhold(home, name, found, f"{name} is in {found.directory}")
        else:
            home.logs[name] = self._logs[name] = found

    async def _withhold(
        self, home: DirectoryLogs, name: TopicPartition, found: PartitionLog | None, reason: str
    ) -> None:
        """It is not served; nor are its copies, for which of them is right cannot be known here."""
        copies = [] if found is None else [(home, found)]
        home.unserved.add(name)
        topic_id = None if found is None else found.topic_id
        other = self._logs.pop(name, None)
        if other is not None:
            its_home = self._homes[other.directory.parent]
            del its_home.logs[name]
            its_home.unserved.add(name)
            copies.append((its_home, other))
            topic_id = topic_id or other.topic_id
            reason += (
                f" and in {other.directory}: stop the broker and remove the older one "
                f"(a move between directories was cut short)"
            )
        lost = self._offline.get(name)
        if lost is not None:
            topic_id = topic_id or lost.topic_id
            reason += f"; {lost.reason}"
        if copies:
            log.error("%s", reason)
        self._offline[name] = Offline(reason, topic_id)
        for its_home, copy in copies:
            lane = its_home.directory.lane
            if not await self.offload.run(log_closing.close_logs, (copy,), lane=lane):
                its_home.is_whole = False

    def _fence(self, name: TopicPartition, which: PartitionLog, reason: str) -> None:
        which.fail(LogFailed(reason))
        self._logs.pop(name, None)
        self._offline[name] = Offline(reason, which.topic_id)

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
        """Open a new log, in `directory_id` or the directory with the fewest; or get the one there is.

        `is_new=False` (the replica existed before) is refused while a directory is offline: the log
        may be in there. A new topic may have the name of one that is offline: when that comes back
        it is a stray. Raises LogFailed, DiskFull, NoDescriptors; InconsistentTopicId if the one
        there is belongs to another topic.
        """
        name = TopicPartition(topic, partition)
        while (other := self._busy.get(name)) is not None:
            await other.wait()
        existing = self._logs.get(name)
        if existing is not None:
            if existing.topic_id not in (None, topic_id):
                raise InconsistentTopicId(
                    f"{name} here is of topic {existing.topic_id}, not {topic_id}"
                )
            return existing
        lost = self._offline.get(name)
        if lost is not None and (not is_new or lost.topic_id == topic_id):
            raise LogFailed(lost.reason)
        if not is_new and len(self.homes()) < len(self._homes):
            raise LogFailed(f"{name} may be in a log directory that is offline")
        self._busy[name] = made = trio.Event()
        try:
            return await self._create(name, topic_id, config, directory_id)
        finally:
            del self._busy[name]
            made.set()

    async def _create(
        self,
        name: TopicPartition,
        topic_id: UUID,
        config: LogConfig | None,
        directory_id: UUID | None,
    ) -> PartitionLog:
        """In the best place where it succeeds. Raises the last place's error if none is left."""
        asked = config is None
        config = self._config_for(name.topic) if config is None else config
        failed: StorageError = LogFailed(f"no log directory is online for {name}")
        for home in self._places(directory_id):
            try:
                opened = await self._create_in(home, name, topic_id, config)
            except (LogFailed, DiskFull) as error:
                failed = error
                continue
            if asked:  # it may have changed while the disk was busy
                opened.update_config(self._config_for(name.topic))
            self._offline.pop(name, None)
            home.logs[name] = self._logs[name] = opened
            return opened
        raise failed

    def _places(self, directory_id: UUID | None) -> list[DirectoryLogs]:
        wanted = None if directory_id is None else self.directory_by_id(directory_id)
        if wanted is not None:
            return [home for home in self.homes() if home.directory is wanted]
        return placement.best_first(
            placement.Candidate(home, home.count, home.directory.path in self.cordoned)
            for home in self.homes()
        )

    async def _create_in(
        self, home: DirectoryLogs, name: TopicPartition, topic_id: UUID, config: LogConfig
    ) -> PartitionLog:
        """Raises LogFailed and DiskFull, where the next directory may do better, NoDescriptors."""
        directory = home.directory
        home.being_made += 1
        try:
            opened = await self.offload.run(
                self._opener.create, home, name, topic_id, config, lane=directory.lane
            )
        except OutOfDescriptors as error:
            raise NoDescriptors(f"{name} could not be created: {error}") from error
        except OSError as error:
            kind = LogFailed if directory.report(error, undone=True) else DiskFull
            raise kind(f"{name} could not be created: {error}") from error
        except CorruptMetadata as error:
            raise LogFailed(f"{directory.path_of(*name)}: {error}") from error
        finally:
            home.being_made -= 1
        if directory.failed:
            opened.fail(LogFailed(_offline_reason(directory)))
            raise LogFailed(_offline_reason(directory))
        return opened

    # Taking away

    async def delete(self, *partitions: TopicPartition) -> None:
        """Take logs away: renamed to `-delete` now, removed after `file.delete.delay.ms`.

        Those that are not here are skipped. After this returns the names can be used again. Raises
        LogFailed, after all others are done, if one is in a directory that is offline.
        """
        for home, each in await self._take_away(partitions, names.deleted_name, keep=False):
            self.removals.schedule(home.directory, each.path, each.log.config.file_delete_delay_ms)
        lost = [name for name in partitions if name in self._offline]
        if lost:
            raise LogFailed(self._offline[lost[0]].reason)

    async def set_aside_strays(
        self, is_stray: Callable[[PartitionLog], bool]
    ) -> list[TopicPartition]:
        """Rename to `-stray`, and close, the logs that the cluster does not assign to this node.

        They are kept: a directory that was offline while its topics were deleted and created anew
        looks the same as one that somebody put here by mistake.
        """
        strays = [name for name, each in self._logs.items() if is_stray(each)]
        for _, each in await self._take_away(strays, names.stray_name, keep=True):
            log.warning("%s is a stray by the cluster's state: kept as %s", each.log, each.path)
        return strays

    async def _take_away(
        self,
        partitions: Iterable[TopicPartition],
        new_name: Callable[[str, int, UUID], str],
        *,
        keep: bool,
    ) -> list[tuple[DirectoryLogs, Leaving]]:
        """Rename and forget; durable, and out of the checkpoints, when this returns.

        All names are claimed between two awaits, when none is busy: who waits holds none. From
        there on it is not cancelled.
        """
        wanted = dict.fromkeys(partitions)
        while busy := [self._busy[name] for name in wanted if name in self._busy]:
            await busy[0].wait()
        taken = [name for name in wanted if name in self._logs]
        done = trio.Event()
        self._busy |= dict.fromkeys(taken, done)
        gone: list[tuple[DirectoryLogs, Leaving]] = []
        try:
            leaving = self._forget(taken, new_name, keep=keep)
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    for home, group in leaving.items():
                        nursery.start_soon(self._rename_away, home, group, gone)
        finally:
            for name in taken:
                del self._busy[name]
            done.set()
        return gone

    def _forget(
        self,
        names: Iterable[TopicPartition],
        new_name: Callable[[str, int, UUID], str],
        *,
        keep: bool,
    ) -> dict[DirectoryLogs, list[Leaving]]:
        leaving: dict[DirectoryLogs, list[Leaving]] = {}
        for name in names:
            which = self._logs.pop(name)
            home = self._homes[which.directory.parent]
            del home.logs[name]
            if not keep:
                which.fail(LogFailed(f"{name} is deleted"))
            path = home.directory.path / new_name(*name, self._entropy.uuid())
            leaving.setdefault(home, []).append(Leaving(which, path, keep))
        return leaving

    async def _rename_away(
        self,
        home: DirectoryLogs,
        group: list[Leaving],
        gone: list[tuple[DirectoryLogs, Leaving]],
    ) -> None:
        try:
            await rename_away(self.files, self.clock, self.offload, home, group)
        except OSError as error:
            home.directory.fail(error)
            for each in group:
                name = TopicPartition(each.log.topic, each.log.partition)
                self._fence(name, each.log, _offline_reason(home.directory))
        else:
            gone += [(home, each) for each in group]

    # Flushing

    async def flush(self, which: PartitionLog, up_to: int) -> None:
        """Return when all below offset `up_to` is durable; those who wait together share a flush.

        Raises LogFailed, DiskFull.
        """
        home = self._homes[which.directory.parent]
        async with home.maintenance:
            if which.recovery_point < up_to:
                await self.offload.run(which.flush, lane=home.directory.lane)

    # Configs

    def update_configs(self, topics: Iterable[str] | None = None) -> None:
        """Ask `config_for` again, for these topics' logs or for all."""
        wanted = None if topics is None else frozenset(topics)
        configs: dict[str, LogConfig] = {}
        for name, each in self._logs.items():
            if wanted is not None and name.topic not in wanted:
                continue
            if name.topic not in configs:
                configs[name.topic] = self._config_for(name.topic)
            each.update_config(configs[name.topic])

    # Failure

    def report(self, which: PartitionLog, error: OSError, *, undone: bool = False) -> None:
        """An operation on a log met an I/O error. From any thread."""
        home = self._homes.get(which.directory.parent)
        if home is not None:
            home.directory.report(error, undone=undone)

    def _recovery_point_lowered(self, which: PartitionLog) -> None:
        """A log is about to be truncated: first the lower recovery point must be durable."""
        home = self._homes[which.directory.parent]
        home.write_checkpoints((Checkpoint.RECOVERY_POINT, Checkpoint.CLEANER))

    def _flush_due(self, which: PartitionLog, up_to: int) -> None:
        """From any thread: a log wants to be synced."""
        self._on_loop(self.flushing.due, which, up_to)

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
        reason = _offline_reason(directory)
        home = self._homes.get(directory.path)
        lost: list[PartitionLog] = []
        for name, each in list(home.logs.items()) if home is not None else ():
            self._fence(name, each, reason)
            lost.append(each)
        if home is not None:
            home.logs.clear()
        if self._on_failure is not None:
            self._on_failure(directory, lost)
        if not self.homes() or directory is self.directories.metadata:
            log.critical(
                "%s was the last or the metadata directory: the node must end", directory.path
            )
            self.all_failed.set()

    # Housekeeping and the end

    async def checkpoint(
        self, kinds: Iterable[Checkpoint], directory: LogDirectory | None = None
    ) -> None:
        """Write checkpoints now, of one directory or of all; a failure takes its directory offline."""
        wanted = tuple(kinds)
        for home in self.homes():
            if directory is not None and home.directory is not directory:
                continue
            try:
                await self.offload.run(home.write_checkpoints, wanted, lane=home.directory.lane)
            except OSError as error:
                # The old file is still there, whole: a full disk has undone itself.
                home.directory.report(error, undone=True)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Housekeeping, until cancelled: retention, flushes, checkpoints, removal of the deleted."""
        await log_housekeeping.run(self, task_status=task_status)

    async def close(self, *, broker_epoch: int = -1) -> None:
        """Flush, snapshot and close all logs, write the checkpoints, and the clean mark last.

        The directories' locks are still held: `directories.close()` gives them back, once whoever
        else has files in them (the metadata log) has closed too.
        """
        async with trio.open_nursery() as nursery:
            for home in self.homes():
                nursery.start_soon(self._close, home, broker_epoch)
        self._logs.clear()

    async def _close(self, home: DirectoryLogs, broker_epoch: int) -> None:
        workers = self.intervals.recovery_threads_per_directory
        await log_closing.close(home, self.offload, workers, broker_epoch=broker_epoch)


def _offline_reason(directory: LogDirectory) -> str:
    return f"log directory {directory.path} is offline: {directory.failure}"
