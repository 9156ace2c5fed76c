"""The remote log manager's driver: copies, failures, expiry, roles (T-11, T-12, T-22, T-29 to T-31, T-36,
T-38, T-53, E15), with a log on a virtual disk."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import trio

from odradek.storage.tiered.errors import RemoteStorageError, RemoteStorageUnavailable
from odradek.storage.tiered.expiry import EXPIRED_AT_ONCE
from odradek.storage.tiered.metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
)
from odradek.testing.memory_metadata import MemoryMetadataTopic
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.tiered.tiered_world import ID, OTHER, TIERED, tiered_world
from tests.storage.log_manager_world import append
from tests.storage.tiered.segments import segment

STARTED = SegmentState.COPY_SEGMENT_STARTED
FINISHED = SegmentState.COPY_SEGMENT_FINISHED
DELETING = SegmentState.DELETE_SEGMENT_STARTED
DELETED = SegmentState.DELETE_SEGMENT_FINISHED


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


async def test_closed_segments_are_copied_in_order(clock: VirtualClock) -> None:
    """T-28, T-29: published, copied, published, one after the other; the active one is not."""
    async with tiered_world(clock) as world:
        world.fill(2)
        await world.pass_time()
        assert world.published() == [(0, STARTED), (0, FINISHED), (3, STARTED), (3, FINISHED)]
        assert world.storage.calls == ["copy 0", "copy 3"]
        assert world.log.highest_copied_offset == 5
        await world.pass_time()
        assert len(world.storage.calls) == 2


async def test_what_is_copied_may_leave_the_disk(clock: VirtualClock) -> None:
    """T-30, E12: local retention goes by it; the log's start stays."""
    async with tiered_world(clock, config=replace(TIERED, local_retention_bytes=1)) as world:
        world.fill(2)
        world.log.delete_expired(clock.wall_ms())
        assert world.log.local_log_start_offset == 0
        await world.pass_time()
        world.log.flush()
        world.log.delete_expired(clock.wall_ms())
        assert world.log.local_log_start_offset == 6
        assert world.log.log_start_offset == 0


async def test_a_round_comes_every_interval(clock: VirtualClock) -> None:
    """T-11: remote.log.manager.task.interval.ms after the last ended."""
    async with tiered_world(clock) as world:
        await world.pass_time(1)
        world.fill(1)
        await world.pass_time(28)
        assert world.storage.calls == []
        await world.pass_time(2)
        assert world.storage.calls == ["copy 0"]


async def test_a_failed_copy_leaves_nothing_and_is_tried_again(clock: VirtualClock) -> None:
    """T-12, T-22, E15: deleted, tried again with pauses that double, each time under a fresh id."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.storage.failing["copy"] = RemoteStorageUnavailable("503")
        await world.pass_time(0.1)
        assert world.published() == [(0, STARTED), (0, DELETING), (0, DELETED)]
        assert world.storage.kept == {}
        await world.pass_time(10)
        attempts = world.storage.calls.count("copy 0")
        assert 4 <= attempts <= 6  # after 0, 0.5, 1.5, 3.5, 7.5 s, with a fifth left to chance
        world.storage.failing.clear()
        await world.pass_time(40)
        assert world.states() == [(0, FINISHED)]
        events = world.metadata.topic.events
        ids = {each.id for each in events if isinstance(each, RemoteLogSegmentMetadata)}
        assert len(ids) == world.storage.calls.count("copy 0")
        assert len(world.storage.kept) == 1


async def test_a_copier_does_not_die_of_an_error(clock: VirtualClock) -> None:
    """The known wound: one bad segment ends the copier, and the disk fills without a word."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.storage.failing["copy"] = ZeroDivisionError("a bug")
        await world.pass_time(60)
        world.storage.failing.clear()
        await world.pass_time(60)
        assert [each for each in world.states() if each[1] is FINISHED] == [(0, FINISHED)]
        assert len(world.storage.kept) == 1


