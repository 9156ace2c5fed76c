"""Finished remote segments of one partition."""

from __future__ import annotations

from uuid import UUID

from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

PARTITION = TopicIdPartition(UUID(int=7), "orders", 0)
FINISHED = SegmentState.COPY_SEGMENT_FINISHED


def epochs(*pairs: tuple[int, int]) -> tuple[EpochStart, ...]:
    """Return the starts of epochs, from pairs (epoch, start offset)."""
    return tuple(EpochStart(*pair) for pair in pairs)


def segment(
    start: int,
    end: int,
    *of: tuple[int, int],
    state: SegmentState = FINISHED,
    size: int = 100,
    newest_ms: int = 1_000_000,
    id: int | None = None,
) -> RemoteLogSegmentMetadata:
    """Return a segment with the offsets [start, end] and the epochs `of`, by default only epoch 0."""
    number = 1 + start * 1000 + end if id is None else id
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(PARTITION, UUID(int=number)),
        start_offset=start,
        end_offset=end,
        broker_id=1,
        max_timestamp_ms=newest_ms,
        event_timestamp_ms=newest_ms,
        epochs=epochs(*(of or ((0, start),))),
        size_bytes=size,
        state=state,
    )
