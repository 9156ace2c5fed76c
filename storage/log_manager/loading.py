"""Scan of a log directory at start, and loading of its logs.

The clean shutdown file is read and durably removed before any log is opened, because an opened log may
be written to. A crash while loading is therefore an unclean shutdown: the next start scans past the
recovery points, which a load never raises before it has synced.

Logs are loaded in threads, one call per log. Log recovery is Python code over batch headers: a segment
of 1 GiB takes 3 s with batches of 1 KiB, and 0.4 s with batches of 16 KiB, while the event loop waits 5
ms at the median (measured). A worker process would not be faster, and the node serves no clients yet.

| found | result |
|---|---|
| `topic-partition` | opened; recovered from its recovery point if there was no clean shutdown file |
| a log that cannot be opened | offline alone; the next shutdown writes no clean shutdown file |
| `…-delete`, `….delete` | removed after `file.delete.delay.ms` |
| `…-stray` | kept for the operator |
| `…-future`, `….move` | an unfinished move between directories: interrupted_moves.py decides |
| `__cluster_metadata-0` | ignored: the Raft log opens it |
| anything else | ignored with one warning (Kafka refuses to start) |

A file in place of a directory, or a loop of links, affects only the log of that name: the disk works.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import NamedTuple
from uuid import UUID

import trio

from odradek.protocol.errors import KafkaError
from odradek.protocol.topics import CLUSTER_METADATA, TopicPartition
from odradek.seams.files import Files, OutOfDescriptors, Path
from odradek.seams.offload import Offload
from odradek.seams.values import state_class, value_class
from odradek.storage.directories import names
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.clean_shutdown import CleanShutdownFile
from odradek.storage.directories.io_errors import WRONG_FILE_TYPE_ERRNOS
from odradek.storage.directories.log_directory import PROBE_NAME
from odradek.storage.directories.names import NotAPartition, PartitionDirectoryState
from odradek.storage.errors import NoDescriptors
from odradek.storage.file_descriptor_retry import RETRY_SECONDS
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import LogEnvironment, PartitionLog, RecoveryOptions
from odradek.storage.log.partition_metadata import CorruptMetadata
from odradek.storage.log_registry.directory_logs import DirectoryLogs

_logger = logging.getLogger("odradek.log_manager")

UNKNOWN_DIRECTORIES = (
    "log directory %s: %d directories are ignored, because their names are not in the form of "
    "topic-partition: %s"
)
STRAY_LOGS = "log directory %s: %d stray logs (-stray) are not loaded; delete them if they are not needed: %s"
CHUNK = 32
"""Cleanly closed logs that are opened in one call to a thread."""
ANYWHERE = 1 << 63
"""Greater than every offset."""
KNOWN = frozenset({names.REMOTE_INDEX_CACHE, "lost+found"})


@state_class
class DirectoryContents:
    """The partition directories in a log directory, grouped by how loading treats them."""

    live: list[TopicPartition] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    moving: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def classify_directories(found: Iterable[str]) -> DirectoryContents:
    """Sort directory names by their suffixes; Kafka's metadata log is in none of the lists."""
    result = DirectoryContents()
    for name in found:
        if name in KNOWN or name.startswith("."):
            continue
        try:
            directory = names.parse(name)
        except NotAPartition:
            result.unknown.append(name)
            continue
        if directory.topic_partition.topic == CLUSTER_METADATA:
            continue
        match directory.state:
            case PartitionDirectoryState.LIVE:
                result.live.append(directory.topic_partition)
            case PartitionDirectoryState.DELETED | PartitionDirectoryState.MOVED_AWAY:
                result.deleted.append(name)
            case PartitionDirectoryState.FUTURE | PartitionDirectoryState.MOVING:
                result.moving.append(name)
            case PartitionDirectoryState.STRAY:
                result.strays.append(name)
    return result


