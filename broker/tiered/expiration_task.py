"""What a leader does to have its partition's remote segments go when their time has come.

A round moves the log's start first, so that followers know of it before the first object goes, and then
deletes what `storage/tiered/remote_retention.py` says: announced one after the other, deleted several at once. A
segment whose objects cannot be deleted now does not keep others.
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
from odradek.storage.tiered.metadata import (
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
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

log = logging.getLogger("odradek.tiered")


@value_class
class ExpirationTaskContext:
    """What the expirers of all partitions share."""

    clock: Clock
    metadata: RemoteLogMetadataManager
    work: SegmentOperations
    deletions: trio.CapacityLimiter
    """How many go at once, of all partitions."""


class ExpirationTask:
    """Of one partition, while this node leads it."""

    def __init__(
        self,
        partition: Partition,
        id: TopicIdPartition,
        tools: ExpirationTaskContext,
        *,
        lacks_leader_epochs: Callable[[], bool] = lambda: False,
    ) -> None:
        """`lacks_leader_epochs`: the log has forgotten epochs that are in the remote tier. What is of them would
        seem to be of another log, so that nothing goes but what was never finished."""
        self._partition = partition
        self._id = id
        self._tools = tools
        self._lacks_leader_epochs = lacks_leader_epochs
        self._is_start_known = False
        self.remote_bytes = 0
        """Of this lineage (S-02), as of the last round; so are these, for gauges (S-04)."""
        self.remote_size_ms = 0
        self.metadata_count = 0
        self.to_delete_segments = 0
        self.to_delete_bytes = 0
        self.filled_percent = 0
        """What both tiers have of retention.bytes, and the disk of local.retention.bytes; 0 without such."""
        self.filled_local_percent = 0

    async def round(self) -> bool:
        """See the module. Raises what the store or the metadata does."""
        await update_highest_copied_offset(self._tools.metadata, self._id, self._partition.log)
        if not self._is_start_known and not self._lacks_leader_epochs():
            self._find_start()
        decided = await self._decide()
        if decided.log_start_offset is not None:
            self._start_at(decided.log_start_offset, "retention of the remote tier")
        expired = [each for each in decided.expired if self._may_go(each)]
        self.to_delete_segments = len(expired)
        self.to_delete_bytes = sum(each.segment.size_bytes for each in expired)
        await _delete(self._tools, expired, self._deleted)
        return decided.more and bool(expired)

    def _deleted(self, segment: RemoteLogSegmentMetadata) -> None:
        self.to_delete_segments -= 1
        self.to_delete_bytes -= segment.size_bytes

    def _may_go(self, expired: ExpiredSegment) -> bool:
        """A new leader whose high watermark lags cannot move the log's start as far as it would: what
        the log still begins with stays until it can."""
        start = self._partition.log.log_start_offset
        return not expired.reason.moves_start or expired.segment.end_offset < start

    def _find_start(self) -> None:
        """T-36: the leader before may have deleted further than this replica was told."""
        partition_log = self._partition.log
        start = find_log_start_offset(
            partition_log.epochs.entries, self._first_finished, partition_log.local_log_start_offset
        )
        self._is_start_known = self._start_at(start, "the remote tier does")

    def _first_finished(self, epoch: int) -> int | None:
        for each in self._tools.metadata.segments(self._id, epoch):
            if each.state is SegmentState.COPY_SEGMENT_FINISHED:
                return each.start_offset
        return None

    def _start_at(self, offset: int, reason: str) -> bool:
        """Move the log's start up, as far as is replicated; whether that was far enough."""
        partition_log = self._partition.log
        if offset > partition_log.log_start_offset:
            self._partition.delete_before(min(offset, partition_log.high_watermark), reason)
        return partition_log.log_start_offset >= offset

    async def _decide(self) -> ExpirationDecision:
        partition_log, tools = self._partition.log, self._tools
        config, epochs = partition_log.config, partition_log.epochs.entries
        lacks_leader_epochs = self._lacks_leader_epochs()
        began = tools.clock.monotonic()
        copied_end = partition_log.highest_copied_offset + 1  # what lies behind it counts as local
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
        """All that is not finished, and what is of epochs before the log's first."""
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
    """Of one partition, while this node leads it and its topic is tiered no more, with
    remote.log.delete.on.disable: all goes that is in the remote tier."""

    def __init__(
        self, partition: Partition, id: TopicIdPartition, tools: ExpirationTaskContext
    ) -> None:
        self._partition = partition
        self._id = id
        self._tools = tools
        self._is_removed = False

    async def round(self) -> bool:
        """The log starts where the disk does, then what lies before is deleted. Raises what the store or
        the metadata does."""
        partition_log = self._partition.log
        start = min(partition_log.local_log_start_offset, partition_log.high_watermark)
        self._partition.delete_before(start, "its topic is not tiered any more")
        found = await self._find()
        await _delete(self._tools, found)
        if not self._is_removed and not self._tools.metadata.segment_count(self._id):
            await self._tools.work.remove_summaries(self._id)
            self._is_removed = True
        return len(found) == EXPIRED_AT_ONCE

    async def _find(self) -> list[ExpiredSegment]:
        """The first that can go, with turns of others in between."""
        found: list[ExpiredSegment] = []
        for number, segment in enumerate(self._tools.metadata.segments(self._id), 1):
            if self._may_go(segment):
                found.append(ExpiredSegment(segment, DeletionReason.NOT_TIERED))
            if len(found) == EXPIRED_AT_ONCE:
                break
            if number % LOOKED_AT_A_STEP == 0:
                await trio.lowlevel.checkpoint()
        return found

    def _may_go(self, segment: RemoteLogSegmentMetadata) -> bool:
        work, is_copy = self._tools.work, segment.state is SegmentState.COPY_SEGMENT_STARTED
        return not work.is_in_progress(segment) and (not is_copy or work.is_dangling(segment))


async def _delete(
    tools: ExpirationTaskContext,
    expired: Iterable[ExpiredSegment],
    on_deleted: Callable[[RemoteLogSegmentMetadata], None] = lambda segment: None,
) -> None:
    """One after the other is given up, from the oldest on: whatever a crash leaves has no hole. Then their
    objects go, several at once. A segment whose objects stay keeps others only where the store is away; one
    that cannot be given up keeps those behind it, unless somebody else has deleted it. Raises the first
    failure."""
    failures: list[KafkaError] = []

    async def delete(each: ExpiredSegment, begun: RemoteLogSegmentMetadata) -> None:
        try:
            await tools.work.delete(begun)
        except KafkaError as error:
            failures.append(error)
        else:
            log.info("%s is deleted: %s", each.segment.id, each.reason.value)
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
