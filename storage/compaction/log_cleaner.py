"""Log cleaner of a node (Kafka's LogCleaner): chooses logs, compacts them in worker processes, swaps
segments.

There are `log.cleaner.threads` tasks. Each takes the due log with the largest ratio of dirty bytes,
compacts it, and continues until no log is due; then its worker process ends, and the task waits for
`log.cleaner.backoff.ms`.

A log whose content makes compaction fail is uncleanable until the next start, as in Kafka. The modules
of a pass (compaction_pass.py) are loaded in a thread when a log is due for the first time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from odradek.protocol.errors import KafkaError
from odradek.seams.containment import STARTED_AGAIN, Containment
from odradek.seams.entropy import Entropy
from odradek.seams.values import state_class
from odradek.seams.workers import Worker, WorkerDied, Workers
from odradek.storage.compaction.cleaner_settings import CleanerSettings
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_registry.services import LogServices
from odradek.storage.throttle import Throttle

if TYPE_CHECKING:
    from odradek.storage.compaction.compaction_plan import CompactionStatistics
    from odradek.storage.compaction.dirty_range import DirtyRange

_logger = logging.getLogger("odradek.log_cleaner")


@state_class
class CleanerStatistics:
    """Statistics of the log cleaner; Kafka's metric names in brackets."""

    passes: int = 0
    aborted: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    max_dirty_ratio: float = 0.0
    """Largest ratio of dirty bytes at the last check (max-dirty-percent)."""
    last_round_ms: int = -1
    """Wall clock time of the last check (time-since-last-run-ms)."""
    last_pass_seconds: float = 0.0
    """(max-clean-time-secs)"""
    last_map_filled: float = 0.0
    """(max-buffer-utilization-percent)"""
    last_recopied: float = 0.0
    """Bytes written per byte read in the last pass (cleaner-recopy-percent)."""
    uncleanable: int = 0
    """(uncleanable-partitions-count)"""