async def test_what_a_failed_deletion_leaves_is_deleted_later(clock: VirtualClock) -> None:
    """T-36, E15: a copy that failed, whose deletion failed as well."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.storage.failing = {
            "copy": RemoteStorageError("no"),
            "delete": RemoteStorageUnavailable("503"),
        }
        await world.pass_time(0.1)
        assert world.states() == [(0, DELETING)]
        world.storage.failing.clear()
        await world.pass_time(40)
        assert world.states() == [(0, FINISHED)]
        assert len(world.storage.kept) == 1


async def test_a_copy_is_published_until_that_is_known(clock: VirtualClock) -> None:
    """T-29: the metadata is away after the copy: the copy is not thrown away."""
    async with tiered_world(clock) as world:
        world.fill(1)

        def away() -> None:
            world.metadata.failing = RemoteStorageUnavailable("no leader")

        world.storage.before_copy = away
        await world.pass_time(60)
        assert world.states() == [(0, STARTED)]
        assert world.log.highest_copied_offset == -1
        world.metadata.failing = None
        await world.pass_time(60)
        assert world.states() == [(0, FINISHED)]
        assert world.storage.calls == ["copy 0"]


async def test_dangling_copies_of_an_earlier_life_are_deleted(clock: VirtualClock) -> None:
    """E15: killed while it copied; what came of that is deleted at once, the segment copied anew."""
    topic = MemoryMetadataTopic()
    async with tiered_world(clock, topic=topic) as world:
        world.fill(1)
        world.storage.before_copy = lambda: setattr(
            world.metadata, "failing", RemoteStorageUnavailable("gone")
        )
        await world.pass_time(5)
        assert world.states() == [(0, STARTED)]
    async with tiered_world(clock, topic=topic) as world:
        await world.pass_time()
        assert world.states() == []
        assert "delete 0" in world.storage.calls
        world.fill(1)
        await world.pass_time()
        assert world.states() == [(0, FINISHED)]


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
        world.log.copies_unknown()
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


async def test_what_is_copied_is_published_though_another_leads(clock: VirtualClock) -> None:
    """T-29: the metadata is away when the copy is done, then the leadership: it may have been published,
    and then followers go by it."""
    async with tiered_world(clock) as world:
        world.fill(1)

        def away() -> None:
            world.metadata.failing = RemoteStorageUnavailable("no leader")

        world.storage.before_copy = away
        await world.pass_time(5)
        world.follow(1)
        await world.pass_time()
        assert world.published() == [(0, STARTED)]
        world.metadata.failing = None
        await world.pass_time(40)
        assert world.published() == [(0, STARTED), (0, FINISHED)]
        await world.pass_time()
        assert world.log.highest_copied_offset == 2


async def test_copies_of_others_that_are_not_finished_are_deleted_late(clock: VirtualClock) -> None:
    """E15: a leader before this one may be about to publish it: only after ten minutes that is over."""
    async with tiered_world(clock) as world:
        other = replace(segment(0, 2, state=STARTED), broker_id=OTHER)
        other = replace(other, id=RemoteLogSegmentId(ID, other.id.id))
        await world.metadata.add_segment(
            replace(other, event_timestamp_ms=clock.wall_ms(), max_timestamp_ms=clock.wall_ms())
        )
        await world.pass_time(500)
        assert world.storage.calls == []
        await world.pass_time(200)
        assert world.storage.calls == ["delete 0"]
        assert world.states() == []


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


async def test_what_is_tiered_no_more_is_removed(clock: VirtualClock) -> None:
    """remote.storage.enable=false with remote.log.delete.on.disable: the remote tier is emptied, and the
    log starts where the disk does; without it, what is there stays."""
    async with tiered_world(clock, config=replace(TIERED, local_retention_bytes=1)) as world:
        world.fill(2)
        await world.pass_time()
        world.log.flush()
        world.log.delete_expired(clock.wall_ms())
        world.change(remote_storage_enable=False)
        await world.pass_time()
        assert len(world.storage.kept) == 2
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        await world.pass_time()
        assert world.storage.kept == {}
        assert world.states() == []
        assert world.log.log_start_offset == world.log.local_log_start_offset == 6


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


async def test_a_topic_is_tiered_later(clock: VirtualClock) -> None:
    """E3, T-56: enabling it on a topic that has records."""
    async with tiered_world(clock, config=replace(TIERED, remote_storage_enable=False)) as world:
        world.fill(2)
        await world.pass_time()
        assert world.storage.calls == []
        world.change(remote_storage_enable=True)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "copy 3"]


async def test_the_log_starts_later_before_anything_is_deleted(clock: VirtualClock) -> None:
    """T-36, S-03: retention.bytes; followers hear of the start before the first object goes."""
    async with tiered_world(clock) as world:
        world.fill(3)
        await world.pass_time()
        size = world.log.segment_list.all[0].size
        starts: list[int] = []
        deleted = world.storage.delete_segment

        def delete(metadata: RemoteLogSegmentMetadata) -> None:
            starts.append(world.log.log_start_offset)
            deleted(metadata)

        world.storage.delete_segment = delete  # type: ignore[method-assign]
        world.change(retention_bytes=world.log.size_bytes - size)
        await world.pass_time()
        assert starts == [3]
        assert world.states() == [(3, FINISHED), (6, FINISHED)]


async def test_nothing_goes_before_the_log_begins_after_it(clock: VirtualClock) -> None:
    """T-36: a new leader's high watermark lags, and the log's start can't move past it yet; a consumer
    there would find nothing in either tier."""
    async with tiered_world(clock) as world:
        world.fill(3)
        await world.pass_time()
        world.log.high_watermark = 4
        world.change(retention_bytes=1)
        await world.pass_time()
        assert world.log.log_start_offset == 4
        assert world.states() == [(3, FINISHED), (6, FINISHED)]
        world.log.advance_high_watermark(world.log.end_offset)
        await world.pass_time()
        assert world.log.log_start_offset == 9
        assert world.states() == []


async def test_deleted_records_leave_the_remote_tier(clock: VirtualClock) -> None:
    """T-37, E6."""
    async with tiered_world(clock) as world:
        world.fill(3)
        await world.pass_time()
        world.partition.delete_before(7, "DeleteRecords")
        await world.pass_time()
        assert world.states() == [(6, FINISHED)]
        assert world.log.log_start_offset == 7


async def test_a_segment_that_cannot_be_deleted_does_not_keep_others(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        world.fill(3)
        await world.pass_time()
        deleted = world.storage.delete_segment

        def refuse_first(metadata: RemoteLogSegmentMetadata) -> None:
            if metadata.start_offset == 0:
                raise RemoteStorageError("no")
            deleted(metadata)

        world.storage.delete_segment = refuse_first  # type: ignore[method-assign]
        world.partition.delete_before(9, "DeleteRecords")
        await world.pass_time()
        assert world.states() == [(0, DELETING)]


async def test_custom_metadata_that_is_too_large_ends_copies(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """remote.log.metadata.custom.metadata.max.bytes: the copy is deleted, with what it is known by."""
    settings = {"remote.log.metadata.custom.metadata.max.bytes": "4"}
    async with tiered_world(clock, settings=settings) as world:
        world.storage.custom = b"12345"
        world.fill(2)
        await world.pass_time(120)
        assert world.storage.calls == ["copy 0", "delete 0"]
        assert world.states() == []
        assert "custom.metadata.max.bytes" in caplog.text


async def test_the_quota_of_copies(clock: VirtualClock) -> None:
    """remote.log.manager.copy.max.bytes.per.second."""
    settings = {"remote.log.manager.copy.max.bytes.per.second": "50"}
    async with tiered_world(clock, settings=settings) as world:
        world.fill(4)
        size = world.log.segment_list.all[0].size
        await world.pass_time(0.1)
        assert world.storage.calls == ["copy 0"]
        await world.pass_time(size / 50 + 0.5)
        assert world.storage.calls == ["copy 0", "copy 3"]
        await world.pass_time(3 * size / 50 + 1)
        assert len(world.storage.calls) == 4


async def test_a_partition_with_much_to_copy_lets_others_have_their_turn(
    clock: VirtualClock,
) -> None:
    """The pool is small: after half a minute a copier queues again, and goes on where it was."""
    settings = {"remote.log.manager.copier.thread.pool.size": "1"}
    async with tiered_world(clock, settings=settings) as world, trio.open_nursery() as nursery:
        world.fill(4)

        async def other() -> None:
            async with world.manager.copiers:
                world.storage.calls.append("other")

        def before_copy() -> None:
            clock.advance(20)
            if len(world.storage.calls) == 1:
                nursery.start_soon(other)

        world.storage.before_copy = before_copy
        await world.pass_time(0.1)
        assert world.storage.calls == ["copy 0", "copy 3", "other", "copy 6", "copy 9"]


async def test_the_operator_is_told_early(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The store is away for long: said once at first, once a minute, and when it is over."""
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


