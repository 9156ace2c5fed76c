"""State transitions of remote log segments and of partition deletions, for every pair of states
(T-25, T-27)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest

from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    PartitionDeleteState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
    is_valid_delete_transition,
    is_valid_transition,
)

FOO_0 = TopicIdPartition(UUID(int=1), "foo", 0)
SEGMENT = RemoteLogSegmentMetadata(
    id=RemoteLogSegmentId(FOO_0, UUID(int=2)),
    start_offset=10,
    end_offset=99,
    broker_id=1,
    max_timestamp_ms=5_000,
    event_timestamp_ms=6_000,
    epochs=(EpochStart(3, 10), EpochStart(7, 60)),
    size_bytes=1024,
    custom_metadata=b"where it is",
)


@pytest.mark.parametrize(("before", "after"), list(product([None, *SegmentState], SegmentState)))
def test_valid_transitions_of_segment(before: SegmentState | None, after: SegmentState) -> None:
    """T-25."""
    allowed = {(None, 0), (0, 1), (0, 2), (1, 2), (2, 3), (0, 0), (1, 1), (2, 2), (3, 3)}
    assert is_valid_transition(before, after) == ((before, after) in allowed)


@pytest.mark.parametrize(
    ("before", "after"), list(product([None, *PartitionDeleteState], PartitionDeleteState))
)
def test_valid_transitions_of_partition_deletion(
    before: PartitionDeleteState | None, after: PartitionDeleteState
) -> None:
    """T-27."""
    allowed = {(None, 0), (0, 1), (1, 2), (0, 0), (1, 1), (2, 2)}
    assert is_valid_delete_transition(before, after) == ((before, after) in allowed)


def test_last_offset_of_epoch_in_segment() -> None:
    assert [SEGMENT.last_offset_of(epoch) for epoch in (2, 3, 5, 7)] == [None, 59, None, 99]


def test_update_changes_state_broker_and_timestamp() -> None:
    update = RemoteLogSegmentMetadataUpdate(SEGMENT.id, 4, 7_000, SegmentState(1), b"elsewhere")
    assert SEGMENT.updated(update) == replace(
        SEGMENT,
        broker_id=4,
        event_timestamp_ms=7_000,
        state=SegmentState.COPY_SEGMENT_FINISHED,
        custom_metadata=b"elsewhere",
    )


def test_update_without_custom_metadata_keeps_it() -> None:
    update = RemoteLogSegmentMetadataUpdate(SEGMENT.id, 4, 7_000, SegmentState(2), None)
    assert SEGMENT.updated(update).custom_metadata == b"where it is"
