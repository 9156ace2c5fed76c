"""What a leader does to have its partition's closed segments in the remote tier.

A round copies what is to be copied by then, one segment after the other, as `storage/tiered/copying.py`
says; how far that has come is told to the log, whose local retention goes by it. Whoever leads no more
is cancelled, wherever it is: what it leaves unfinished `SegmentWork` sees to the end.
"""

from __future__ import annotations

from itertools import count

import trio

from odradek.broker.metrics.recent import Recent
from odradek.broker.tiered.rounds import TaskEnded
from odradek.broker.tiered.segment_work import CustomMetadataTooLarge, SegmentWork
from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.broker.tiered.summaries import SummaryUpkeep
from odradek.replication.partition.partition import Partition
from odradek.replication.quota import ReplicationQuota
from odradek.seams import Seams
from odradek.seams.clock import Clock
from odradek.seams.values import value_class
from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager
from odradek.storage.tiered.copying import highest_copied, to_be_copied
from odradek.storage.tiered.metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from odradek.storage.tiered.remote_metadata import RemoteLogMetadataManager
from odradek.storage.tiered.sealed import SealedSegment, copyable_segments, open_sealed

TURN_SECONDS = 30.0
"""After so long a partition with many segments to copy lets others have its place."""
HOPS_A_STEP = 100
"""So many copies are looked up between two turns of others."""


class CopyQuota:
    """`remote.log.manager.copy.max.bytes.per.second`, all partitions together: a segment begins when
    what went before is within the limit, and may exceed it itself."""

    def __init__(self, settings: RemoteLogSettings, clock: Clock) -> None:
        self._clock = clock
        self._turn = trio.Lock()
        self.throttled_ms = Recent(clock.monotonic)
        self._quota = ReplicationQuota(
            lambda: settings.copy_bytes_per_second,
            samples=settings.copy_samples,
            sample_seconds=settings.copy_sample_seconds,
        )

    async def wait(self, size_bytes: int) -> None:
        """Return when a segment of that size may go."""
        async with self._turn:
            while (seconds := self._quota.seconds_left(self._clock.monotonic())) > 0:
                self.throttled_ms.record(seconds * 1000)
                await self._clock.sleep(seconds)
            self._quota.record(size_bytes, self._clock.monotonic())


@value_class
class CopierTools:
    """What the copiers of all partitions share."""

    node_id: int
    seams: Seams
    logs: LogManager
    metadata: RemoteLogMetadataManager
    work: SegmentWork
    quota: CopyQuota


class Copier:
    """Of one partition, while this node leads it."""

    def __init__(self, partition: Partition, id: TopicIdPartition, tools: CopierTools) -> None:
        self._partition = partition
        self._log = partition.log
        self._id = id
        self._tools = tools
        self._summary = SummaryUpkeep(id, partition.leading_since, tools.metadata, tools.work)
        self._handed_over: int | None = None
        """Where the copy ends that failed last: it may be published all the same, later."""

    async def round(self) -> bool:
        """See the module; True if others are to have their turn before the rest. Raises what the store,
        the metadata or the disk does, and TaskEnded."""
        self._tools.work.check_published(self._id)
        copied = await find_copied(self._tools.metadata, self._id, self._log)
        handed_over, self._handed_over = self._handed_over, None
        if handed_over is not None and handed_over <= copied:
            await self._summary.copied(handed_over)
        clock = self._tools.seams.clock
        ends_at = clock.monotonic() + TURN_SECONDS
        for sealed in self._candidates():
            if clock.monotonic() > ends_at:
                return True
            if sealed.end_offset <= self._log.highest_copied_offset:
                continue  # it was before, and something older was missing
            await self._tools.quota.wait(sealed.size_bytes)
            if sealed.end_offset < self._log.log_start_offset:
                continue  # it was deleted meanwhile
            await self._summary.before_copy(sealed.base_offset)
            try:
                self._handed_over = sealed.end_offset
                await self._copy(sealed)
                self._handed_over = None
            except OffsetOutOfRange:
                if sealed.segment in self._log.segment_list.all:
                    raise
                return True  # deleted just now, or its log has moved: what is there is found anew
            except CustomMetadataTooLarge as error:
                raise TaskEnded(str(error)) from error
            await self._summary.copied(sealed.end_offset)
        return False

    def _candidates(self) -> list[SealedSegment]:
        which = self._log
        return to_be_copied(
            copyable_segments(which, which.highest_copied_offset + 1),
            copied_offset=which.highest_copied_offset,
            log_start_offset=which.log_start_offset,
            last_stable_offset=which.last_stable_offset,
        )

    async def _copy(self, sealed: SealedSegment) -> None:
        which, tools = self._log, self._tools
        seams = tools.seams
        lane = tools.logs.directory_of(which).lane
        opened = await seams.offload.run(open_sealed, which, sealed, lane=lane)
        try:
            segment = RemoteLogSegmentMetadata(
                RemoteLogSegmentId(self._id, seams.entropy.uuid()),
                start_offset=sealed.base_offset,
                end_offset=sealed.end_offset,
                broker_id=tools.node_id,
                max_timestamp_ms=opened.max_timestamp_ms,
                event_timestamp_ms=seams.clock.wall_ms(),
                epochs=opened.epochs,
                size_bytes=sealed.size_bytes,
                txn_index_empty=opened.txn_index_empty,
            )
            await tools.work.copy(segment, opened.data)
        finally:
            opened.close()
        await find_copied(tools.metadata, self._id, which)


async def find_copied(
    metadata: RemoteLogMetadataManager, id: TopicIdPartition, which: PartitionLog
) -> int:
    """Find out how far a log is copied, and tell it; -1: not at all (T-31, T-53).

    What is on the disk counts as copied only as far as there are copies of it, one behind the other: the
    highest offset that was ever copied says nothing of copies that were deleted since, as when a topic
    was not tiered for a while. Raises RemoteStorageError.

    Whoever is cancelled tells the log nothing: another role may have begun, for which that is unknown yet.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    highest = highest_copied(
        which.epochs.entries, which.end_offset, lambda epoch: metadata.highest_offset(id, epoch)
    )
    offset = max(which.highest_copied_offset + 1, which.local_log_start_offset)
    for hops in count():
        epoch = which.epochs.epoch_for(offset)
        if offset > highest or epoch is None:
            break
        segment = metadata.segment_for(id, epoch, offset)
        last_offset = None if segment is None else segment.last_offset_of(epoch)
        if last_offset is None:
            highest = offset - 1
            break
        offset = min(last_offset + 1, which.epochs.end_offset_for(epoch).end_offset)
        if hops % HOPS_A_STEP == HOPS_A_STEP - 1:
            await trio.lowlevel.checkpoint()
    which.copied_to(highest)
    return highest
