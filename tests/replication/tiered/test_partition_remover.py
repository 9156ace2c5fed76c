"""Removal of deleted topics from the remote tier by the removers of one or three nodes (T-09, T-51, T-52)."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio

from odradek.replication.tiered.partition_remover import RemoverSettings
from odradek.storage.tiered.errors import RemoteAccessDenied
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    PartitionDeleteState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)
from tests.support.remote_log_metadata import MetadataWorld, run

FINISHED = SegmentState.COPY_SEGMENT_FINISHED


def segment(
    world: MetadataWorld, partition: TopicIdPartition, number: int
) -> RemoteLogSegmentMetadata:
    start, now_ms = 10 * number, world.world.clock.wall_ms()
    id = UUID(int=(partition.topic_id.int ^ partition.partition << 64) + number)
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(partition, id),
        start,
        start + 9,
        1,
        now_ms,
        now_ms,
        (EpochStart(0, start),),
        100,
    )


async def copy(world: MetadataWorld, partition: TopicIdPartition, count: int) -> None:
    """Copy segments on node 1, which leads the partition. The last copy is not finished."""
    manager = world.manager(1)
    manager.partitions_changed([partition], [])
    await manager.wait_ready(partition)
    for number in range(count):
        made = segment(world, partition, number)
        await manager.add_segment(made)
        world.store.objects.add(made.id.id)
        if number < count - 1:
            update = RemoteLogSegmentMetadataUpdate(made.id, 1, made.event_timestamp_ms, FINISHED)
            await manager.update_segment(update)


async def until_gone(world: MetadataWorld, *partitions: TopicIdPartition) -> None:
    """Wait until there is an inventory of each metadata partition, and none has the partitions."""
    while True:
        found = [
            each
            for running_manager in world.running.values()
            for each in running_manager.manager.inventories()
        ]
        is_in_any = any(each in inventory for _, inventory in found for each in partitions)
        if {index for index, _ in found} == {0, 1, 2} and not is_in_any:
            return
        await trio.sleep(0.05)


@pytest.mark.parametrize("nodes", [1, 3])
def test_segments_of_deleted_topic_are_deleted_once(nodes: int) -> None:
    """T-51: unfinished copies too, and before the next interval."""

    async def main(world: MetadataWorld) -> None:
        partitions = await world.create("flights", 2)
        for each in partitions:
            await copy(world, each, 5)
        await trio.sleep(10)
        assert len(world.store.objects) == 10
        await world.delete("flights")
        with trio.fail_after(2.5):
            await until_gone(world, *partitions)
        assert world.store.objects == set()
        assert len(world.store.deletions) == len(set(world.store.deletions)) == 10

    run(main, nodes, removes=True)


def test_recreated_topic_is_not_affected() -> None:
    """T-52."""

    async def main(world: MetadataWorld) -> None:
        (old,) = await world.create("flights")
        await copy(world, old, 3)
        world.store.is_unavailable = True
        await world.delete("flights")
        (new,) = await world.create("flights")
        assert new.topic_id != old.topic_id
        await copy(world, new, 2)
        await trio.sleep(20)
        assert len(world.store.objects) == 5
        world.store.is_unavailable = False
        await until_gone(world, old)
        assert set(world.store.summaries_removed) == {old}
        assert len(world.store.objects) == 2
        assert len(list(world.manager(1).segments(new))) == 2

    run(main, removes=True)


def test_unavailable_store_delays_the_removal() -> None:
    """T-12, T-51: every segment is in state DELETE_SEGMENT_STARTED, and no deletion is finished."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 4)
        world.store.is_unavailable = True
        await world.delete("flights")
        await trio.sleep(10)
        manager = world.manager(1)
        assert manager.partition_delete_state(partition) is (
            PartitionDeleteState.DELETE_PARTITION_STARTED
        )
        states = [each.state for each in manager.segments(partition)]
        assert states == [SegmentState.DELETE_SEGMENT_STARTED] * 4
        world.store.is_unavailable = False
        with trio.fail_after(5):
            await until_gone(world, partition)
        assert world.store.objects == set()

    run(main, removes=True)


def test_undeletable_partitions_do_not_delay_others() -> None:
    """T-51: the store refuses to delete objects of as many partitions as are removed concurrently."""

    async def main(world: MetadataWorld) -> None:
        locked = await world.create("locked", RemoverSettings().partitions_at_once)
        others = await world.create("flights", 2)
        for each in (*locked, *others):
            await copy(world, each, 2)
        deleted = world.store.delete_segment

        def delete(metadata: RemoteLogSegmentMetadata) -> None:
            if metadata.partition in locked:
                raise RemoteAccessDenied("it is locked")
            deleted(metadata)

        world.store.delete_segment = delete  # type: ignore[method-assign]
        await world.delete("locked")
        await trio.sleep(5)
        await world.delete("flights")
        with trio.fail_after(5):
            await until_gone(world, *others)
        assert len(world.store.objects) == 2 * len(locked)

    run(main, removes=True)