async def test_gauges_of_what_waits(clock: VirtualClock) -> None:
    """RemoteCopyLagBytes and RemoteCopyLagSegments, S-04's RemoteLogSizeBytes."""
    async with tiered_world(clock) as world:
        world.fill(2)
        size = sum(each.size for each in world.log.segment_list.all[:2])

        async def gauge(name: str) -> object:
            await world.metrics.prepare()
            return {metric.name: dict(found) for metric, found in world.metrics.look()}[name][()]

        assert await gauge("RemoteCopyLagBytes") == size
        assert await gauge("RemoteCopyLagSegments") == 2
        await world.pass_time()
        assert await gauge("RemoteCopyLagBytes") == 0
        await world.pass_time()
        assert await gauge("RemoteLogSizeBytes") == size
        assert await gauge("RemoteCopyBytesPerSec") == size


async def test_two_leaders_in_a_row_copy_no_segment_twice(clock: VirtualClock) -> None:
    """S-02, E15: size counted twice after a leader change."""
    topic = MemoryMetadataTopic()
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


async def test_records_without_timestamps_stay_for_their_retention(clock: VirtualClock) -> None:
    """T-36: from when they were copied; they were deleted at once."""
    config = replace(TIERED, retention_ms=3_600_000)
    async with tiered_world(clock, config=config) as world:
        for _ in range(4):
            append(world.log, "x" * 20, now_ms=-1)
        await world.pass_time(3500)
        assert world.states() == [(0, FINISHED)]
        await world.pass_time(200)
        assert world.states() == []
        assert world.log.log_start_offset == 3


