"""Checks retention over both tiers, to the offset: size, time, and DeleteRecords.

The expected log start offsets are computed from the leaders' logs before; no client writes
meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from odradek.replication.partition.partition import Partition
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition

LogStartOffsets = Mapping[int, int]
"""The log start offset of each partition."""


class RetentionAdministrator(Protocol):
    async def configure(self, configs: Mapping[str, str]) -> None:
        """Set configs of the topic."""
        ...

    async def delete_records(self, before: Mapping[int, int]) -> None:
        """Delete all records below an offset in each partition."""
        ...


class LeaderLog:
    """The log of a partition on its leader."""

    def __init__(
        self,
        partition: Partition,
        metadata: RemoteLogMetadataManager,
        topic_id_partition: TopicIdPartition,
    ) -> None:
        self.index = partition.index
        self.end_offset = partition.log.high_watermark
        self.local_only_bytes = partition.log.local_only_bytes
        self.segments = copied_segments(partition, metadata, topic_id_partition)


def copied_segments(
    partition: Partition, metadata: RemoteLogMetadataManager, topic_id_partition: TopicIdPartition
) -> Sequence[RemoteLogSegmentMetadata]:
    """The completed copies that the log consists of, in order, from the log start offset."""
    log, found = partition.log, []
    offset = log.log_start_offset
    while offset <= log.highest_copied_offset:
        epoch = log.epochs.epoch_for(offset)
        segment = None if epoch is None else metadata.segment_for(topic_id_partition, epoch, offset)
        if segment is None:
            break
        found.append(segment)
        offset = segment.end_offset + 1
    return found


async def expire_records(
    chance: random.Random, logs: Sequence[LeaderLog], admin: RetentionAdministrator
) -> LogStartOffsets:
    """Delete records in one of three ways; return the expected log start offsets."""
    ways: Sequence[Callable[[], Awaitable[LogStartOffsets]]] = (
        lambda: _by_size(chance, logs, admin),
        lambda: _by_time(logs, admin),
        lambda: _by_offset(chance, logs, admin),
    )
    return await chance.choice(ways)()


async def _by_size(
    chance: random.Random, logs: Sequence[LeaderLog], admin: RetentionAdministrator
) -> LogStartOffsets:
    """Delete the oldest segments while the rest has at least `retention.bytes` (S-02)."""
    kept_bytes = max(1, int(chance.random() * max(_size(log) for log in logs)))
    await admin.configure({"retention.bytes": str(kept_bytes)})
    starts = {}
    for log in logs:
        breach = _size(log) - kept_bytes
        starts[log.index] = log.segments[0].start_offset if log.segments else 0
        for segment in log.segments:
            if segment.size_bytes > breach:
                break
            breach -= segment.size_bytes
            starts[log.index] = segment.end_offset + 1
    return starts


def _size(log: LeaderLog) -> int:
    return log.local_only_bytes + sum(segment.size_bytes for segment in log.segments)


async def _by_time(logs: Sequence[LeaderLog], admin: RetentionAdministrator) -> LogStartOffsets:
    """Expire all records by time, including the active segment."""
    await admin.configure({"local.retention.ms": "1", "retention.ms": "1"})
    return {log.index: log.end_offset for log in logs}


async def _by_offset(
    chance: random.Random, logs: Sequence[LeaderLog], admin: RetentionAdministrator
) -> LogStartOffsets:
    """Use DeleteRecords with an offset within a segment or at its end."""
    starts = {log.index: chance.randint(0, log.end_offset) for log in logs}
    await admin.delete_records(starts)
    return starts
