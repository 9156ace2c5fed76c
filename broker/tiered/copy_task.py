"""Copy task of a partition's leader (KIP-405's RLMCopyTask), with the copy quota and the summary of
copied segments.

A run copies the candidate segments (`storage/tiered/copy_candidates.py`) one after another and sets
the log's highest copied offset, on which local retention depends. The task is cancelled when
leadership ends; `SegmentOperations` then completes or deletes the copy in progress.

A summary (`partition_summary.py`) is written before the leader's first copy, so that readers do not use one
of an earlier leader with another lineage; if nothing is copied yet, the earlier ones are only
deleted. Afterwards it is written every few copies, with all finished segments up to the last copy.
"""

from __future__ import annotations

import logging
from itertools import count

import trio

from odradek.broker.metrics.recent_statistics import RecentStatistics
from odradek.broker.tiered.periodic_task import TaskEnded
from odradek.broker.tiered.segment_operations import CustomMetadataTooLarge, SegmentOperations
from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.protocol.errors import KafkaError
from odradek.replication.partition.partition import Partition
from odradek.replication.replication_quota import ReplicationQuota
from odradek.seams import Seams
from odradek.seams.clock import Clock
from odradek.seams.values import value_class
from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager
from odradek.storage.tiered.copy_candidates import (
    CandidateSegment,
    find_highest_copied_offset,
    list_candidate_segments,
    open_segment_to_copy,
    select_segments_to_copy,
)
from odradek.storage.tiered.partition_summary import PartitionSummaryBuilder
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

RUN_SECONDS_MAX = 30.0
"""Maximum duration of a run, so that other partitions can copy."""
SEGMENTS_PER_STEP = 100
"""Segments that are looked up before other tasks run."""


log = logging.getLogger("odradek.tiered")

COPIES_BEHIND_MIN, BEHIND_OF_ROWS = 8, 1024
"""Copies until the summary is written again, or 1/1024 of its rows. It is rewritten completely, and
readers open the manifests of the segments behind it."""
LOOKED_AT_A_STEP = 32


class CopyQuota:
    """Quota `remote.log.manager.copy.max.bytes.per.second` of all partitions: a segment starts when
    earlier ones are within the limit, and may exceed it itself."""

    def __init__(self, settings: RemoteLogSettings, clock: Clock) -> None:
        self._clock = clock
        self._lock = trio.Lock()
        self.throttled_ms = RecentStatistics(clock.monotonic)
        self._quota = ReplicationQuota(
            lambda: settings.copy_bytes_per_second,
            samples=settings.copy_samples,
            sample_seconds=settings.copy_sample_seconds,
        )

    async def wait(self, size_bytes: int) -> None:
        """Wait until a segment of that size may be copied."""
        async with self._lock:
            while (seconds := self._quota.seconds_left(self._clock.monotonic())) > 0:
                self.throttled_ms.record(seconds * 1000)
                await self._clock.sleep(seconds)
            self._quota.record(size_bytes, self._clock.monotonic())


@value_class
class CopyTaskContext:
    """Collaborators that the copy tasks of all partitions share."""

    node_id: int
    seams: Seams
    logs: LogManager
    metadata: RemoteLogMetadataManager
    work: SegmentOperations
    quota: CopyQuota


class CopyTask:
    """Copies the segments of one partition while this node leads it."""

    def __init__(
        self,
        partition: Partition,
        id: TopicIdPartition,
        tools: CopyTaskContext,
        *,
        tiered_epoch: int = 0,
    ) -> None:
        """`tiered_epoch` is that of the topic (KIP-950)."""
        self._partition = partition
        self._tiered_epoch = tiered_epoch
        self._log = partition.log
        self._id = id
        self._tools = tools
        self._summary = SummaryWriter(id, partition.leading_since, tools.metadata, tools.work)
        self._handed_over: int | None = None
        """End offset of the copy that failed last; it may still be published later."""

    async def run_once(self) -> bool:
        """One run; True if it ended early for other partitions. Raises errors of the store, the
        metadata and the disk, and TaskEnded."""
        self._tools.work.check_published(self._id)
        copied = await update_highest_copied_offset(self._tools.metadata, self._id, self._log)
        handed_over, self._handed_over = self._handed_over, None
        if handed_over is not None and handed_over <= copied:
            await self._summary.copied(handed_over)
        clock = self._tools.seams.clock
        ends_at = clock.monotonic() + RUN_SECONDS_MAX
        for candidate in self._candidates():
            if clock.monotonic() > ends_at:
                return True
            if candidate.end_offset <= self._log.highest_copied_offset:
                continue  # it is copied already; an older segment was missing
            await self._tools.quota.wait(candidate.size_bytes)
            if candidate.end_offset < self._log.log_start_offset:
                continue  # the log has deleted it meanwhile
            await self._summary.before_copy(candidate.base_offset)
            try:
                self._handed_over = candidate.end_offset
                await self._copy(candidate)
                self._handed_over = None
            except OffsetOutOfRange:
                if candidate.segment in self._log.segment_list.all:
                    raise
                return True  # deleted meanwhile, or the log moved to another directory: list the segments again
            except CustomMetadataTooLarge as error:
                raise TaskEnded(str(error)) from error
            await self._summary.copied(candidate.end_offset)
        return False

    def _candidates(self) -> list[CandidateSegment]:
        partition_log = self._log
        return select_segments_to_copy(
            list_candidate_segments(partition_log, partition_log.highest_copied_offset + 1),
            copied_offset=partition_log.highest_copied_offset,
            log_start_offset=partition_log.log_start_offset,
            last_stable_offset=partition_log.last_stable_offset,
        )

    async def _copy(self, candidate: CandidateSegment) -> None:
        partition_log, tools = self._log, self._tools
        seams = tools.seams
        lane = tools.logs.directory_of(partition_log).lane
        opened = await seams.offload.run(open_segment_to_copy, partition_log, candidate, lane=lane)
        try:
            segment = RemoteLogSegmentMetadata(
                RemoteLogSegmentId(self._id, seams.entropy.uuid()),
                start_offset=candidate.base_offset,
                end_offset=candidate.end_offset,
                broker_id=tools.node_id,
                max_timestamp_ms=opened.max_timestamp_ms,
                event_timestamp_ms=seams.clock.wall_ms(),
                epochs=opened.epochs,
                size_bytes=candidate.size_bytes,
                txn_index_empty=opened.txn_index_empty,
                tiered_epoch=self._tiered_epoch,
            )
            await tools.work.copy(segment, opened.data)
        finally:
            opened.close()
        await update_highest_copied_offset(tools.metadata, self._id, partition_log)


