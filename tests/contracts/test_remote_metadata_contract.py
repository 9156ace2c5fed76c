"""Contract of RemoteLogMetadataManager (T-23 to T-27, T-49, S-01), for two nodes.

What one of them publishes it knows at once, the other sometime.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

import pytest
import trio
import trio.testing

from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered.errors import (
    InvalidRemoteState,
    RemoteNotReady,
    RemoteResourceNotFound,
)
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.segment_metadata import (
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.in_memory_remote_log_metadata import (
    InMemoryMetadataTopic,
    InMemoryRemoteLogMetadataManager,
)
from tests.support.remote_log_metadata import MetadataWorld, run
from tests.support.remote_segments import (
    DELETED,
    DELETING,
    FINISHED,
    FOO_0,
    STARTED,
    becomes,
    segment,
)

BAR_0 = TopicIdPartition(UUID(int=2), "bar", 0)

Manager = RemoteLogMetadataManager
TwoNodes = Callable[[Callable[[Manager, Manager], Awaitable[None]]], None]


def in_memory(main: Callable[[Manager, Manager], Awaitable[None]]) -> None:
    topic = InMemoryMetadataTopic()
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(
        main,
        InMemoryRemoteLogMetadataManager(topic),
        InMemoryRemoteLogMetadataManager(topic),
        clock=clock,
    )


def over_the_topic(main: Callable[[Manager, Manager], Awaitable[None]]) -> None:
    async def of_two(world: MetadataWorld) -> None:
        await main(world.manager(1), world.manager(2))

    run(of_two, 3)


@pytest.fixture(params=["memory", "topic"])
def two_nodes(request: pytest.FixtureRequest) -> TwoNodes:
    return {"memory": in_memory, "topic": over_the_topic}[request.param]


async def ready(manager: Manager, *partitions: TopicIdPartition) -> None:
    manager.partitions_changed(partitions, [])
    for each in partitions:
        await manager.wait_ready(each)


async def copied(manager: Manager, *copies: RemoteLogSegmentMetadata) -> None:
    for each in copies:
        await manager.add_segment(each)
        await manager.update_segment(becomes(each, FINISHED, each.event_timestamp_ms))


async def sometime(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.05)


def numbers(manager: Manager, epoch: int | None = None) -> list[int]:
    return [each.id.id.int for each in manager.segments(FOO_0, epoch)]


def test_published_event_is_known_when_put_returns(two_nodes: TwoNodes) -> None:
    """T-23 to T-26: all states of a segment."""

    async def main(manager: Manager, other: Manager) -> None:
        await ready(manager, FOO_0)
        copy, seen = segment(1, 0, 9), []
        await manager.add_segment(copy)
        for state in (FINISHED, DELETING, DELETED):
            known = manager.segment(copy.id)
            readable = manager.segment_for(FOO_0, 0, 5) is not None
            seen.append((known and known.state, readable, manager.segment_count(FOO_0)))
            await manager.update_segment(becomes(copy, state))
        assert seen == [(STARTED, False, 1), (FINISHED, True, 1), (DELETING, False, 1)]
        assert manager.segment(copy.id) is None
        assert numbers(manager) == []

    two_nodes(main)


def test_segment_starts_with_copy_segment_started(two_nodes: TwoNodes) -> None:
    """T-23."""

    async def main(manager: Manager, other: Manager) -> None:
        await ready(manager, FOO_0)
        copy = segment(1, 0, 9)
        for state in (FINISHED, DELETING, DELETED):
            with pytest.raises(InvalidRemoteState):
                await manager.add_segment(copy.updated(becomes(copy, state)))
        assert numbers(manager) == []

    two_nodes(main)


def test_update_of_unknown_segment_is_rejected(two_nodes: TwoNodes) -> None:
    """T-24."""

    async def main(manager: Manager, other: Manager) -> None:
        await ready(manager, FOO_0)
        copy = segment(1, 0, 9)
        with pytest.raises(RemoteResourceNotFound):
            await manager.update_segment(becomes(copy, FINISHED))
        await manager.add_segment(copy)
        with pytest.raises(InvalidRemoteState):
            await manager.update_segment(becomes(copy, STARTED))

    two_nodes(main)


def test_invalid_state_transition_is_rejected(two_nodes: TwoNodes) -> None:
    """T-25."""

    async def main(manager: Manager, other: Manager) -> None:
        await ready(manager, FOO_0)
        copy = segment(1, 0, 9)
        await copied(manager, copy)
        with pytest.raises(InvalidRemoteState):
            await manager.update_segment(becomes(copy, DELETED))
        with pytest.raises(InvalidRemoteState):
            await manager.add_segment(copy)
        assert [each.state for each in manager.segments(FOO_0)] == [FINISHED]

    two_nodes(main)


def test_repeated_state_is_accepted(two_nodes: TwoNodes) -> None:
    async def main(manager: Manager, other: Manager) -> None:
        await ready(manager, FOO_0)
        copy = segment(1, 0, 9)
        await manager.add_segment(copy)
        await manager.add_segment(copy)
        await manager.update_segment(becomes(copy, FINISHED))
        await manager.update_segment(becomes(copy, FINISHED))
        assert manager.remote_log_size(FOO_0, 0) == 100

    two_nodes(main)


def test_partition_delete_states_follow_in_order(two_nodes: TwoNodes) -> None:
    """T-27."""

    async def main(manager: Manager, other: Manager) -> None:
        await ready(manager, FOO_0)
        assert manager.partition_delete_state(FOO_0) is None
        with pytest.raises(InvalidRemoteState):
            await manager.put_partition_delete(deletion(PartitionDeleteState(1)))
        for state in PartitionDeleteState:
            await manager.put_partition_delete(deletion(state))
            await manager.put_partition_delete(deletion(state))
            assert manager.partition_delete_state(FOO_0) is state
        with pytest.raises(InvalidRemoteState):
            await manager.put_partition_delete(deletion(PartitionDeleteState(0)))

    two_nodes(main)


def deletion(state: PartitionDeleteState) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(FOO_0, 1, 5, state)


def test_segments_are_found_and_listed(two_nodes: TwoNodes) -> None:
    """T-26, T-31, T-35."""

    async def main(manager: Manager, other: Manager) -> None:
        await ready(manager, FOO_0)
        await copied(
            manager,
            segment(3, 20, 29, [(1, 20)], txn_index_empty=False),
            segment(1, 0, 9, [(0, 0)]),
            segment(2, 10, 19, [(0, 10), (1, 15)]),
        )
        await manager.add_segment(segment(4, 30, 39, [(1, 30)]))
        assert (numbers(manager), numbers(manager, 0), numbers(manager, 1)) == (
            [1, 2, 3, 4],
            [1, 2],
            [2, 3, 4],
        )
        assert [each.id.id.int for each in manager.unfinished(FOO_0)] == [4]
        assert list(manager.epochs(FOO_0)) == [0, 1]
        reaching = manager.segments_reaching(FOO_0, 19)
        assert [each.id.id.int for each in reaching] == [2, 3, 4]
        found = [manager.segment_for(FOO_0, *at) for at in ((0, 14), (0, 15), (1, 15), (1, 30))]
        assert [each and each.id.id.int for each in found] == [2, None, 2, None]
        assert [manager.highest_offset(FOO_0, epoch) for epoch in (0, 1, 2)] == [14, 29, None]
        with_transactions = manager.next_segment_with_transactions(FOO_0, 1, 15)
        assert with_transactions is not None
        assert with_transactions.id.id.int == 3
        assert manager.next_segment_with_transactions(FOO_0, 0, 0) is None

    two_nodes(main)


def test_remote_log_size_by_epoch(two_nodes: TwoNodes) -> None:
    """S-01, S-05, E16: six segments in one epoch; one, two and three in others; an unknown epoch; an unknown
    partition."""

    async def main(manager: Manager, other: Manager) -> None:
        await ready(manager, FOO_0, BAR_0)
        six = [segment(n, 10 * n, 10 * n + 9, [(0, 10 * n)]) for n in range(6)]
        await copied(manager, *six)
        sizes = [manager.remote_log_size(FOO_0, epoch) for epoch in (0, 1)]
        assert sizes == [600, 0]
        epochs = [0, 1, 1, 2, 2, 2]
        spread = [
            segment(n, 10 * n, 10 * n + 9, [(epoch, -1)], partition=BAR_0)
            for n, epoch in enumerate(epochs, 100)
        ]
        await copied(manager, *spread)
        assert [manager.remote_log_size(BAR_0, epoch) for epoch in range(4)] == [100, 200, 300, 0]
        lineage = [EpochStart(0, 0), EpochStart(2, 1030)]
        assert manager.lineage_size(BAR_0, lineage, 10_000) == 400
        with pytest.raises(RemoteResourceNotFound):
            manager.remote_log_size(TopicIdPartition(UUID(int=9), "baz", 0), 0)

    two_nodes(main)


def test_custom_metadata_is_kept_until_deletion(two_nodes: TwoNodes) -> None:
    async def main(manager: Manager, other: Manager) -> None:
        await ready(manager, FOO_0)
        copy = segment(1, 0, 9)
        await manager.add_segment(copy)
        await manager.update_segment(becomes(copy, FINISHED, 5, b"where it is"))
        await manager.update_segment(becomes(copy, DELETING, 6))
        assert [each.custom_metadata for each in manager.segments(FOO_0)] == [b"where it is"]

    two_nodes(main)


def test_unassigned_partition_is_unknown(two_nodes: TwoNodes) -> None:
    """T-49."""

    async def main(manager: Manager, other: Manager) -> None:
        assert not manager.is_ready(FOO_0)
        for question in questions(manager):
            with pytest.raises(RemoteResourceNotFound):
                question()
        with pytest.raises(RemoteResourceNotFound):
            await manager.wait_ready(FOO_0)
        with pytest.raises(RemoteResourceNotFound):
            await manager.add_segment(segment(1, 0, 9))

    two_nodes(main)


def questions(manager: Manager) -> list[Callable[[], object]]:
    return [
        partial(manager.segment_for, FOO_0, 0, 0),
        partial(manager.next_segment_with_transactions, FOO_0, 0, 0),
        partial(manager.highest_offset, FOO_0, 0),
        partial(manager.segments, FOO_0),
        partial(manager.segments_reaching, FOO_0, 0),
        partial(manager.segment, segment(1, 0, 9).id),
        partial(manager.unfinished, FOO_0),
        partial(manager.epochs, FOO_0),
        partial(manager.segment_count, FOO_0),
        partial(manager.remote_log_size, FOO_0, 0),
        partial(manager.lineage_size, FOO_0, [], 0),
        partial(manager.partition_delete_state, FOO_0),
    ]


def test_stopped_partition_is_unknown(two_nodes: TwoNodes) -> None:
    """T-26, T-53: after the partition is assigned again, its metadata is read again."""

    async def main(manager: Manager, other: Manager) -> None:
        await ready(manager, FOO_0, BAR_0)
        await copied(manager, segment(1, 0, 9))
        manager.stop_partitions([FOO_0])
        assert not manager.is_ready(FOO_0)
        assert manager.is_ready(BAR_0)
        with pytest.raises(RemoteResourceNotFound):
            manager.segments(FOO_0)
        await ready(manager, FOO_0)
        assert numbers(manager) == [1]

    two_nodes(main)


def test_stop_of_partition_ends_waiting_calls(two_nodes: TwoNodes) -> None:
    async def main(manager: Manager, other: Manager) -> None:
        async def stop() -> None:
            manager.stop_partitions([FOO_0])

        manager.partitions_changed([], [FOO_0])
        async with trio.open_nursery() as nursery:
            if not manager.is_ready(FOO_0):
                nursery.start_soon(stop)
                with pytest.raises(RemoteResourceNotFound):
                    await manager.wait_ready(FOO_0)

    two_nodes(main)


def test_other_node_reads_published_events(two_nodes: TwoNodes) -> None:
    """A follower that was running (T-36), and one that starts later (T-49) and is called after it is ready."""

    async def main(manager: Manager, other: Manager) -> None:
        await ready(other, BAR_0)
        other.partitions_changed([], [FOO_0])
        await ready(manager, FOO_0, BAR_0)
        await copied(manager, segment(1, 0, 9), segment(2, 0, 9, partition=BAR_0))
        await sometime(lambda: other.segment_for(BAR_0, 0, 5) is not None)
        await other.wait_ready(FOO_0)
        await sometime(lambda: other.segment_for(FOO_0, 0, 5) is not None)
        other.stop_partitions([FOO_0])
        other.partitions_changed([FOO_0], [])
        if not other.is_ready(FOO_0):
            with pytest.raises(RemoteNotReady):
                other.segments(FOO_0)
        await other.wait_ready(FOO_0)
        assert numbers(other) == [1]

    two_nodes(main)


def test_concurrent_publishers_converge(two_nodes: TwoNodes) -> None:
    async def main(manager: Manager, other: Manager) -> None:
        for each in (manager, other):
            await ready(each, FOO_0)
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(copied, manager, segment(number, 0, 9 + number))
                nursery.start_soon(copied, other, segment(100 + number, 0, 9 + number))
        await sometime(lambda: manager.segment_count(FOO_0) == other.segment_count(FOO_0) == 10)
        await sometime(lambda: not manager.unfinished(FOO_0) and not other.unfinished(FOO_0))
        assert list(manager.segments(FOO_0)) == list(other.segments(FOO_0))
        assert manager.segment_for(FOO_0, 0, 3) == other.segment_for(FOO_0, 0, 3)
        assert manager.highest_offset(FOO_0, 0) == 13

    two_nodes(main)


def test_listener_gets_every_change(two_nodes: TwoNodes) -> None:
    async def main(manager: Manager, other: Manager) -> None:
        heard: list[tuple[int, SegmentState]] = []
        manager.on_segment(lambda each: heard.append((each.id.id.int, each.state)))
        await ready(manager, FOO_0)
        copy = segment(1, 0, 9)
        await copied(manager, copy)
        await manager.update_segment(becomes(copy, DELETING))
        await manager.update_segment(becomes(copy, DELETED))
        assert heard == [(1, state) for state in SegmentState]

    two_nodes(main)
