"""What is done for a partition by its role, and as that changes (T-29, T-31, T-38, T-51, T-53); what the
operator is told. With a log on a virtual disk."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import pytest
import trio

from odradek.storage.log.leader_epoch_cache import EpochStart, format_checkpoint
from odradek.storage.log.segment import Segment
from odradek.storage.tiered.errors import RemoteStorageUnavailable
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadataUpdate,
)
from odradek.testing.in_memory_remote_log_metadata import (
    InMemoryMetadataTopic,
    InMemoryRemoteLogMetadataManager,
)
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.tiered.tiered_world import (
    DELETED,
    DELETING,
    FINISHED,
    ID,
    ME,
    OTHER,
    STARTED,
    TIERED,
    TieredWorld,
    tiered_world,
)
from tests.support.log_managers import append

TAKEN_FROM_DISK = replace(TIERED, local_retention_bytes=1)


async def lose_history(world: TieredWorld) -> tuple[EpochStart, ...]:
    """Three segments are copied and leave the disk, and another leads; the log forgets their epochs, which are
    returned."""
    log = world.log
    world.fill(3)
    await world.pass_time()
    log.flush()
    log.delete_expired(world.clock.wall_ms())
    assert log.local_log_start_offset == 9
    known = log.epochs.entries
    world.follow(1)
    log.epochs.restore(log.epochs.entries_in(9, log.end_offset))
    return known


async def test_a_new_leader_goes_on_where_the_last_one_ended(clock: VirtualClock) -> None:
    """T-31, T-53: a follower hears how far its leader has copied, and goes on there when it leads."""
    async with tiered_world(clock) as world:
        world.follow(1)
        world.fill(2)
        await world.pass_time()
        assert world.storage.calls == []
        world.lead(2)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "copy 3"]
        world.follow(3)
        world.log.reset_highest_copied_offset()
        await world.pass_time()
        assert world.log.highest_copied_offset == 5


async def test_whoever_leads_no_more_stops(clock: VirtualClock) -> None:
    """T-38: leadership is lost while a segment is copied: it is not published as finished, and deleted
    by whoever has begun it."""
    async with tiered_world(clock) as world:
        world.fill(3)
        world.storage.before_copy = lambda: world.follow(1)
        await world.pass_time(120)
        assert world.published() == [(0, STARTED), (0, DELETING), (0, DELETED)]
        assert world.storage.calls == ["copy 0", "delete 0"]


async def test_who_leads_on_goes_on(clock: VirtualClock) -> None:
    """Configs that concern nothing of it, and news of others, give up no copy."""
    async with tiered_world(clock) as world:
        world.fill(1)

        def nothing_new() -> None:
            world.storage.before_copy = lambda: None
            world.manager.role_changed(world.partition)

        world.storage.before_copy = nothing_new
        await world.pass_time()
        assert world.published() == [(0, STARTED), (0, FINISHED)]
        assert world.storage.calls == ["copy 0"]


async def test_what_is_copied_while_its_topic_is_deleted_is_deleted(clock: VirtualClock) -> None:
    """T-51: whoever removes the topic may have been there before the last object came."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.storage.before_copy = lambda: world.manager.gone("orders", 0)
        world.storage.failing["delete"] = RemoteStorageUnavailable("503")
        await world.pass_time(1)
        assert len(world.storage.kept) == 1
        world.storage.failing.clear()
        await world.pass_time(1)
        assert world.storage.kept == {}


async def test_what_was_given_up_is_deleted_by_one_alone(clock: VirtualClock) -> None:
    """Its topic is tiered no more while the store is away: nobody else begins with it between attempts."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.storage.before_copy = lambda: world.change(
            remote_storage_enable=False, remote_log_delete_on_disable=True
        )
        world.storage.failing["delete"] = RemoteStorageUnavailable("503")
        await world.pass_time(0.1)
        for _ in range(100):
            (segment,) = world.metadata.segments(ID)
            assert world.manager.work.in_progress == {segment.id: 1}
            await world.pass_time(0.7)
        world.storage.failing.clear()
        await world.pass_time(60)
        assert world.storage.kept == {}
        assert not world.manager.work.in_progress


async def test_what_led_publishes_after_all_says_how_it_is_stored(clock: VirtualClock) -> None:
    """Without what the store logged of it, a copy that is compressed or encrypted could not be read."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.storage.custom = b"in chunks"

        def lose_sight() -> None:
            world.metadata.failing = RemoteStorageUnavailable("no leader")

        world.storage.before_copy = lose_sight
        await world.pass_time(10)
        world.follow(1)
        await world.pass_time(10)
        world.metadata.failing = None
        await world.pass_time(60)
        (segment,) = world.metadata.segments(ID)
        assert (segment.state, segment.custom_metadata) == (FINISHED, b"in chunks")


