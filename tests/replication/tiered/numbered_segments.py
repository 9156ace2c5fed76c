"""Consecutive remote log segments of ten records each, all of leader epoch 0."""

from __future__ import annotations

from uuid import UUID

from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tests.support.remote_log_metadata import MetadataWorld

A = TopicIdPartition(UUID(int=1), "flights", 0)
B = TopicIdPartition(UUID(int=2), "hotels", 0)
FINISHED = SegmentState.COPY_SEGMENT_FINISHED


def segment(partition: TopicIdPartition, number: int) -> RemoteLogSegmentMetadata:
    start = 10 * number
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(partition, UUID(int=1000 + number)),
        start,
        start + 9,
        1,
        1_700_000_000_000,
        1_700_000_000_000,
        (EpochStart(0, start),),
        100,
    )


def becomes(of: RemoteLogSegmentMetadata, state: SegmentState) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(of.id, 1, 1_700_000_000_001, state)


async def copied(world: MetadataWorld, by: int, partition: TopicIdPartition, number: int) -> None:
    manager = world.manager(by)
    await manager.add_segment(segment(partition, number))
    await manager.update_segment(becomes(segment(partition, number), FINISHED))
