"""Deleted topics leave the remote tier: three nodes, with a remover beside each (T-09, T-51, T-52)."""

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
    """By node 1, as its leader; the last one is not finished."""
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
    """No inventory has them any more, and there is one of each metadata partition."""
    while True:
        found = [each for life in world.lives.values() for each in life.manager.inventories()]
        anybody = any(each in inventory for _, inventory in found for each in partitions)
        if {index for index, _ in found} == {0, 1, 2} and not anybody:
            return
        await trio.sleep(0.05)


@pytest.mark.parametrize("nodes", [1, 3])
def test_segments_of_a_deleted_topic_go_once(nodes: int) -> None:
    """T-51: copies that were not finished too; soon after, not at the next interval."""

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


def test_topic_of_the_same_name_lives_meanwhile() -> None:
    """T-52."""

    async def main(world: MetadataWorld) -> None:
        (old,) = await world.create("flights")
        await copy(world, old, 3)
        world.store.is_away = True
        await world.delete("flights")
        (new,) = await world.create("flights")
        assert new.topic_id != old.topic_id
        await copy(world, new, 2)
        await trio.sleep(20)
        assert len(world.store.objects) == 5
        world.store.is_away = False
        await until_gone(world, old)
        assert set(world.store.summaries_removed) == {old}
        assert len(world.store.objects) == 2
        assert len(list(world.manager(1).segments(new))) == 2

    run(main, removes=True)


def test_store_that_is_away_is_waited_for() -> None:
    """T-12, T-51: every segment says that its deletion has begun; nothing is finished."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 4)
        world.store.is_away = True
        await world.delete("flights")
        await trio.sleep(10)
        manager = world.manager(1)
        assert manager.partition_delete_state(partition) is (
            PartitionDeleteState.DELETE_PARTITION_STARTED
        )
        states = [each.state for each in manager.segments(partition)]
        assert states == [SegmentState.DELETE_SEGMENT_STARTED] * 4
        world.store.is_away = False
        with trio.fail_after(5):
            await until_gone(world, partition)
        assert world.store.objects == set()

    run(main, removes=True)


def test_partitions_whose_objects_cannot_be_deleted_do_not_keep_others() -> None:
    """T-51: objects under a lock of the store's, say, of as many partitions as are removed at once."""

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


def test_next_leader_goes_on() -> None:
    """T-51: whoever removes is killed, with the store away for a part of it; then the next too."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 6)
        place = world.manager(1).metadata_partition_of(partition)
        await world.delete("flights")
        for _ in range(2):
            leader = world.leader_of(place)
            while not world.lives[leader].remover.removing:
                await trio.sleep(0.001)
            await trio.sleep(0.02)
            world.store.is_away = True
            await world.kill(leader)
            await trio.sleep(1)
            world.store.is_away = False
            await world.start(leader)
        await until_gone(world, partition)
        assert world.store.objects == set()
        with trio.fail_after(1):
            while any(life.remover.removing for life in world.lives.values()):
                await trio.sleep(0.01)

    run(main, 3, removes=True)


def test_removal_that_ends_late_is_taken_up_again() -> None:
    """T-51: its leader resigned and leads again, while the store took its time: not at the next interval."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 2)
        manager, virtual_node, begun = world.manager(1), world.cluster.nodes[1].virtual_node, trio.Event()
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
        await trio.sleep(0.2)  # the remover sees that
        manager.lead_metadata(place)
        with trio.fail_after(2.5):
            await until_gone(world, partition)
        assert world.store.objects == set()

    run(main, removes=True)


@pytest.mark.parametrize("step", range(1, 10))
def test_node_is_killed_at_each_step(step: int) -> None:
    """T-51: nine records from the mark to the end, of a partition with three segments."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 3)
        read = world.manager(1).records_read
        await world.delete("flights")
        while world.manager(1).records_read < read + step:
            await trio.sleep(0.0005)
        await world.kill(1)
        await world.start(1)
        with trio.fail_after(80):  # a minute until the deletion is certain
            await until_gone(world, partition)
        assert world.store.objects == set()
        assert len(set(world.store.deletions)) == 3
        assert world.manager(1).is_ready(partition) is False

    run(main, removes=True)


def test_deletion_that_nobody_saw_is_found_at_the_next_start() -> None:
    """T-51: compared with the cluster's image, once that is known to be late enough."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 3)
        world.lives.pop(1).scope.cancel()  # the manager alone; its broker serves
        await world.delete("flights")
        await world.start(1)
        await trio.sleep(20)
        assert len(world.store.objects) == 3  # too early to tell
        with trio.fail_after(90):
            await until_gone(world, partition)
        assert world.store.objects == set()

    run(main, removes=True)


def test_segment_that_comes_after_the_end_is_removed_too() -> None:
    """T-51: somebody who had not heard of the deletion copied one more."""

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


def test_partition_marked_by_another_is_removed() -> None:
    """T-27, T-51: the KIP has the controller publish the mark."""

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


def test_what_was_overlooked_is_found_at_the_next_interval() -> None:
    """T-09."""

    async def main(world: MetadataWorld) -> None:
        (partition,) = await world.create("flights")
        await copy(world, partition, 2)
        world.removes = False
        await world.delete("flights")
        await trio.sleep(8)
        assert len(world.store.objects) == 2
        world.removes = True  # and nobody wakes the remover
        with trio.fail_after(6):
            await until_gone(world, partition)
        assert world.store.objects == set()

    run(main, removes=True)


def test_what_the_leader_knows_of_a_deleted_partition_is_not_read_again() -> None:
    """T-51: its replica ends in the same step in which the deletion is heard of."""

    async def main(world: MetadataWorld) -> None:
        partitions = await world.create("flights", 3)
        for each in partitions:
            await copy(world, each, 20)
        before = world.manager(1).records_read
        await world.delete("flights")
        await until_gone(world, *partitions)
        # Of each segment that its deletion begins and ends; of each partition three states.
        assert world.manager(1).records_read - before == 3 * (2 * 20 + 3)

    run(main, removes=True)
