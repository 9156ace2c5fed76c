"""All partition logs of a node: found at start, created, deleted, looked after, closed.

Not among them: `__cluster_metadata-0`, which the Raft log opens itself in the metadata directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import trio
from odradek.seams.clock import Clock
from odradek.seams.entropy import Entropy
from odradek.seams.files import Files
from odradek.seams.offload import Offload
from odradek.storage.directories.directory import LogDirectory
from odradek.storage.directories.names import TopicPartition
from odradek.storage.directories.opening import Directories
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import PartitionLog


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often what is done, in ms; the defaults are Kafka's."""

    initial_delay_ms: int = 30_000
    """log.initial.task.delay.ms"""
    retention_check_ms: int = 300_000
    """log.retention.check.interval.ms"""
    flush_check_ms: int = 2**63 - 1
    """log.flush.scheduler.interval.ms"""
    recovery_point_ms: int = 60_000
    """log.flush.offset.checkpoint.interval.ms"""
    log_start_ms: int = 60_000
    """log.flush.start.offset.checkpoint.interval.ms"""
    high_watermark_ms: int = 5_000
    """replica.high.watermark.checkpoint.interval.ms"""
    recovery_threads_per_directory: int = 2
    """num.recovery.threads.per.data.dir"""


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
        intervals: Intervals = Intervals(),
        on_failure: Callable[[LogDirectory, Sequence[PartitionLog]], None] | None = None,
    ) -> None:
        """`config_for` gives a topic's effective config (broker defaults for an unknown topic).

        `on_failure` is called on the loop when a directory went offline, with the logs that were
        in it: they raise LogFailed from then on.
        """
        raise NotImplementedError

    directories: Directories
    all_failed: trio.Event
    """Set when no directory is left, or the metadata directory failed: the node must end."""

    async def load(self) -> None:
        """Open all logs there are; recovers what was not closed cleanly. Once, before all else."""
        raise NotImplementedError

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """None: not here. Raises LogFailed if it is in a directory that went offline."""
        raise NotImplementedError

    def logs(self) -> Sequence[PartitionLog]:
        raise NotImplementedError

    def directory_of(self, log: PartitionLog) -> LogDirectory:
        raise NotImplementedError

    def directory_by_id(self, id: UUID) -> LogDirectory | None:
        raise NotImplementedError

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
        may be in there. Raises LogFailed; InconsistentTopicId if the one there is has another id.
        """
        raise NotImplementedError

    async def delete(self, *partitions: TopicPartition) -> None:
        """Take logs away: renamed to `-delete` now, removed after `file.delete.delay.ms`.

        Those that are not here are skipped. After this returns the names can be used again.
        """
        raise NotImplementedError

    async def set_aside_strays(
        self, is_stray: Callable[[PartitionLog], bool]
    ) -> list[TopicPartition]:
        """Rename to `-stray` the logs that the cluster's state does not assign to this node."""
        raise NotImplementedError

    def update_configs(self, topics: Iterable[str] | None = None) -> None:
        """Ask `config_for` again, for these topics' logs or for all."""
        raise NotImplementedError

    def report(self, log: PartitionLog, error: OSError, *, undone: bool = False) -> None:
        """An operation on a log met an I/O error: the directory may go offline (failure.py)."""
        raise NotImplementedError

    async def checkpoint_recovery_points(self, directory: LogDirectory | None = None) -> None:
        """Write them now (after a truncation), of one directory or of all."""
        raise NotImplementedError

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Housekeeping, until cancelled: retention, flushes, checkpoints, removal of the deleted."""
        raise NotImplementedError

    async def close(self, *, broker_epoch: int = -1) -> None:
        """Flush, snapshot and close all logs, write the checkpoints, and the clean mark last."""
        raise NotImplementedError
