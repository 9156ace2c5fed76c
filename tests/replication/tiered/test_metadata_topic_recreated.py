"""The metadata topic is deleted and recreated with another topic id."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from odradek.client.producer import open_producer
from odradek.replication.tiered import metadata_topic_consumer
from odradek.replication.tiered.metadata_subscriptions import Lane
from odradek.replication.tiered.metadata_topic_consumer import MetadataTopicConsumer
from odradek.storage.tiered.metadata_records import METADATA_TOPIC, encode
from tests.replication.tiered.numbered_segments import A, B, copied, segment
from tests.support.remote_log_metadata import MetadataWorld, run


async def recreate_topic_while_down(world: MetadataWorld, records: int) -> None:
    """Recreate the topic with `records` segments while the manager of node 1 is stopped.

    Node 1 had read five other segments of the same partition, and has a snapshot of them.
    """
    manager = world.manager(1)
    manager.partitions_changed([A], [])
    await manager.wait_ready(A)
    for number in range(5):
        await copied(world, 1, A, number)
    await trio.sleep(5)  # until a snapshot is written
    world.running.pop(1).scope.cancel()  # the manager only; its broker continues
    await world.delete(METADATA_TOPIC)
    await world.create(METADATA_TOPIC)
    entropy = world.world.node("other").seams.entropy
    async with open_producer(world.client, world.world.clock, entropy) as producer:
        for number in range(5, 5 + records):
            await producer.send(METADATA_TOPIC, encode(segment(A, number)), partition=0)


def test_deleted_topic_is_recreated() -> None:
    """Earlier metadata is kept, and publishing continues."""

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        await manager.wait_ready(A)
        for number in range(3):
            await copied(world, 1, A, number)
        await world.delete(METADATA_TOPIC)
        await copied(world, 1, A, 3)
        assert manager.highest_offset(A, 0) == 39
        assert len(list(manager.segments(A))) == 4

    run(main)


def test_topic_recreated_while_node_was_down_is_read_from_the_start() -> None:
    """T-47: the new topic has more records than were read of the previous one."""

    async def main(world: MetadataWorld) -> None:
        await recreate_topic_while_down(world, 15)
        await world.start(1)
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        await manager.wait_ready(A)
        assert [each.start_offset for each in manager.segments(A)] == [*range(0, 200, 10)]
        assert manager.highest_offset(A, 0) == 49

    run(main, properties={"remote.log.metadata.topic.num.partitions": "1"})


def test_shorter_recreated_topic_makes_no_partition_ready_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T-49: the end offset is known before the readers know the new topic id."""

    async def main(world: MetadataWorld) -> None:
        await recreate_topic_while_down(world, 3)
        may_read = slow_readers()
        await world.start(1)
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        await trio.sleep(5)
        assert not manager.is_ready(A)
        may_read.set()
        await manager.wait_ready(A)
        assert [each.start_offset for each in manager.segments(A)] == [*range(0, 80, 10)]

    def slow_readers() -> trio.Event:
        """Delay the readers until the event is set; requests for end offsets see the new topic at once."""
        leaders, may_read = MetadataTopicConsumer._leaders, trio.Event()

        async def later(self: MetadataTopicConsumer, lane: Lane) -> dict[int, int]:
            await may_read.wait()
            return await leaders(self, lane)

        monkeypatch.setattr(MetadataTopicConsumer, "_leaders", later)
        return may_read

    run(main, properties={"remote.log.metadata.topic.num.partitions": "1"})


def test_end_offset_of_deleted_topic_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T-49: the recreated topic may never reach that end offset."""

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        await manager.wait_ready(A)
        for number in range(5):
            await copied(world, 1, A, number)
        ask, before = metadata_topic_consumer.list_offsets, manager._subscriptions.topic_id

        async def deleted_meanwhile(*args: Any, **options: Any) -> Any:
            found = await ask(*args, **options)
            monkeypatch.undo()
            await world.delete(METADATA_TOPIC)
            while manager._subscriptions.topic_id == before:
                await trio.sleep(0.01)
            return found

        monkeypatch.setattr(metadata_topic_consumer, "list_offsets", deleted_meanwhile)
        manager.partitions_changed([B], [])
        with trio.fail_after(60):
            await manager.wait_ready(B)
        assert manager._subscriptions.topic_id != before

    run(main, properties={"remote.log.metadata.topic.num.partitions": "1"})
