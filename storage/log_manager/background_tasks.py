"""Periodic tasks over all logs of a node: retention, flushes, checkpoints, deletion, directory checks.

Each task visits the logs one by one and yields to other tasks in between. An unexpected error takes only
the affected log offline, and the task continues. Reads and syncs run in worker threads; retention and
roll change the log and run on the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from math import inf

import trio

from odradek.protocol.errors import KafkaError
from odradek.seams.clock import Clock
from odradek.seams.containment import STARTED_AGAIN, Containment
from odradek.seams.offload import Offload
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.errors import StorageError
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_registry.directory_logs import DirectoryLogs
from odradek.storage.log_registry.services import NEVER_MS, LogManagerIntervals, LogServices

_logger = logging.getLogger("odradek.log_manager")

_ONE_LOG: Containment[PartitionLog] = Containment(
    "a periodic task",
    lambda partition_log, error: partition_log.take_log_offline(error),
    name=lambda partition_log: f"log {partition_log.directory}",
    consequence="the log is offline",
)


async def run(
    services: LogServices,
    flushing: FlushQueues,
    tasks: Iterable[Callable[[], Awaitable[None]]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the periodic tasks of a LogManager, the flushes and the further `tasks`, until cancelled."""
    containment: Containment[str] = Containment("a task", consequence=STARTED_AGAIN)
    every = services.intervals()
    first_ms = every.initial_delay_ms
    checkpoint = services.checkpoint
    rounds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
        (every.retention_check_ms, lambda: retention(services)),
        (every.flush_check_ms, flushing.round),
        (every.recovery_point_ms, lambda: checkpoint([Checkpoint.RECOVERY_POINT])),
        (every.log_start_ms, lambda: checkpoint([Checkpoint.LOG_START])),
        (every.high_watermark_ms, lambda: checkpoint([Checkpoint.HIGH_WATERMARK])),
        (every.producer_id_check_ms, lambda: expire_producers(services)),
        (every.deleted_segments_ms, lambda: remove_deleted(services)),
    ]
    async with trio.open_nursery() as nursery:
        for interval_ms, one_round in rounds:
            if interval_ms < NEVER_MS:
                delay_ms = min(first_ms, interval_ms)
                repeat = partial(_repeat, services, delay_ms, interval_ms, one_round)
                nursery.start_soon(containment.keep_running, "the log manager", repeat)
        for task in (services.directory_deletion.run, *tasks):
            nursery.start_soon(containment.keep_running, "the log manager", task)
        search = partial(report_missing_segments, services)
        nursery.start_soon(containment.keep_running, "the log manager", search)
        for directory_logs in services.online_directories():
            path = str(directory_logs.directory.path)
            nursery.start_soon(containment.keep_running, path, flushing.run, directory_logs)
        for directory in services.directories.every:
            path = str(directory.path)
            nursery.start_soon(containment.keep_running, path, probe, services, directory)
        task_status.started()


async def probe(services: LogServices, directory: LogDirectory) -> None:
    """Check a log directory until it goes offline; one task per directory, because a disk may hang."""
    while not directory.failed:
        try:
            await services.offload.run(directory.probe, lane=directory.lane)
            await check_free_space(directory, services.offload, services.clock)
        except OSError as error:
            directory.report(error)
        await services.clock.sleep(services.intervals().probe_ms / 1000)


async def check_free_space(directory: LogDirectory, offload: Offload, clock: Clock) -> None:
    """Log the end of a disk-full condition, if the directory has one. Raises OSError."""
    if directory.low_disk_space.is_check_due:
        free_bytes = await offload.run(directory.disk_space, lane=directory.lane)
        directory.low_disk_space.checked(free_bytes, clock.monotonic())


async def watch_free_space(directory: LogDirectory, offload: Offload, clock: Clock) -> None:
    """Check the free space of a directory of a node without partition logs, until it goes offline."""
    while not directory.failed:
        try:
            await check_free_space(directory, offload, clock)
        except OSError as error:
            directory.report(error)
        await clock.sleep(LogManagerIntervals().probe_ms / 1000)


async def _repeat(
    services: LogServices,
    delay_ms: int,
    interval_ms: int,
    one_round: Callable[[], Awaitable[None]],
) -> None:
    """Run a task with a fixed delay, as Kafka does: the interval begins when the last run has ended."""
    while True:
        await services.clock.sleep(delay_ms / 1000)
        await one_round()
        delay_ms = interval_ms


async def _each(services: LogServices, act: Callable[[PartitionLog], object]) -> None:
    """Call `act` for each log, on the loop; never concurrently with a flush or a deletion of the same
    log."""
    for directory_logs in services.online_directories():
        for partition_log in tuple(directory_logs.logs.values()):
            async with services.registry.holding_file_lock(partition_log):
                if partition_log.failure is None:
                    attempt(partition_log, act)
            await trio.lowlevel.checkpoint()


def attempt(partition_log: PartitionLog, act: Callable[[PartitionLog], object]) -> None:
    """Call `act` for one log and log its errors. An I/O error takes the directory offline, an
    unexpected error only the log."""
    _ONE_LOG.call(partition_log, _attempt, partition_log, act)


def _attempt(partition_log: PartitionLog, act: Callable[[PartitionLog], object]) -> None:
    try:
        act(partition_log)
    except StorageError as error:
        _log_error(partition_log, error)
    except OSError as error:
        _log_error(partition_log, partition_log.handle_io_error(error))


