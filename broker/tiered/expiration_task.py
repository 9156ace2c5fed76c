"""Expiration task of a partition's leader (KIP-405's RLMExpirationTask): deletes remote log
segments by retention.

A run advances the log start offset first, so that followers receive it before an object is deleted.
It then deletes the segments that `storage/tiered/remote_retention.py` selects: deletions are
published one after another, and objects are deleted concurrently. A segment that cannot be deleted
does not block others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import trio

from odradek.broker.tiered.copy_task import update_highest_copied_offset
from odradek.broker.tiered.segment_operations import SegmentOperations
from odradek.protocol.errors import KafkaError
from odradek.replication.partition.partition import Partition
from odradek.seams.clock import Clock
from odradek.seams.values import value_class
from odradek.storage.tiered.copy_candidates import find_log_start_offset
from odradek.storage.tiered.errors import (
    InvalidRemoteState,
    RemoteResourceNotFound,
    RemoteStorageUnavailable,
)
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_retention import (
    EXPIRED_AT_ONCE,
    LOOKED_AT_A_STEP,
    DeletionReason,
    ExpirationDecision,
    ExpiredSegment,
    RetentionInput,
    decide_expiration,
)
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

log = logging.getLogger("odradek.tiered")


@value_class
class ExpirationTaskContext:
    """Collaborators that the expiration tasks of all partitions share."""

    clock: Clock
    metadata: RemoteLogMetadataManager
    work: SegmentOperations
    deletions: trio.CapacityLimiter
    """Limits the concurrent deletions of all partitions."""


class ExpirationTask:
    """Deletes the expired remote log segments of one partition while this node leads it."""

    def __init__(
        self,
        partition: Partition,
        id: TopicIdPartition,
        tools: ExpirationTaskContext,
        *,
        lacks_leader_epochs: Callable[[], bool] = lambda: False,
        copies: bool = True,
    ) -> None:
        """`lacks_leader_epochs`: the log has lost leader epochs of offsets in the remote tier.
        Their segments would seem to be outside the lineage, so only incomplete copies and
        deletions are processed. `copies`: a copy task writes the summaries. Without one, they are deleted after the
        last segment."""
        self._partition = partition
        self._id = id
        self._tools = tools
        self._lacks_leader_epochs = lacks_leader_epochs
        self._may_have_summaries = not copies
        self._is_start_known = False
        self.remote_bytes = 0
        """Size of the remote segments of this lineage at the last run (S-02). The following
        attributes are gauges too (S-04)."""
        self.remote_size_ms = 0
        self.metadata_count = 0
        self.to_delete_segments = 0
        self.to_delete_bytes = 0
        self.filled_percent = 0
        """Percentage of retention.bytes in both tiers, and below of local.retention.bytes on the
        disk; 0 without limit."""
        self.filled_local_percent = 0

    async def run_once(self) -> bool:
        """One run. Raises errors of the store and the metadata."""
        await update_highest_copied_offset(self._tools.metadata, self._id, self._partition.log)
        if not self._is_start_known and not self._lacks_leader_epochs():
            self._find_start()
        decided = await self._decide()
        if decided.log_start_offset is not None:
            self._start_at(decided.log_start_offset, "remote retention")
        expired = [each for each in decided.expired if self._may_delete(each)]
        self.to_delete_segments = len(expired)
        self.to_delete_bytes = sum(each.segment.size_bytes for each in expired)
        await _delete(self._tools, expired, self._deleted)
        if self._may_have_summaries and not self._tools.metadata.segment_count(self._id):
            await self._tools.work.remove_summaries(self._id)
            self._may_have_summaries = False
        return decided.more and bool(expired)

    def _deleted(self, segment: RemoteLogSegmentMetadata) -> None:
        self.to_delete_segments -= 1
        self.to_delete_bytes -= segment.size_bytes

    def _may_delete(self, expired: ExpiredSegment) -> bool:
        """Whether the segment is below the log start offset. A new leader with a low high watermark
        cannot advance it enough; such segments are kept until it can."""
        start = self._partition.log.log_start_offset
        return not expired.reason.moves_start or expired.segment.end_offset < start

    def _find_start(self) -> None:
        """Set the log start offset of a new leader (T-36): the previous leader may have deleted
        more than this replica knows."""
        partition_log = self._partition.log
        start = find_log_start_offset(
            partition_log.epochs.entries, self._first_finished, partition_log.local_log_start_offset
        )
        self._is_start_known = self._start_at(start, "first remote log segment")

    def _first_finished(self, epoch: int) -> int | None:
        for each in self._tools.metadata.segments(self._id, epoch):
            if each.state is SegmentState.COPY_SEGMENT_FINISHED:
                return each.start_offset
        return None

    def _start_at(self, offset: int, reason: str) -> bool:
        """Advance the log start offset up to the high watermark; whether it reached `offset`."""
        partition_log = self._partition.log
        if offset > partition_log.log_start_offset:
            self._partition.delete_before(min(offset, partition_log.high_watermark), reason)
        return partition_log.log_start_offset >= offset

    async def _decide(self) -> ExpirationDecision:
        partition_log, tools = self._partition.log, self._tools
        config, epochs = partition_log.config, partition_log.epochs.entries
        lacks_leader_epochs = self._lacks_leader_epochs()
        began = tools.clock.monotonic()
        copied_end = partition_log.highest_copied_offset + 1  # segments behind it count as local
        self.remote_bytes = tools.metadata.lineage_size(self._id, epochs, copied_end)
        self.remote_size_ms = int((tools.clock.monotonic() - began) * 1000)
        self.metadata_count = tools.metadata.segment_count(self._id)
        both_bytes = partition_log.local_only_bytes + self.remote_bytes
        self.filled_percent = _percent(both_bytes, config.retention_bytes)
        self.filled_local_percent = _percent(partition_log.size_bytes, config.local_limits[0])
        deciding = decide_expiration(
            RetentionInput(
                epochs=epochs,
                log_start_offset=partition_log.log_start_offset,
                log_end_offset=partition_log.end_offset,
                retention_ms=config.retention_ms,
                retention_bytes=config.retention_bytes,
                local_only_bytes=partition_log.local_only_bytes,
                remote_bytes=self.remote_bytes,
                now_ms=tools.clock.wall_ms(),
            ),
            () if lacks_leader_epochs else tools.metadata.segments(self._id),
            tools.metadata.unfinished(self._id) if lacks_leader_epochs else self._left_over(),
            in_progress=tools.work.is_in_progress,
            is_dangling=tools.work.is_dangling,
        )
        decided: ExpirationDecision | None = None
        for each in deciding:
            decided = each
            await trio.lowlevel.checkpoint()
        assert decided is not None
        return decided

    def _left_over(self) -> Iterator[RemoteLogSegmentMetadata]:
        """Incomplete copies and deletions, and segments of epochs before the log's first."""
        metadata = self._tools.metadata
        yield from metadata.unfinished(self._id)
        earliest = self._partition.log.epochs.earliest
        for epoch in metadata.epochs(self._id):
            if earliest is None or epoch >= earliest.epoch:
                break
            yield from metadata.segments(self._id, epoch)