async def test_what_was_removed_while_it_was_copied_is_deleted(clock: VirtualClock) -> None:
    """T-51: this node hears last that the topic is deleted."""
    async with tiered_world(clock) as world:
        world.fill(1)

        def removed() -> None:
            world.storage.before_copy = lambda: None
            (segment,) = world.metadata.segments(ID)
            for state in (DELETING, DELETED):
                world.metadata.topic.publish(
                    RemoteLogSegmentMetadataUpdate(segment.id, OTHER, 0, state)
                )

        world.storage.before_copy = removed
        await world.pass_time(0.3)
        assert world.storage.calls == ["copy 0", "delete 0"]
        assert world.storage.kept == {}


async def test_what_an_earlier_life_has_published_is_not_given_up(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes to be known while the deletion of what seemed to be unfinished is on its way: by then another
    leads, and may have nothing of it on its disk any more."""
    async with tiered_world(clock) as world:
        update_segment = InMemoryRemoteLogMetadataManager.update_segment

        async def update(
            metadata: InMemoryRemoteLogMetadataManager, event: RemoteLogSegmentMetadataUpdate
        ) -> None:
            if event.state is DELETING:
                before = RemoteLogSegmentMetadataUpdate(event.id, ME, clock.wall_ms(), FINISHED)
                world.metadata.topic.publish(before)
            await update_segment(metadata, event)

        monkeypatch.setattr(InMemoryRemoteLogMetadataManager, "update_segment", update)
        world.follow(1)
        await world.publish_copy(0, 2, state=STARTED)
        await world.pass_time()
        assert world.states() == [(0, FINISHED)]
        assert world.storage.calls == []


async def test_what_is_copied_is_published_though_another_leads(clock: VirtualClock) -> None:
    """T-29: the metadata is away when the copy is done, then the leadership: it may have been published,
    and then followers go by it."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.lose_metadata_once_copied()
        await world.pass_time(5)
        world.follow(1)
        await world.pass_time()
        assert world.published() == [(0, STARTED)]
        world.metadata.failing = None
        await world.pass_time(40)
        assert world.published() == [(0, STARTED), (0, FINISHED)]
        await world.pass_time()
        assert world.log.highest_copied_offset == 2


async def test_nothing_is_done_before_the_metadata_is_ready(clock: VirtualClock) -> None:
    """E15: idle until the metadata is read to the end."""
    async with tiered_world(clock) as world:
        world.follow(1)
        world.manager.gone("orders", 0)
        world.metadata.hold()
        world.lead(2)
        world.fill(1)
        await world.pass_time(120)
        assert world.storage.calls == []
        world.metadata.release()
        await world.pass_time(1)
        assert world.storage.calls == ["copy 0"]


async def test_copies_can_be_turned_off_and_on(clock: VirtualClock) -> None:
    """E2's half: remote.log.copy.disable ends copies, and retention goes on."""
    async with tiered_world(clock) as world:
        world.fill(1)
        await world.pass_time(1)
        world.change(remote_log_copy_disable=True)
        world.fill(1)
        await world.pass_time()
        assert world.storage.calls == ["copy 0"]
        world.change(remote_log_copy_disable=True, retention_ms=1)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "delete 0"]
        world.change(remote_log_copy_disable=False, retention_ms=-1)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "delete 0", "copy 3"]


async def test_what_was_removed_is_copied_again_before_it_leaves_the_disk(
    clock: VirtualClock,
) -> None:
    """T-30: tiered, not tiered, and tiered again: what was copied the first time is gone."""
    async with tiered_world(clock) as world:
        world.fill(2)
        await world.pass_time()
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        await world.pass_time()
        assert world.storage.kept == {}
        world.change(remote_storage_enable=True, local_retention_bytes=1)
        await world.pass_time(0.1)
        assert [each for each in world.states() if each[1] is FINISHED] == [
            (0, FINISHED),
            (3, FINISHED),
        ]
        assert len(world.storage.kept) == 2
        assert world.log.highest_copied_offset == 5