async def update_highest_copied_offset(
    metadata: RemoteLogMetadataManager,
    id: TopicIdPartition,
    partition_log: PartitionLog,
    first_epoch: int = 0,
) -> int:
    """Look up the log's highest copied offset, set it in the log, and return it; -1 if nothing is
    copied (T-31, T-53).

    A local segment counts as copied only if a contiguous sequence of copies exists, because copies
    may have been deleted since, for example while the topic was not tiered. Copies of tiered epochs
    before `first_epoch` do not count: the leader deletes them (KIP-950, X-10). Raises
    RemoteStorageError.

    If it is cancelled it does not change the log, because the partition may have a new role.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    highest = find_highest_copied_offset(
        partition_log.epochs.entries,
        partition_log.end_offset,
        lambda epoch: metadata.highest_offset(id, epoch),
    )
    offset = max(partition_log.highest_copied_offset + 1, partition_log.local_log_start_offset)
    for hops in count():
        epoch = partition_log.epochs.epoch_for(offset)
        if offset > highest or epoch is None:
            break
        segment = metadata.segment_for(id, epoch, offset)
        is_counted = segment is not None and segment.tiered_epoch >= first_epoch
        last_offset = segment.last_offset_of(epoch) if segment and is_counted else None
        if last_offset is None:
            highest = offset - 1
            break
        offset = min(last_offset + 1, partition_log.epochs.end_offset_for(epoch).end_offset)
        if hops % SEGMENTS_PER_STEP == SEGMENTS_PER_STEP - 1:
            await trio.lowlevel.checkpoint()
    partition_log.advance_highest_copied_offset(highest)
    return highest


class SummaryWriter:
    """Writes the summaries of one partition during one leadership, which started in `leader_epoch`."""

    def __init__(
        self,
        id: TopicIdPartition,
        leader_epoch: int,
        metadata: RemoteLogMetadataManager,
        work: SegmentOperations,
    ) -> None:
        self._id = id
        self._leader_epoch = leader_epoch
        self._metadata = metadata
        self._work = work
        self._rows: int | None = None
        """Rows of the last summary; None before the first one."""
        self._copies_behind = 0

    async def before_copy(self, start_offset: int) -> None:
        """Call before the copy of a segment that starts there. Raises errors of the store: a copy
        that readers cannot see is worse than a delayed one."""
        if self._rows is None:
            self._rows = 0
            try:
                await self._put(start_offset)
            except BaseException:
                self._rows = None
                raise

    async def copied(self, end_offset: int) -> None:
        """Call after the copy of a segment that ends there. If the summary cannot be written, a
        later copy retries it."""
        self._copies_behind += 1
        if self._copies_behind > max(COPIES_BEHIND_MIN, (self._rows or 0) // BEHIND_OF_ROWS):
            try:
                await self._put(end_offset + 1)
            except KafkaError as error:
                log.info(
                    "cannot write the summary of %s, a later copy retries it: %s", self._id, error
                )

    async def _put(self, before_offset: int) -> None:
        """Write a summary and delete those of earlier leaders; only delete them if no segment is
        finished."""
        builder = await self._built(before_offset)
        if len(builder):
            await self._work.put_summary(self._id, self._leader_epoch, builder)
        else:
            await self._work.remove_summaries(self._id)
        self._rows, self._copies_behind = len(builder), 0

    async def _built(self, before_offset: int) -> PartitionSummaryBuilder:
        """Summary of the finished segments; empty if the format cannot hold one of them."""
        builder = PartitionSummaryBuilder()
        for number, segment in enumerate(self._metadata.segments(self._id), 1):
            if segment.start_offset >= before_offset:
                break
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED:
                try:
                    builder.add(segment)
                except ValueError as error:
                    log.info("%s has no summary: %s", self._id, error)
                    return PartitionSummaryBuilder()
            if number % LOOKED_AT_A_STEP == 0:
                await trio.lowlevel.checkpoint()
        return builder
