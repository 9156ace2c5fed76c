"""Services and state that the parts of a LogManager share: creation, background tasks, log cleaner, moves.

The parts depend on this module and not on `LogManager`, which creates them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence

from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files, Path
from odradek.seams.offload import Offload
from odradek.seams.values import value_class
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.io_errors import WRONG_FILE_TYPE_ERRNOS
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.directories.opening import LogDirectories
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_registry.deletion import DirectoryDeletion
from odradek.storage.log_registry.directory_logs import DirectoryLogs
from odradek.storage.log_registry.registry import LogRegistry

NEVER_MS = 2**63 - 1
DAY_MS = 24 * 60 * 60 * 1000

NO_MEMORY = frozenset({errno.ENOMEM, errno.ENOBUFS})
"""Errors of sending a file that concern the machine's memory and not the disk."""


@value_class
class LogManagerIntervals:
    """Intervals of the background tasks in ms; names and defaults are those of Kafka's configs."""

    initial_delay_ms: int = 30_000
    """log.initial.task.delay.ms"""
    retention_check_ms: int = 300_000
    """log.retention.check.interval.ms"""
    flush_check_ms: int = NEVER_MS
    """log.flush.scheduler.interval.ms"""
    recovery_point_ms: int = 60_000
    """log.flush.offset.checkpoint.interval.ms"""
    log_start_ms: int = 60_000
    """log.flush.start.offset.checkpoint.interval.ms"""
    high_watermark_ms: int = 5_000
    """replica.high.watermark.checkpoint.interval.ms"""
    producer_id_check_ms: int = 600_000
    """producer.id.expiration.check.interval.ms"""
    producer_id_expiration_ms: int = DAY_MS
    """producer.id.expiration.ms"""
    deleted_segments_ms: int = 10_000
    """Interval at which `.deleted` segments older than file.delete.delay.ms are unlinked (Odradek's own)."""
    probe_ms: int = 1_000
    """Interval at which each log directory is checked: it exists, is writable, has free space (Odradek's own)."""
    recovery_threads_per_directory: int = 2
    """num.recovery.threads.per.data.dir"""


class LogServices:
    """Seams, configuration and registry of one LogManager."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        directories: LogDirectories,
        *,
        config_for: Callable[[str], LogConfig],
        intervals: Callable[[], LogManagerIntervals] = LogManagerIntervals,
    ) -> None:
        """`config_for` returns the effective config of a topic, or the broker's defaults for an unknown one.

        `intervals` is called at each use, because dynamic configs change them.
        """
        self.files = files
        self.clock = clock
        self.entropy = entropy
        self.offload = offload
        self.directories = directories
        self.config_for = config_for
        self.intervals = intervals
        self.registry = LogRegistry(directories.all)
        self.directory_deletion = DirectoryDeletion(files, clock, offload)

    def logs(self) -> Sequence[PartitionLog]:
        return tuple(self.registry.logs.values())

    def online_directories(self) -> Sequence[DirectoryLogs]:
        """The online log directories with their logs."""
        return self.registry.online_directories()

    def lane_of(self, log: PartitionLog) -> str:
        """Offload lane of the log's directory."""
        return self.registry.directory_logs_of(log).directory.lane

    def report(
        self, partition_log: PartitionLog, error: OSError, *, files_unchanged: bool = False
    ) -> None:
        """Handle an I/O error of a log: its directory may go offline. Called from any thread.

        `files_unchanged` means that the files are unchanged.
        """
        if error.errno in WRONG_FILE_TYPE_ERRNOS:
            partition_log.handle_io_error(error)
            return
        directory_logs = self.registry.logs_by_directory.get(partition_log.directory.parent)
        if directory_logs is not None:
            directory_logs.directory.report(error, files_unchanged=files_unchanged)

    def report_at(self, path: Path, error: OSError) -> None:
        """`report` for the path of a log's file."""
        directory_logs = self.registry.logs_by_directory.get(path.parent.parent)
        if directory_logs is not None and error.errno not in NO_MEMORY:
            directory_logs.directory.report(error)

    async def checkpoint(
        self, kinds: Iterable[Checkpoint], directory: LogDirectory | None = None
    ) -> None:
        """Write checkpoints of one log directory or of all; a failure takes its directory offline."""
        wanted = tuple(kinds)
        for directory_logs in self.online_directories():
            if directory is not None and directory_logs.directory is not directory:
                continue
            try:
                await self.offload.run(
                    directory_logs.write_checkpoints, wanted, lane=directory_logs.directory.lane
                )
            except OSError as error:
                # The old checkpoint file is intact, so a full disk does not fail the directory.
                directory_logs.directory.report(error, files_unchanged=True)