@value_class
class DirectoryScan:
    """Result of scanning one log directory: its logs and their checkpoint entries."""

    clean_shutdown_file: CleanShutdownFile | None
    """None after an unclean shutdown."""
    found: DirectoryContents
    recovery_points: dict[TopicPartition, int]
    log_starts: dict[TopicPartition, int]
    high_watermarks: dict[TopicPartition, int]
    cleaned_to: dict[TopicPartition, int]

    @property
    def clean(self) -> bool:
        return self.clean_shutdown_file is not None

    def without_checkpoints(self) -> DirectoryScan:
        """A scan without checkpoint entries, for a log whose entries belong to an earlier log of that
        name."""
        return replace(self, recovery_points={}, log_starts={}, high_watermarks={}, cleaned_to={})

    def accepted_gaps_end(self, name: TopicPartition, *, compact: bool) -> int:
        """Offset up to which log recovery accepts gaps between segments: the recovery point covers
        what the cleaner has compacted. If the recovery point is unknown, or the log came from
        elsewhere, a log that is or was compacted may have gaps anywhere."""
        if name in self.recovery_points:
            return max(self.recovery_points[name], self.cleaned_to.get(name, 0))
        return ANYWHERE if compact or name in self.cleaned_to else 0


def scan_directory(files: Files, directory_logs: DirectoryLogs) -> DirectoryScan:
    """Read and remove the clean shutdown file, read the checkpoints, classify the directories. Raises
    OSError."""
    directory = directory_logs.directory
    clean_shutdown_file = directory.remove_clean_shutdown_file()
    there = files.list(directory.path)
    found = classify_directories(
        name for name in there if _may_be_directory(files, directory.path / name)
    )
    if PROBE_NAME in there:
        files.remove(directory.path / PROBE_NAME)
    _warn_about(directory.path, found)
    return DirectoryScan(
        clean_shutdown_file,
        found,
        directory_logs.read_checkpoint(Checkpoint.RECOVERY_POINT),
        directory_logs.read_checkpoint(Checkpoint.LOG_START),
        directory_logs.read_checkpoint(Checkpoint.HIGH_WATERMARK),
        directory_logs.read_checkpoint(Checkpoint.CLEANER),
    )


def _may_be_directory(files: Files, path: Path) -> bool:
    try:
        return files.is_directory(path)
    except OSError as error:
        if error.errno not in WRONG_FILE_TYPE_ERRNOS:
            raise
        return True  # reported by its name


def _warn_about(path: Path, found: DirectoryContents) -> None:
    for message, directories in (
        (UNKNOWN_DIRECTORIES, found.unknown),
        (STRAY_LOGS, found.strays),
    ):
        if directories:
            shown = ", ".join(directories[:5]) + (", …" if len(directories) > 5 else "")
            _logger.warning(message, path, len(directories), shown)


def common_broker_epoch(
    clean_shutdown_files: Sequence[CleanShutdownFile | None], directories: int
) -> int:
    """Broker epoch in the clean shutdown files of all directories; -1 if one is missing or differs."""
    found = {
        clean_shutdown_file.broker_epoch if clean_shutdown_file is not None else None
        for clean_shutdown_file in clean_shutdown_files
    }
    epoch = found.pop() if len(found) == 1 and len(clean_shutdown_files) == directories else None
    return -1 if epoch is None else epoch


class LogLoadFailure(NamedTuple):
    """A log that cannot be opened."""

    reason: str


def _damaged(path: Path, error: Exception) -> LogLoadFailure:
    expected = isinstance(error, (CorruptMetadata, KafkaError, OSError))
    _logger.error("log %s is offline: %s", path, error, exc_info=None if expected else error)
    return LogLoadFailure(f"failed to load log {path}: {error}")


Adopt = Callable[[DirectoryLogs, TopicPartition, PartitionLog | LogLoadFailure], Awaitable[None]]


