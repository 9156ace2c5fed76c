"""Steps of a removal, and the inventory of partitions in the remote tier (T-51, T-52)."""

import itertools
from uuid import UUID

import pytest

from odradek.replication.tiered.partition_remover import PUBLISHES, STEPS, RemovalStep, next_step
from odradek.replication.tiered.topic_metadata_manager import PartitionInventory
from odradek.storage.tiered.segment_metadata import (
    PartitionDeleteState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
    is_valid_delete_transition,
)

A = TopicIdPartition(UUID(int=1), "flights", 0)
NEW_A = TopicIdPartition(UUID(int=2), "flights", 0)


@pytest.mark.parametrize(
    ("state", "segments_left"),
    list(itertools.product([None, *PartitionDeleteState], [True, False])),
)
def test_next_step_depends_on_state_and_segments(
    state: PartitionDeleteState | None, segments_left: bool
) -> None:
    """T-27, T-51: every published state is a valid successor of the current one."""
    step = next_step(state, segments_left=segments_left)
    if step in PUBLISHES:
        assert is_valid_delete_transition(state, PUBLISHES[step])
    assert len(STEPS) == 8


def test_partition_is_finished_only_without_segments() -> None:
    """T-51."""
    for state in PartitionDeleteState:
        if state is not PartitionDeleteState.DELETE_PARTITION_MARKED:
            assert next_step(state, segments_left=True) is RemovalStep.REMOVE_SEGMENTS
            assert next_step(state, segments_left=False) is RemovalStep.FINISH


def test_steps_end_the_removal() -> None:
    """T-51."""
    state: PartitionDeleteState | None = None
    steps: list[RemovalStep] = []
    while state is not PartitionDeleteState.DELETE_PARTITION_FINISHED:
        steps.append(next_step(state, segments_left=len(steps) < 3))
        state = PUBLISHES.get(steps[-1], state)
    assert steps == [
        RemovalStep.MARK,
        RemovalStep.START,
        RemovalStep.REMOVE_SEGMENTS,
        RemovalStep.FINISH,
    ]


def started(partition: TopicIdPartition, at_ms: int) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(partition, UUID(int=at_ms)), 0, 9, 1, at_ms, at_ms, (), 100
    )


def of_partition(partition: TopicIdPartition, state: int) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(partition, 1, 9, PartitionDeleteState(state))


def of_segment(partition: TopicIdPartition, state: int) -> RemoteLogSegmentMetadataUpdate:
    segment = RemoteLogSegmentId(partition, UUID(int=5))
    return RemoteLogSegmentMetadataUpdate(segment, 1, 9, SegmentState(state))


def test_inventory_has_partition_until_its_deletion_is_finished() -> None:
    """T-51, T-52: a recreated topic has another id."""
    inventory = PartitionInventory()
    assert inventory.apply(started(A, 70))
    assert not inventory.apply(started(A, 80))
    assert inventory.apply(started(NEW_A, 90))
    assert dict(inventory) == {A: 70, NEW_A: 90}
    assert inventory.of_topics({A.topic_id: None}) == [A]
    for state in range(3):
        assert A in inventory
        inventory.apply(of_partition(A, state))
    assert dict(inventory) == {NEW_A: 90}
    assert inventory.of_topics({A.topic_id: None}) == []


def test_inventory_has_segment_published_after_the_deletion() -> None:
    """T-51: a leader that had not processed the deletion copied another segment."""
    inventory = PartitionInventory()
    inventory.apply(of_partition(A, 2))
    assert A not in inventory
    assert inventory.apply(of_segment(A, 1))
    assert A in inventory


def test_inventory_ignores_updates_of_unknown_segments() -> None:
    inventory = PartitionInventory()
    assert not inventory.apply(of_segment(A, 3))
    assert len(inventory) == 0