async def test_what_is_just_being_given_up_is_not_taken_for_copied(clock: VirtualClock) -> None:
    """T-30: tiered again while the first deletion is on its way to the metadata topic, where it arrives."""
    async with tiered_world(clock) as world, trio.open_nursery() as arriving:
        world.fill(3)
        await world.pass_time()
        update = world.metadata.update_segment

        async def arrive(event: RemoteLogSegmentMetadataUpdate, arrived: trio.Event) -> None:
            await clock.sleep(1)
            await update(event)
            arrived.set()

        async def publish(event: RemoteLogSegmentMetadataUpdate) -> None:
            if event.state is DELETING:
                arrived = trio.Event()
                arriving.start_soon(arrive, event, arrived)
                await arrived.wait()
            else:
                await update(event)

        world.metadata.update_segment = publish  # type: ignore[method-assign]
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        await world.pass_time(0.5)
        world.change(remote_storage_enable=True, local_retention_bytes=1)
        world.log.flush()
        for _ in range(100):
            await world.pass_time(0.1)
            world.log.delete_expired(clock.wall_ms())
        assert [each for each in world.states() if each[1] is FINISHED] == [
            (0, FINISHED),
            (3, FINISHED),
            (6, FINISHED),
        ]


async def test_a_follower_hears_that_what_was_copied_is_given_up(clock: VirtualClock) -> None:
    """T-30: its topic is tiered again, and its leader has not heard of that yet. What is not on the disk any more
    is another thing."""
    async with tiered_world(clock, config=TAKEN_FROM_DISK) as world:
        world.fill(3)
        await world.pass_time()
        first, second, _ = world.metadata.segments(ID)
        world.follow(1)
        await world.pass_time(1)
        assert world.log.highest_copied_offset == 8
        world.log.advance_log_start(3, "its leader's does")
        for segment in (first, second):
            await world.metadata.update_segment(
                RemoteLogSegmentMetadataUpdate(segment.id, OTHER, clock.wall_ms(), DELETING)
            )
            assert world.log.highest_copied_offset == (8 if segment is first else -1)
        await world.pass_time()
        assert world.log.highest_copied_offset == 2
        world.log.flush()
        world.log.delete_expired(clock.wall_ms())
        assert world.log.local_log_start_offset == 3


async def test_a_topic_is_tiered_later(clock: VirtualClock) -> None:
    """E3, T-56: enabling it on a topic that has records."""
    async with tiered_world(clock, config=replace(TIERED, remote_storage_enable=False)) as world:
        world.fill(2)
        await world.pass_time()
        assert world.storage.calls == []
        world.change(remote_storage_enable=True)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "copy 3"]