def test_next_leader_continues_the_removal() -> None:
    """T-51: two leaders in turn are killed during the removal, with the store unavailable at times."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 6)
        place = world.manager(1).metadata_partition_of(partition)
        await world.delete("flights")
        for _ in range(2):
            leader = world.leader_of(place)
            while not world.running[leader].remover.removing:
                await trio.sleep(0.001)
            await trio.sleep(0.02)
            world.store.is_unavailable = True
            await world.kill(leader)
            await trio.sleep(1)
            world.store.is_unavailable = False
            await world.start(leader)
        await until_gone(world, partition)
        assert world.store.objects == set()
        with trio.fail_after(1):
            while any(
                running_manager.remover.removing for running_manager in world.running.values()
            ):
                await trio.sleep(0.01)

    run(main, 3, removes=True)


def test_removal_is_resumed_after_leadership_returns() -> None:
    """T-51: the leader resigns and leads again during a slow deletion; the removal resumes before the next interval."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 2)
        manager, virtual_node, begun = (
            world.manager(1),
            world.cluster.nodes[1].virtual_node,
            trio.Event(),
        )
        assert virtual_node is not None

        def slow() -> None:
            if not begun.is_set():
                begun.set()
                virtual_node.offload.extend_current_call(1.0)

        world.store.before_deletion = slow
        await world.delete("flights")
        await begun.wait()
        place = manager.metadata_partition_of(partition)
        manager.resign_metadata(place)
        await trio.sleep(0.2)  # until the remover has noticed it
        manager.lead_metadata(place)
        with trio.fail_after(2.5):
            await until_gone(world, partition)
        assert world.store.objects == set()

    run(main, removes=True)


@pytest.mark.parametrize("step", range(1, 10))
def test_removal_completes_after_kill_at_each_step(step: int) -> None:
    """T-51: the removal of a partition with three segments publishes nine records."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 3)
        read = world.manager(1).records_read
        await world.delete("flights")
        while world.manager(1).records_read < read + step:
            await trio.sleep(0.0005)
        await world.kill(1)
        await world.start(1)
        with trio.fail_after(80):  # a missed deletion is certain after a minute
            await until_gone(world, partition)
        assert world.store.objects == set()
        assert len(set(world.store.deletions)) == 3
        assert world.manager(1).is_ready(partition) is False

    run(main, removes=True)


def test_missed_deletion_is_found_at_the_next_start() -> None:
    """T-51: the metadata image shows it, once the image is sufficiently newer."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 3)
        world.running.pop(1).scope.cancel()  # the manager only; its broker continues
        await world.delete("flights")
        await world.start(1)
        await trio.sleep(20)
        assert len(world.store.objects) == 3  # the image is not yet sufficiently newer
        with trio.fail_after(90):
            await until_gone(world, partition)
        assert world.store.objects == set()

    run(main, removes=True)


def test_segment_published_after_the_deletion_is_removed() -> None:
    """T-51: a leader that had not processed the deletion copied another segment."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 2)
        await world.delete("flights")
        await until_gone(world, partition)
        await copy(world, partition, 1)
        assert len(world.store.objects) == 1
        with trio.fail_after(10):
            await until_gone(world, partition)
        assert world.store.objects == set()

    run(main, removes=True)


def test_partition_marked_by_another_publisher_is_removed() -> None:
    """T-27, T-51: in KIP-405 the controller publishes the mark."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 2)
        for state in list(PartitionDeleteState)[:2]:
            await world.manager(1).put_partition_delete(
                RemotePartitionDeleteMetadata(partition, 9, 1, state)
            )
        await world.delete("flights")
        with trio.fail_after(10):
            await until_gone(world, partition)
        assert world.store.objects == set()

    run(main, removes=True)


def test_missed_deletion_is_found_at_the_next_interval() -> None:
    """T-09."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 2)
        world.removes = False
        await world.delete("flights")
        await trio.sleep(8)
        assert len(world.store.objects) == 2
        world.removes = True  # the remover is not woken
        with trio.fail_after(6):
            await until_gone(world, partition)
        assert world.store.objects == set()

    run(main, removes=True)


def test_metadata_of_deleted_partition_is_not_read_again() -> None:
    """T-51: the replica is stopped by the same metadata change that deletes the topic."""

    async def main(world: MetadataWorld) -> None:
        partitions = await world.create("flights", 3)
        for each in partitions:
            await copy(world, each, 20)
        before = world.manager(1).records_read
        await world.delete("flights")
        await until_gone(world, *partitions)
        # Two states for each segment, and three for each partition.
        assert world.manager(1).records_read - before == 3 * (2 * 20 + 3)

    run(main, removes=True)