class LogCleaner:
    """The cleaner tasks of a node and their shared state."""

    def __init__(
        self,
        services: LogServices,
        workers: Workers,
        entropy: Entropy,
        settings: Callable[[], CleanerSettings],
    ) -> None:
        self._services = services
        self.workers = workers
        self._entropy = entropy
        self._settings = settings
        self._settings_changed = trio.Event()
        self._throttle = Throttle(services.clock, lambda: settings().io_max_bytes_per_second)
        self._in_progress: set[PartitionLog] = set()
        self._paused: set[PartitionLog] = set()
        self._one_left = trio.Event()
        self._waiting: set[PartitionLog] = set()
        """Logs for which the disk had no space; they are not tried again in this round."""
        self._uncleanable: set[PartitionLog] = set()
        self._containment: Containment[PartitionLog] = Containment(
            "cleaning",
            lambda partition_log, error: self._uncleanable.add(partition_log),
            name=lambda partition_log: f"{partition_log.topic}-{partition_log.partition}",
            consequence="marking the partition as uncleanable",
            expected=(WorkerDied,),
        )
        self._threads_containment: Containment[str] = Containment(
            "a task", consequence=STARTED_AGAIN
        )
        self.statistics = CleanerStatistics()

    async def run(self) -> None:
        """Run the configured number of cleaner tasks, until cancelled; reacts to changed settings."""
        running: set[int] = set()
        async with trio.open_nursery() as nursery:

            async def cleaner(number: int) -> None:
                running.add(number)
                try:
                    await self._cleaner(number)
                finally:
                    running.discard(number)

            while True:
                for number in range(self._threads()):
                    if number not in running:
                        nursery.start_soon(
                            self._threads_containment.keep_running,
                            "the log cleaner",
                            cleaner,
                            number,
                        )
                await self._pause()

    async def pause(self, partition_log: PartitionLog) -> None:
        """Exclude a log from compaction until `resume`, because it moves to another directory (J-12);
        returns when no pass of it runs."""
        self._paused.add(partition_log)
        while partition_log in self._in_progress:
            await self._one_left.wait()

    def resume(self, partition_log: PartitionLog) -> None:
        self._paused.discard(partition_log)

    def _left(self, partition_log: PartitionLog) -> None:
        self._in_progress.discard(partition_log)
        self._one_left.set()
        self._one_left = trio.Event()

    def settings_changed(self) -> None:
        """Wake the waiting tasks, so that new settings apply immediately."""
        self._settings_changed.set()
        self._settings_changed = trio.Event()

    def _threads(self) -> int:
        settings = self._settings()
        return settings.threads if settings.enable else 0

    async def _pause(self) -> None:
        with trio.move_on_after(max(1, self._settings().backoff_ms) / 1000):
            await self._settings_changed.wait()

    async def _cleaner(self, number: int) -> None:
        while number < self._threads():
            try:
                await self.clean_due_logs()
            except WorkerDied as error:
                _logger.warning(
                    "the worker process of the log cleaner failed; cleaning will be retried: %s",
                    error,
                )
            await self._pause()

    # A round

    async def clean_due_logs(self, passes_max: int | None = None) -> int:
        """Compact until no log is due; the number of passes. Raises WorkerDied.

        A log without space for its new segments waits for the next round and does not delay others.
        """
        found = await self._take_dirtiest()
        if found is None:
            return 0
        passes = 0
        waiting: set[PartitionLog] = set()
        try:
            async with self.workers.open() as worker:
                while found is not None:
                    passes += 1
                    if await self._containment.run(found[0], self._clean, worker, *found) is False:
                        waiting.add(found[0])
                        self._waiting.add(found[0])
                    self._left(found[0])
                    found = None if passes == passes_max else await self._take_dirtiest()
        finally:
            if found is not None:
                self._left(found[0])
            self._waiting -= waiting
        return passes

    async def _take_dirtiest(self) -> tuple[PartitionLog, DirtyRange] | None:
        """The due log with the largest ratio of dirty bytes; it is added to `_in_progress`."""
        now_ms = self._services.clock.wall_ms()
        best: tuple[PartitionLog, DirtyRange] | None = None
        dirtiest = 0.0
        self._uncleanable.intersection_update(self._services.logs())
        for partition_log in self._services.logs():
            if not self._is_candidate(partition_log):
                continue
            dirty_range = await self._containment.run(
                partition_log, self._find_dirty_range, partition_log, now_ms
            )
            if dirty_range is None or not self._is_candidate(partition_log):
                continue
            dirtiest = max(dirtiest, dirty_range.ratio)
            if dirty_range.is_due(partition_log.config) and (
                best is None or dirty_range.ratio > best[1].ratio
            ):
                if best is not None:
                    self._left(best[0])
                best = partition_log, dirty_range
                self._in_progress.add(partition_log)  # before another task chooses it
        self.statistics.max_dirty_ratio = dirtiest
        self.statistics.last_round_ms = now_ms
        self.statistics.uncleanable = len(self._uncleanable)
        return best

    def _is_candidate(self, partition_log: PartitionLog) -> bool:
        """Whether a log may need compaction; reads no file."""
        if (
            not partition_log.config.compact
            or partition_log.failure is not None
            or len(partition_log.segment_list) < 2
        ):
            return False
        if partition_log in self._paused or partition_log in self._waiting:
            return False
        active = partition_log.segment_list.active.base_offset
        is_clean = (
            partition_log.cleaned_to is not None
            and active <= partition_log.cleaned_to <= partition_log.end_offset
        )
        return (
            not is_clean
            and partition_log not in self._in_progress
            and partition_log not in self._uncleanable
        )

    async def _find_dirty_range(
        self, partition_log: PartitionLog, now_ms: int
    ) -> DirtyRange | None:
        """Dirty part of a log, determined in a worker thread because sizes and timestamps may have to
        be read."""

        def look() -> DirtyRange:
            from odradek.storage.compaction import compaction_pass  # noqa: F401 - loaded in the thread
            from odradek.storage.compaction.dirty_range import LogBounds, find_dirty_range

            bounds = LogBounds(
                partition_log.log_start_offset,
                partition_log.last_stable_offset,
                partition_log.recovery_point,
                partition_log.end_offset,
                partition_log.cleaned_to,
            )
            return find_dirty_range(partition_log.segments, bounds, partition_log.config, now_ms)

        lane = self._services.lane_of(partition_log)
        try:
            return await self._services.offload.run(look, lane=lane)
        except (OSError, ValueError, KafkaError) as error:
            # The log changed meanwhile, or its disk fails, which other operations will report.
            _logger.debug("the log cleaner skipped %s: %s", partition_log.directory, error)
            return None

    # A pass

    async def _clean(
        self, worker: Worker, partition_log: PartitionLog, dirty_range: DirtyRange
    ) -> bool:
        """Run one pass; False if it must be repeated in a later round."""
        from odradek.storage.compaction.compaction_pass import (
            CleaningAborted,
            CompactionPass,
            describe,
        )

        started = self._services.clock.monotonic()
        one = CompactionPass(
            self._services,
            partition_log,
            dirty_range,
            self._settings(),
            self._entropy,
            self._paused,
        )
        name = f"{partition_log.topic}-{partition_log.partition}"
        try:
            statistics = await one.run(worker, self._throttle)
        except CleaningAborted as reason:
            self.statistics.aborted += 1
            _logger.info("cleaning of log %s was aborted: %s", name, reason)
        except WorkerDied:
            await one.tidy_up()
            raise
        except OSError as error:
            _logger.warning("cleaning of log %s failed: %s", name, error)
            self._services.report(partition_log, error, files_unchanged=True)
            await one.tidy_up()
            return False
        except KafkaError as error:
            _logger.error(
                "error when cleaning log %s. Marking the partition as uncleanable: %s", name, error
            )
            self._uncleanable.add(partition_log)
            await one.tidy_up()
        except Exception:
            await one.tidy_up()
            raise  # to the containment
        else:
            seconds = self._services.clock.monotonic() - started
            self._count(statistics, seconds)
            _logger.info("cleaned log %s: %s", name, describe(one, statistics, seconds))
        return True

    def _count(self, one: CompactionStatistics, seconds: float) -> None:
        total = self.statistics
        total.passes += 1
        total.bytes_read += one.bytes_read
        total.bytes_written += one.bytes_written
        total.last_pass_seconds = seconds
        total.last_map_filled = one.map_filled
        total.last_recopied = one.bytes_written / max(1, one.bytes_read)