def _percent(size_bytes: int, limit_bytes: int) -> int:
    return size_bytes * 100 // limit_bytes if limit_bytes > 0 else 0


class RemoteDeletionTask:
    """Deletes all remote log segments of one partition that this node leads, after remote storage
    was disabled for its topic with remote.log.delete.on.disable."""

    def __init__(
        self, partition: Partition, id: TopicIdPartition, tools: ExpirationTaskContext
    ) -> None:
        self._partition = partition
        self._id = id
        self._tools = tools
        self._is_removed = False
        self._failure: str | None = None
        self._copying_brokers: set[int] = set()
        """Other brokers whose incomplete copies the last run could not delete yet."""
        self._wake = trio.Event()

    def wake(self) -> None:
        """Run again soon: other segments can be deleted now."""
        self._wake.set()

    async def woken(self) -> None:
        """Wait for `wake`, since the last run began."""
        await self._wake.wait()

    async def run_once(self) -> bool:
        """Advance the log start offset to the local log start offset, then delete the remote
        segments. Raises errors of the store and the metadata."""
        self._wake = trio.Event()
        partition_log = self._partition.log
        start = min(partition_log.local_log_start_offset, partition_log.high_watermark)
        self._partition.delete_before(start, "remote storage is disabled for its topic")
        found = await self._find()
        await _delete(self._tools, found)
        if not self._is_removed and not self._tools.metadata.segment_count(self._id):
            await self._tools.work.remove_summaries(self._id)
            self._is_removed = True
        return len(found) == EXPIRED_AT_ONCE

    def finished_run(self, error: KafkaError | OSError | None) -> None:
        """Keep the error of the last run for `progress`."""
        message = error.message if isinstance(error, KafkaError) else None
        self._failure = None if error is None else message or str(error)

    @property
    def progress(self) -> str:
        """How many remote segments are left, and why: the error of the last run, or the brokers that may still copy."""
        count = self._tools.metadata.segment_count(self._id)
        if count == 0:
            left = "the summaries of the remote segments are not deleted yet"
        elif count == 1:
            left = "1 remote segment is not deleted yet"
        else:
            left = f"{count} remote segments are not deleted yet"
        if self._failure is not None:
            return f"{left}: {self._failure}"
        if not self._copying_brokers:
            return left
        brokers = ", ".join(map(str, sorted(self._copying_brokers)))
        noun = "broker" if len(self._copying_brokers) == 1 else "brokers"
        return f"{left}: {noun} {brokers} may still be copying"

    @property
    def is_done(self) -> bool:
        """Whether all remote segments are deleted, and the log starts with the local data."""
        return self._is_removed and not self._tools.metadata.segment_count(self._id)

    async def _find(self) -> list[ExpiredSegment]:
        """First segments that can be deleted; other tasks run in between."""
        found: list[ExpiredSegment] = []
        self._copying_brokers.clear()
        for number, segment in enumerate(self._tools.metadata.segments(self._id), 1):
            if self._may_delete(segment):
                found.append(ExpiredSegment(segment, DeletionReason.NOT_TIERED))
            if len(found) == EXPIRED_AT_ONCE:
                break
            if number % LOOKED_AT_A_STEP == 0:
                await trio.lowlevel.checkpoint()
        return found

    def _may_delete(self, segment: RemoteLogSegmentMetadata) -> bool:
        work, is_copy = self._tools.work, segment.state is SegmentState.COPY_SEGMENT_STARTED
        if work.is_in_progress(segment):
            return False
        if is_copy and not work.is_dangling(segment):
            self._copying_brokers.add(segment.broker_id)
            return False
        return True