async def test_a_copy_that_is_published_counts_once_whatever_its_copier_knows(
    clock: VirtualClock,
) -> None:
    """S-03: what is finished is in the remote tier from then on, and not on the disk alone, though its
    copier does not hear of it. With exactly retention.bytes nothing goes."""
    async with tiered_world(clock) as world:
        world.fill(1)
        await world.pass_time()
        assert world.log.highest_copied_offset == 2
        world.fill(1)
        world.change(retention_bytes=world.log.size_bytes)
        update = world.metadata.update_segment

        async def not_read_back(event: RemoteLogSegmentMetadataUpdate) -> None:
            await update(event)
            raise RemoteStorageUnavailable("not read back in time")

        world.metadata.update_segment = not_read_back  # type: ignore[method-assign]
        await world.pass_time(600)
        assert world.states() == [(0, FINISHED), (3, FINISHED)]
        assert world.log.log_start_offset == 0
        world.metadata.update_segment = update  # type: ignore[method-assign]
        await world.pass_time(100)
        assert world.states() == [(0, FINISHED), (3, FINISHED)]
        assert world.log.log_start_offset == 0


async def test_what_is_tiered_no_more_is_removed_without_a_pause(clock: VirtualClock) -> None:
    """More than are removed in one round: not so many an interval, for hours."""
    async with tiered_world(clock, config=replace(TIERED, internal_segment_bytes=100)) as world:
        for _ in range(2 * EXPIRED_AT_ONCE + 2):
            append(world.log, "x" * 20, now_ms=clock.wall_ms())
        await world.pass_time()
        assert len(world.storage.kept) == 2 * EXPIRED_AT_ONCE + 1
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        await world.pass_time(20)
        assert world.storage.kept == {}


async def test_what_is_deleted_before_its_turn_is_not_copied(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """DeleteRecords, while a segment before it is copied: that is no failure of the store."""
    async with tiered_world(clock) as world:
        world.fill(3)

        def delete() -> None:
            world.storage.before_copy = lambda: None
            world.partition.delete_before(6, "DeleteRecords")
            world.log.delete_expired(clock.wall_ms())

        world.storage.before_copy = delete
        await world.pass_time(0.1)
        assert [each for each in world.storage.calls if each.startswith("copy")] == [
            "copy 0",
            "copy 6",
        ]
        assert "cannot be copied" not in caplog.text


async def test_e15_what_an_unclean_leader_copied_hides_no_gap(clock: VirtualClock) -> None:
    """T-30, E15: epoch 0 ends at 2 in this log, and at 5 in another's, which was copied; of epoch 1 what
    begins at 6 is copied, and what lies before is not: it may not leave the disk."""
    async with tiered_world(clock) as world:
        world.follow(1)
        for number in range(10):
            append(world.log, "x" * 20, now_ms=clock.wall_ms(), epoch=0 if number < 3 else 1)
        for copied in (segment(0, 5), segment(6, 8, (1, 6))):
            theirs = replace(copied, id=RemoteLogSegmentId(ID, copied.id.id), broker_id=OTHER)
            await world.metadata.add_segment(replace(theirs, state=STARTED))
            await world.metadata.update_segment(
                RemoteLogSegmentMetadataUpdate(theirs.id, OTHER, 0, FINISHED)
            )
        world.log.copies_unknown()
        await world.pass_time()
        assert world.log.highest_copied_offset == 2