@value_class
class LogOpener:
    """Opens and creates logs with the callbacks of the LogManager."""

    environment: LogEnvironment
    on_failure: Callable[[PartitionLog, OSError], None]
    on_full: Callable[[PartitionLog, OSError], None]
    on_log_failed: Callable[[PartitionLog], None]
    on_checkpoint_due: Callable[[PartitionLog], None]
    on_flush_due: Callable[[PartitionLog, int], None]

    def _open(
        self,
        path: Path,
        name: TopicPartition,
        config: LogConfig,
        topic_id: UUID | None,
        recovery: RecoveryOptions,
    ) -> PartitionLog:
        log = PartitionLog.open(
            self.environment, path, name, config, topic_id=topic_id, recovery=recovery
        )
        log.on_failure = partial(self.on_failure, log)
        log.on_full = partial(self.on_full, log)
        log.on_log_failed = partial(self.on_log_failed, log)
        log.on_checkpoint_due = partial(self.on_checkpoint_due, log)
        log.on_flush_due = partial(self.on_flush_due, log)
        return log

    def load(
        self,
        directory_logs: DirectoryLogs,
        found: DirectoryScan,
        wanted: TopicPartition,
        config: LogConfig,
    ) -> PartitionLog:
        """Open an existing log, with the offsets of the directory's checkpoints."""
        recovery = RecoveryOptions(
            clean=found.clean,
            recovery_point=found.recovery_points.get(wanted, 0),
            log_start_offset=found.log_starts.get(wanted, 0),
            accepted_gaps_end=found.accepted_gaps_end(wanted, compact=config.compact),
        )
        opened = self._open(
            directory_logs.directory.path_of(*wanted), wanted, config, None, recovery
        )
        opened.advance_high_watermark(found.high_watermarks.get(wanted, 0))
        opened.is_checkpointed = wanted in found.recovery_points
        if wanted in found.cleaned_to:
            opened.cleaned_to = min(found.cleaned_to[wanted], opened.end_offset)
        return opened

    def create(
        self, directory_logs: DirectoryLogs, name: TopicPartition, topic_id: UUID, config: LogConfig
    ) -> PartitionLog:
        """Create a log; it is durable when this returns. After a failure the directory is removed again.

        Raises OSError, also if that removal fails, and the errors of PartitionLog.open.
        """
        path = directory_logs.directory.path_of(*name)
        fresh = not self.environment.files.exists(path)
        directory_logs.forget(name)
        try:
            return self._open(path, name, config, topic_id, RecoveryOptions(clean=fresh))
        except OSError:
            if fresh:
                self._undo_creation(path)
            raise

    def _undo_creation(self, path: Path) -> None:
        """Remove the new directory, durably: the log is then created in another log directory, and
        the next start must not find an empty log here."""
        if self.environment.files.exists(path):
            self.environment.files.remove_tree(path)
        self.environment.files.sync_directory(path.parent)


