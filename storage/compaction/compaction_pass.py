"""One compaction pass of a log, from the plan to the checkpoint: a worker reads and writes, the loop
swaps segments.

The plan lists the segments. The pass is cancelled between two steps if one of them is no longer in the
log (truncation, retention), or if the log is deleted, offline, moving or no longer compacted. Segments
that were swapped in before stay: each swap is complete by itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container
from contextlib import aclosing, suppress

import trio

from odradek.protocol.errors import KafkaError
from odradek.seams.entropy import Entropy
from odradek.seams.workers import Worker
from odradek.storage.compaction import segment_swap
from odradek.storage.compaction.cleaner_settings import CleanerSettings
from odradek.storage.compaction.compaction_plan import (
    MARKER_ALONE,
    CompactionFinished,
    CompactionPlan,
    CompactionStatistics,
    CompactionStep,
    ProducerLastBatches,
    SegmentReplacement,
)
from odradek.storage.compaction.dirty_range import DirtyRange
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.errors import StorageError
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.segment import Segment
from odradek.storage.log_registry.services import LogServices
from odradek.storage.throttle import Throttle

SEED_BYTES = 32
PRODUCERS_PER_STEP = 500


class CleaningAborted(Exception):
    """The pass is cancelled because the log has changed after planning. The message is the reason."""


class CompactionPass:
    """One compaction pass of one log."""

    def __init__(
        self,
        services: LogServices,
        partition_log: PartitionLog,
        dirty_range: DirtyRange,
        settings: CleanerSettings,
        entropy: Entropy,
        paused: Container[PartitionLog] = (),
    ) -> None:
        self.partition_log = partition_log
        self._paused = paused
        self.dirty_range = dirty_range
        self.end_offset = dirty_range.first_dirty_offset
        self.map_seconds = 0.0
        self._services = services
        self._directory_logs = services.registry.directory_logs_of(partition_log)
        self._settings = settings
        self._seed = entropy.bytes(SEED_BYTES)
        self._left: list[Segment] = [
            segment
            for segment in partition_log.segments
            if segment.base_offset < dirty_range.end_offset
        ]
        """Planned segments that are not replaced yet."""
        self._generation = -1

    async def run(self, worker: Worker, throttle: Throttle) -> CompactionStatistics:
        """Run the pass; its statistics. Raises CleaningAborted, WorkerDied, OSError, and any error that the
        content causes, such as KafkaError."""
        try:
            producers = await self._last_batches()
            lane = self._directory_logs.directory.lane
            plan = await self._services.offload.run(self._plan, producers, lane=lane)
            await self._write_checkpoints()
            statistics = CompactionStatistics()
            started = self._services.clock.monotonic()
            async with aclosing(self._steps(worker, plan)) as steps:
                async for step in steps:
                    self._check()
                    if isinstance(step, SegmentReplacement):
                        await self._swap(step)
                    elif isinstance(step, CompactionFinished):
                        statistics = step.statistics
                        self.end_offset = step.end_offset
                        # The log may have been truncated after the last swap.
                        self.partition_log.cleaned_to = min(
                            step.end_offset, self.partition_log.recovery_point
                        )
                    else:
                        if step.is_mapping:
                            self.map_seconds = self._services.clock.monotonic() - started
                        await throttle.pay(step.bytes_read + step.bytes_written)
        except (OSError, ValueError, KafkaError):
            self._check()  # the planned segments may have been removed
            raise
        await self._services.checkpoint([Checkpoint.CLEANER], self._directory_logs.directory)
        return statistics

    async def _write_checkpoints(self) -> None:
        """Write the recovery point and the cleaner checkpoint before the pass leaves gaps. Log
        recovery treats a gap past the recovery point as a loss; if recovery points are lost, the
        cleaner checkpoint indicates that there may be gaps. Raises OSError."""
        partition_log, directory_logs = self.partition_log, self._directory_logs
        before = partition_log.cleaned_to
        if before is None:
            partition_log.cleaned_to = self.dirty_range.first_dirty_offset
        try:
            await self._services.offload.run(
                directory_logs.write_checkpoints,
                (Checkpoint.RECOVERY_POINT, Checkpoint.CLEANER),
                lane=directory_logs.directory.lane,
            )
        except OSError:
            if before is None:
                partition_log.cleaned_to = None
            raise
        if self.dirty_range.end_offset > partition_log.recovery_point:
            raise CleaningAborted("the log was truncated")

    @staticmethod
    def _steps(worker: Worker, plan: CompactionPlan) -> AsyncGenerator[CompactionStep, None]:
        from odradek.storage.compaction.cleaner import clean

        return worker.run(clean, plan)

    async def _last_batches(self) -> ProducerLastBatches:
        """Last batch of each producer, collected on the loop in parts, so that other tasks can run."""
        found = ProducerLastBatches()
        for count, (producer_id, entry) in enumerate(
            list(self.partition_log.producers.active.items())
        ):
            last_offset = entry.batches[-1].last_offset if entry.batches else MARKER_ALONE
            found.add(producer_id, last_offset, entry.epoch)
            if count % PRODUCERS_PER_STEP == PRODUCERS_PER_STEP - 1:
                await trio.lowlevel.checkpoint()
        return found

    def _plan(self, producers: ProducerLastBatches) -> CompactionPlan:
        """Create the plan, in a worker thread."""
        partition_log, config, settings = (
            self.partition_log,
            self.partition_log.config,
            self._settings,
        )
        return CompactionPlan(
            directory=partition_log.directory,
            segments=[(segment.base_offset, segment.size) for segment in self._left],
            first_dirty_offset=self.dirty_range.first_dirty_offset,
            end_offset=self.dirty_range.end_offset,
            now_ms=self._services.clock.wall_ms(),
            delete_retention_ms=config.delete_retention_ms,
            aborted=partition_log.aborted_transactions(
                self._left[0].base_offset, self.dirty_range.end_offset
            ),
            producers=producers,
            seed=self._seed,
            map_bytes=settings.map_bytes,
            map_load=settings.io_buffer_load_factor,
            page_bytes=settings.page_bytes,
            segment_bytes=config.max_segment_bytes,
            index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
        )

    def _check(self) -> None:
        """Raise CleaningAborted if the log no longer matches the plan."""
        partition_log = self.partition_log
        if partition_log.failure is not None:
            raise CleaningAborted(f"the log is offline: {partition_log.failure}")
        if partition_log in self._paused:
            raise CleaningAborted("the replica is moving to another log directory")
        if not partition_log.config.compact:
            raise CleaningAborted("cleanup.policy no longer contains compact")
        if partition_log.generation != self._generation:
            there = set(map(id, partition_log.segments))
            if not all(id(segment) in there for segment in self._left):
                raise CleaningAborted("segments were truncated or deleted")
            self._generation = partition_log.generation

    async def _swap(self, made: SegmentReplacement) -> None:
        """Replace the segments, in the order of segment_swap.py; cancellation waits for the end. Raises
        CleaningAborted, OSError, LogFailed."""
        old = self._left[: len(made.replaced)]
        assert [segment.base_offset for segment in old] == list(made.replaced)
        lane, run = self._directory_logs.directory.lane, self._services.offload.run
        fresh = segment_swap.cleaned_segment(self.partition_log, old, made)
        with trio.CancelScope(shield=True):
            async with self._directory_logs.file_lock:
                self._check()
                try:
                    await run(segment_swap.rename_to_swap, self.partition_log, fresh, lane=lane)
                    self._check()
                except (OSError, CleaningAborted):
                    await run(segment_swap.undo_swap, self.partition_log, fresh, lane=lane)
                    raise
                await run(segment_swap.replace_files, self.partition_log, old, fresh, lane=lane)
                segment_swap.replace_in_segment_list(self.partition_log, old, fresh)
                del self._left[: len(old)]

    async def tidy_up(self) -> None:
        """Remove the files of a worker that could not do so itself; errors are ignored."""

        def remove() -> None:
            for segment in self._left:
                segment_swap.remove_files(self.partition_log, segment.base_offset)

        async with self._directory_logs.file_lock:
            if self.partition_log.failure is None:
                with suppress(OSError, StorageError):
                    await self._services.offload.run(
                        remove, lane=self._directory_logs.directory.lane
                    )


def describe(finished: CompactionPass, statistics: CompactionStatistics, seconds: float) -> str:
    """Log message of a finished pass."""
    read, written = statistics.bytes_read / 1e6, statistics.bytes_written / 1e6
    text = (
        f"dirty section [{finished.dirty_range.first_dirty_offset}, {finished.end_offset}), "
        f"{read:.1f} MB read, {written:.1f} MB written, "
        f"{statistics.records_read} records read, {statistics.records_written} written, "
        f"{seconds:.1f} s ({read / max(seconds, 1e-3):.0f} MB/s), of which "
        f"{finished.map_seconds:.1f} s to build an offset map of {statistics.keys} keys, "
        f"{statistics.map_filled:.0%} full"
    )
    if statistics.records_without_key:
        text += f"; {statistics.records_without_key} records without a key removed"
    return text