async def test_the_operator_is_told_early(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The store is away for long: logged once at first, once a minute, and when it is over."""
    caplog.set_level(logging.WARNING, "odradek.tiered")
    async with tiered_world(clock) as world:
        world.fill(2)
        world.storage.failing["copy"] = RemoteStorageUnavailable("503 Slow Down")
        await world.pass_time(1)
        assert [record.message for record in caplog.records] == [
            "segments cannot be copied to the remote store (503 Slow Down): nothing that is not"
            " copied leaves the disk"
        ]
        await world.pass_time(125)
        lines = [record.message for record in caplog.records]
        assert len(lines) == 3
        assert "of 1 partitions wait on the disk" in lines[-1]
        assert "are free" in lines[-1]
        world.storage.failing.clear()
        await world.pass_time(60)
        assert "are copied to the remote store again" in caplog.records[-1].message


async def test_the_operator_is_told_which_of_the_two_takes_nothing(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The store works: it is the topic of the metadata that is to be seen to."""
    caplog.set_level(logging.WARNING, "odradek.tiered")
    async with tiered_world(clock) as world:
        world.fill(2)
        world.lose_metadata_once_copied("0 of 2 are in sync")
        await world.pass_time(62)
        first, then = [record.message for record in caplog.records]
        assert first == (
            "segments cannot be copied while topic __remote_log_metadata is unavailable (0 of 2 are"
            " in sync): nothing that is not copied leaves the disk"
        )
        assert re.match(
            "topic __remote_log_metadata has failed for 6. s "
            r"\(.* is copied and not yet published in __remote_log_metadata\)",
            then,
        )
        assert await world.gauge("RemoteStoreUnavailable") == 1, "copies fail"
        world.storage.before_copy = lambda: None
        world.metadata.failing = None
        await world.pass_time(60)
        assert "are copied to the remote store again" in caplog.records[-1].message
        world.storage.failing["copy"] = RemoteStorageUnavailable("503 Slow Down")
        world.fill(1)
        await world.pass_time(31)
        assert "to the remote store (503 Slow Down)" in caplog.records[-1].message


async def test_gauges_of_what_waits(clock: VirtualClock) -> None:
    """RemoteCopyLagBytes and RemoteCopyLagSegments, S-04's RemoteLogSizeBytes."""
    async with tiered_world(clock) as world:
        world.fill(2)
        size = sum(each.size for each in world.log.segment_list.all[:2])
        gauge = world.gauge
        world.storage.failing["copy"] = RemoteStorageUnavailable("503")
        await world.pass_time(1)
        assert await gauge("RemoteCopyLagBytes") == size
        assert await gauge("RemoteCopyLagSegments") == 2
        world.storage.failing.clear()
        await world.pass_time()
        assert await gauge("RemoteCopyLagBytes") == 0
        await world.pass_time()
        assert await gauge("RemoteLogSizeBytes") == size
        assert await gauge("RemoteCopyBytesPerSec") == size


async def test_nothing_seems_to_wait_before_it_is_known_what_is_copied(
    clock: VirtualClock,
) -> None:
    """Each restart and change of leaders looked like a store that had been away for long."""
    async with tiered_world(clock) as world:
        world.fill(2)
        await world.pass_time()
        world.manager.gone("orders", 0)
        world.metadata.hold()
        world.lead(2)
        await world.pass_time()
        with pytest.raises(KeyError):
            await world.gauge("RemoteCopyLagSegments")
        world.metadata.release()
        await world.pass_time()
        assert await world.gauge("RemoteCopyLagSegments") == 0


async def test_who_has_lost_history_that_no_copy_has_copies_on_and_deletes_nothing(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was done for such a partition, so that its disk filled. (What expires goes by the epochs: what is
    of forgotten ones would seem to be another log's.)"""
    async with tiered_world(clock, config=TAKEN_FROM_DISK) as world:
        known = await lose_history(world)
        world.lead(2)
        world.change(retention_ms=0)
        world.fill(2)
        await world.pass_time(100)
        assert [state for _, state in world.states()] == [FINISHED] * 5
        assert await world.gauge("PartitionsWithoutLeaderEpochsCount") == 1
        told = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert [each.levelname for each in told] == ["ERROR"]
        assert "cannot restore leader epochs" in told[0].message
        world.storage.indexes[IndexType.LEADER_EPOCH] = format_checkpoint(known)
        await world.pass_time(100)
        assert await world.gauge("PartitionsWithoutLeaderEpochsCount") == 0
        assert world.states() == []


async def test_who_looks_for_lost_history_says_that_of_the_store_which_is_true(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """That segments cannot be copied was logged while the metadata was only being read, and while they were
    copied, and the history was looked for beside that."""
    async with tiered_world(clock, config=TAKEN_FROM_DISK) as world:
        await lose_history(world)
        world.manager.gone("orders", 0)
        world.metadata.hold()
        world.lead(2)
        await world.pass_time(100)
        assert [each.levelname for each in caplog.records if each.levelno >= logging.WARNING] == []
        world.metadata.release()
        await world.pass_time(100)
        assert await world.gauge("PartitionsWithoutLeaderEpochsCount") == 1
        world.storage.failing["index"] = RemoteStorageUnavailable("503 Slow Down")
        world.fill(1)
        await world.pass_time(100)
        assert [state for _, state in world.states()] == [FINISHED] * 4
        told = [each.levelname for each in caplog.records if each.levelno >= logging.WARNING]
        assert told == ["ERROR"]
        world.follow(3)
        world.lead(4)
        await world.pass_time(20)
        assert "cannot be copied" in caplog.records[-1].message, "it waits for the store to answer"


async def test_two_leaders_in_a_row_copy_no_segment_twice(clock: VirtualClock) -> None:
    """S-02, E15: size counted twice after a leader change."""
    topic = InMemoryMetadataTopic()
    async with tiered_world(clock, topic=topic) as world:
        world.fill(2)
        await world.pass_time()
        world.lead(4)
        append(world.log, "later", epoch=4)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "copy 3"]
        assert world.metadata.lineage_size(ID, world.log.epochs.entries, world.log.end_offset) == (
            sum(each.size for each in world.log.segment_list.all[:2])
        )


@pytest.mark.parametrize("error", [FileNotFoundError("renamed"), ValueError("closed")])
async def test_what_waits_is_as_it_was_where_files_cannot_be_looked_at(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Neither by a look at the gauges nor by the reminder once a minute, which nobody waits for."""

    def size(segment: Segment) -> int:
        raise error

    async with tiered_world(clock) as world:
        world.fill(2)
        world.storage.failing["copy"] = RemoteStorageUnavailable("503 Slow Down")
        await world.pass_time(1)
        waiting = await world.gauge("RemoteCopyLagBytes")
        assert waiting > 0
        monkeypatch.setattr(Segment, "size", property(size))
        assert await world.gauge("RemoteCopyLagBytes") == waiting
        await world.pass_time(125)
        monkeypatch.undo()
        world.storage.failing.clear()
        await world.pass_time(60)
        assert await world.gauge("RemoteCopyLagBytes") == 0