def _log_error(partition_log: PartitionLog, error: StorageError) -> None:
    """Log an error; the failure of a log or of its directory has been logged already."""
    level = logging.WARNING if partition_log.failure is None else logging.DEBUG
    _logger.log(level, "error in log %s: %s", partition_log.directory, error)


async def retention(services: LogServices) -> None:
    """Apply retention: expired segments are renamed to `.deleted`."""
    now_ms = services.clock.wall_ms()
    await _each(services, lambda partition_log: partition_log.delete_expired(now_ms))


async def expire_producers(services: LogServices) -> None:
    """Remove producers that were idle for producer.id.expiration.ms."""
    now_ms = services.clock.wall_ms()
    await _each(services, lambda partition_log: partition_log.expire_producers(now_ms))


async def remove_deleted(services: LogServices) -> None:
    """Unlink expired `.deleted` segments in a worker thread, because unlinking a large file takes
    long."""
    now_ms = services.clock.wall_ms()
    for directory_logs in services.online_directories():
        async with directory_logs.file_lock:
            await services.offload.run(
                _remove_deleted,
                tuple(directory_logs.logs.values()),
                now_ms,
                lane=directory_logs.directory.lane,
            )


def _remove_deleted(logs: Sequence[PartitionLog], now_ms: int) -> None:
    for partition_log in logs:
        if partition_log.failure is None:
            attempt(partition_log, lambda each: each.remove_deleted(now_ms))


SEARCH_PAUSE_SECONDS = 0.01
"""Pause after the search of a log, so that clients are not delayed."""


async def report_missing_segments(services: LogServices) -> None:
    """Search each log with several segments once for missing ones, and log an error for each gap."""
    await services.clock.sleep(services.intervals().initial_delay_ms / 1000)
    for partition_log in services.logs():
        if len(partition_log.segments) < 2 or partition_log.failure is not None:
            continue
        from odradek.storage.log.missing_segments import find_missing_offsets

        try:
            lane = services.lane_of(partition_log)
            gaps = await services.offload.run(find_missing_offsets, partition_log, lane=lane)
        except (OSError, ValueError, KeyError, KafkaError) as error:
            # The log was deleted or went offline; an error of the disk is found by the next read.
            _logger.info(
                "log %s was not searched for missing segments: %s", partition_log.directory, error
            )
            continue
        for first, last in gaps:
            _logger.error(
                "a segment of log %s is missing: no segment has offsets %d to %d, and consumers skip them",
                partition_log.directory,
                first,
                last,
            )
        await services.clock.sleep(SEARCH_PAUSE_SECONDS)


RETRY_SECONDS = 1.0
"""Delay before a flush is repeated that failed because of a full disk or a lack of file descriptors."""


class FlushQueues:
    """Queue of requested flushes per log directory; changed only on the loop."""

    def __init__(self, services: LogServices) -> None:
        self._services = services
        self._queues = {each.path: _Queue() for each in services.directories.all}
        self._flushed: dict[PartitionLog, float] = {}

    def due(self, partition_log: PartitionLog, up_to: int) -> None:
        """Request a flush of everything below offset `up_to`."""
        queue = self._queues[partition_log.directory.parent]
        queue.due[partition_log] = max(up_to, queue.due.get(partition_log, 0))
        queue.filled.set()

    async def run(self, directory_logs: DirectoryLogs) -> None:
        """Flush the queued logs of one directory, until cancelled or the directory is offline."""
        directory = directory_logs.directory
        queue = self._queues[directory.path]
        failed: dict[PartitionLog, int] = {}
        while not directory.failed:
            with trio.move_on_after(RETRY_SECONDS if failed else inf):
                await queue.filled.wait()
            queue.filled = trio.Event()
            queue.due = {**failed, **queue.due}
            failed.clear()
            while queue.due:
                partition_log = next(iter(queue.due))
                up_to = queue.due.pop(partition_log)
                async with self._services.registry.holding_file_lock(
                    partition_log
                ) as other_directory_logs:
                    if partition_log.failure is None and partition_log.recovery_point < up_to:
                        lane = other_directory_logs.directory.lane
                        await self._services.offload.run(flush, partition_log, up_to, lane=lane)
                        wanted = min(up_to, partition_log.end_offset)
                        if partition_log.failure is None and partition_log.recovery_point < wanted:
                            failed[partition_log] = wanted
                    partition_log.flushed()

    async def round(self) -> None:
        """Request a flush of each log that has had unsynced records for flush.ms."""
        now = self._services.clock.monotonic()
        logs = self._services.logs()
        self._flushed = {
            partition_log: self._flushed.get(partition_log, now) for partition_log in logs
        }
        for partition_log in logs:
            if partition_log.recovery_point >= partition_log.end_offset:
                self._flushed[partition_log] = now
            elif now - self._flushed[partition_log] >= partition_log.config.flush_ms / 1000:
                self._flushed[partition_log] = now
                self.due(partition_log, partition_log.end_offset)


class _Queue:
    def __init__(self) -> None:
        self.due: dict[PartitionLog, int] = {}
        self.filled = trio.Event()


def flush(partition_log: PartitionLog, up_to: int) -> None:
    """Flush a log in a worker thread. A failed sync has already taken its directory offline."""
    attempt(partition_log, lambda each: each.flush(up_to))