async def _delete(
    tools: ExpirationTaskContext,
    expired: Iterable[ExpiredSegment],
    on_deleted: Callable[[RemoteLogSegmentMetadata], None] = lambda segment: None,
) -> None:
    """Publish the deletions one after another, from the oldest on, so that a crash leaves no gap,
    and delete the objects concurrently. A failed deletion of objects stops the rest only if the
    store is unavailable. A failed publication stops the rest unless another broker has deleted
    the segment. Raises the first failure."""
    failures: list[KafkaError] = []

    async def delete(each: ExpiredSegment, begun: RemoteLogSegmentMetadata) -> None:
        try:
            await tools.work.delete(begun)
        except KafkaError as error:
            failures.append(error)
        else:
            log.info("Deleted remote log segment %s: %s", each.segment.id, each.reason.value)
            on_deleted(each.segment)
        finally:
            tools.deletions.release_on_behalf_of(each.segment.id)

    async with trio.open_nursery() as nursery:
        for each in expired:
            await tools.deletions.acquire_on_behalf_of(each.segment.id)
            is_begun = False
            try:
                if any(isinstance(failure, RemoteStorageUnavailable) for failure in failures):
                    break
                begun = await tools.work.begin_to_delete(each.segment)
                nursery.start_soon(delete, each, begun)
                is_begun = True
            except (InvalidRemoteState, RemoteResourceNotFound) as error:
                failures.append(error)
            except KafkaError as error:
                failures.append(error)
                break
            finally:
                if not is_begun:
                    tools.deletions.release_on_behalf_of(each.segment.id)
    if failures:
        raise failures[0]