class DirectoryLoader:
    """Loads one log directory's logs with several threads (num.recovery.threads.per.data.dir)."""

    def __init__(
        self,
        directory_logs: DirectoryLogs,
        opener: LogOpener,
        offload: Offload,
        config_for: Callable[[str], LogConfig],
        workers: int,
    ) -> None:
        self.directory_logs = directory_logs
        self.opener = opener
        self.scan_result: DirectoryScan | None = None
        """Result of `scan_directory`; None before, or if the directory cannot be read."""
        self.exhausted: Exception | None = None
        """Error if the process has no free file descriptors; the node cannot start then."""
        self._offload = offload
        self._config_for = config_for
        self._workers = workers

    @property
    def found(self) -> DirectoryContents:
        return DirectoryContents() if self.scan_result is None else self.scan_result.found

    @property
    def clean_shutdown_file(self) -> CleanShutdownFile | None:
        return None if self.scan_result is None else self.scan_result.clean_shutdown_file

    async def scan_directory(self) -> None:
        """Scan the directory. A disk failure takes it offline."""
        directory = self.directory_logs.directory
        try:
            self.scan_result = await self._offload.run(
                scan_directory,
                self.opener.environment.files,
                self.directory_logs,
                lane=directory.lane,
            )
        except OutOfDescriptors as error:
            self.exhausted = error
        except OSError as error:
            directory.report(error)

    async def open(self, adopt: Adopt) -> None:
        """Open the logs and call `adopt` with each on the loop. A disk failure takes the directory
        offline; a damaged log only goes offline itself."""
        directory = self.directory_logs.directory
        if self.scan_result is None:
            return
        await self._open_all(self.scan_result, adopt)
        if directory.failed or self.exhausted is not None:
            return
        self.directory_logs.loaded = True
        try:  # a new log must not get the checkpoint entries of a removed one
            await self._offload.run(self.directory_logs.write_checkpoints, lane=directory.lane)
        except OSError as error:
            directory.report(error, files_unchanged=True)

    async def promote(
        self, name: TopicPartition, copy: str, adopt: Adopt, *, is_checkpointed: bool
    ) -> None:
        """Rename a future replica to the partition's name, durably, then open it as after an unclean
        shutdown, with the checkpoint entries if they belong to it. Waits for a file descriptor;
        otherwise as `open`."""
        assert self.scan_result is not None
        directory_logs, files = self.directory_logs, self.opener.environment.files
        known = self.scan_result if is_checkpointed else self.scan_result.without_checkpoints()
        known, config = replace(known, clean_shutdown_file=None), self._config_for(name.topic)
        old, new = directory_logs.directory.path / copy, directory_logs.directory.path_of(*name)

        def load() -> PartitionLog:
            has_name = files.exists(new) and not files.exists(old)  # by the previous attempt
            if not has_name:
                files.rename(old, new)
            files.sync_directory(directory_logs.directory.path)
            return self.opener.load(directory_logs, known, name, config)

        directory_logs.loaded = False  # a shutdown meanwhile is not clean
        lane = directory_logs.directory.lane
        while (opened := await self._offload.run(self._try, name, load, lane=lane)) is None:
            if self.exhausted is None:
                return
            self.exhausted = None
            await self.opener.environment.clock.sleep(RETRY_SECONDS)
        await adopt(directory_logs, name, opened)
        directory_logs.loaded = True

    async def _open_all(self, found: DirectoryScan, adopt: Adopt) -> None:
        # One call per log that needs recovery; cleanly closed logs are opened in batches.
        size = CHUNK if found.clean else 1
        live = self.found.live
        chunks = iter([live[start : start + size] for start in range(0, len(live), size)])

        async def work() -> None:
            for chunk in chunks:
                if self.directory_logs.directory.failed or self.exhausted is not None:
                    return
                wanted = [(name, self._config_for(name.topic)) for name in chunk]
                opened = await self._offload.run(
                    self._open, found, wanted, lane=self.directory_logs.directory.lane
                )
                for name, each in opened:
                    await adopt(self.directory_logs, name, each)

        async with trio.open_nursery() as nursery:
            for _ in range(self._workers):
                nursery.start_soon(work)

    def _open(
        self, found: DirectoryScan, wanted: Sequence[tuple[TopicPartition, LogConfig]]
    ) -> list[tuple[TopicPartition, PartitionLog | LogLoadFailure]]:
        """Open as many logs as possible, in a worker thread."""
        opened: list[tuple[TopicPartition, PartitionLog | LogLoadFailure]] = []
        for name, config in wanted:
            each = self._try(
                name, partial(self.opener.load, self.directory_logs, found, name, config)
            )
            if each is not None:
                opened.append((name, each))
            if self.directory_logs.directory.failed or self.exhausted is not None:
                break
        return opened

    def _try(
        self, name: TopicPartition, load: Callable[[], PartitionLog]
    ) -> PartitionLog | LogLoadFailure | None:
        """Open one log in a worker thread. None: its directory was notified of a disk failure, or the
        process is `exhausted`."""
        directory = self.directory_logs.directory
        try:
            return load()
        except (OutOfDescriptors, NoDescriptors) as error:
            self.exhausted = error
        except Exception as error:
            if not isinstance(error, OSError) or error.errno in WRONG_FILE_TYPE_ERRNOS:
                return _damaged(directory.path_of(*name), error)
            directory.report(error)
        return None
