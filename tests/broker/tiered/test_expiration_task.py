"""What a leader deletes from the remote tier, and what it leaves (T-36, T-37, S-03, E15), with a log on a
virtual disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek.broker.tiered.remote_log_manager import DELETIONS_AT_ONCE
from odradek.storage.tiered.copy_candidates import list_candidate_segments
from odradek.storage.tiered.errors import (
    InvalidRemoteState,
    RemoteStorageError,
    RemoteStorageUnavailable,
)
from odradek.storage.tiered.remote_retention import EXPIRED_AT_ONCE
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)
from odradek.testing.in_memory_remote_log_metadata import InMemoryMetadataTopic
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.tiered.tiered_world import (
    DELETING,
    FINISHED,
    ID,
    OTHER,
    STARTED,
    TIERED,
    tiered_world,
)
from tests.support.log_managers import append


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


async def test_how_full_a_tiered_partition_is(clock: VirtualClock) -> None:
    """RetentionSizeInPercent and LocalRetentionSizeInPercent, of kafka.log.remote's RemoteLogManager."""
    async with tiered_world(clock) as world:
        world.fill(3)
        size = world.log.size_bytes
        await world.pass_time()
        told = ("TieredRetentionSizeInPercent", "LocalRetentionSizeInPercent")
        partition_log = (("partition", "0"), ("topic", "orders"))
        assert [await world.gauge(name, *partition_log) for name in told] == [0, 0]
        world.change(retention_bytes=2 * size, local_retention_bytes=4 * size)
        await world.pass_time()
        assert [await world.gauge(name, *partition_log) for name in told] == [50, 25]


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


async def test_several_go_at_once_and_not_too_many(clock: VirtualClock) -> None:
    """Each takes a delete and a publish: one after the other, 100,000 take hours."""
    async with tiered_world(clock) as world:
        world.fill(25)
        await world.pass_time()
        update, going, most = world.metadata.update_segment, 0, 0

        async def slow(event: RemoteLogSegmentMetadataUpdate) -> None:
            nonlocal going, most
            if event.state is DELETING:
                return await update(event)
            going += 1
            most = max(most, going)
            await clock.sleep(1)
            going -= 1
            return await update(event)

        world.metadata.update_segment = slow  # type: ignore[method-assign]
        world.change(retention_bytes=1)
        await world.pass_time(38)
        assert world.states() == []
        assert most == DELETIONS_AT_ONCE


async def test_older_segments_are_given_up_before_younger_ones(clock: VirtualClock) -> None:
    """Whoever crashes in between, and has lost that the log's start had moved, finds no hole: what is
    left of the log begins with the first segment that stays."""
    async with tiered_world(clock) as world:
        world.fill(8)
        await world.pass_time()
        update, left = world.metadata.update_segment, 8.0

        async def slow(event: RemoteLogSegmentMetadataUpdate) -> None:
            nonlocal left
            left = max(left - 1, 0)
            await clock.sleep(left)  # the first take longest
            await update(event)

        world.metadata.update_segment = slow  # type: ignore[method-assign]
        world.change(retention_bytes=1)
        await world.pass_time(60)
        given_up = [start for start, state in world.published() if state is DELETING]
        assert given_up == [0, 3, 6, 9, 12, 15, 18, 21]
        assert world.states() == []


@pytest.mark.parametrize("error", [RemoteStorageUnavailable, RemoteStorageError])
async def test_what_cannot_be_given_up_keeps_younger_ones(
    clock: VirtualClock, error: type[RemoteStorageError]
) -> None:
    async with tiered_world(clock) as world:
        world.fill(4)
        await world.pass_time()
        update = world.metadata.update_segment
        _, second, *_ = world.metadata.segments(ID)

        async def refuse(event: RemoteLogSegmentMetadataUpdate) -> None:
            if event.id == second.id:
                raise error("no")
            await update(event)

        world.metadata.update_segment = refuse  # type: ignore[method-assign]
        world.change(retention_bytes=1)
        await world.pass_time(60)
        assert world.states() == [(3, FINISHED), (6, FINISHED), (9, FINISHED)]
        world.metadata.update_segment = update  # type: ignore[method-assign]
        await world.pass_time(120)
        assert world.states() == []


async def test_what_somebody_else_has_deleted_keeps_no_younger_ones(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        world.fill(4)
        await world.pass_time()
        update = world.metadata.update_segment
        first, *_ = world.metadata.segments(ID)

        async def refuse(event: RemoteLogSegmentMetadataUpdate) -> None:
            if event.id == first.id:
                raise InvalidRemoteState("no")
            await update(event)

        world.metadata.update_segment = refuse  # type: ignore[method-assign]
        world.change(retention_bytes=1)
        await world.pass_time(60)
        assert world.states() == [(0, FINISHED)]


async def test_while_the_store_is_away_few_are_tried(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        world.fill(50)
        await world.pass_time()
        world.storage.failing["delete"] = RemoteStorageUnavailable("503")
        world.storage.calls.clear()
        world.change(retention_bytes=1)
        while not world.storage.calls:
            await world.pass_time(0.1)
        await world.pass_time(0.3)
        assert len(world.storage.calls) <= DELETIONS_AT_ONCE
        world.storage.failing.clear()
        await world.pass_time(60)
        assert world.states() == []


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


async def test_what_lies_behind_a_gap_counts_as_local_alone(clock: VirtualClock) -> None:
    """S-03: a log is copied as far as there are copies one behind the other; what is there of it further
    on is on the disk as well. With exactly retention.bytes nothing goes."""
    async with tiered_world(clock) as world:
        world.fill(1)
        await world.pass_time(1)
        world.change(remote_log_copy_disable=True)
        world.fill(2)
        size = world.log.size_bytes
        await world.publish_copy(6, 8, size=list_candidate_segments(world.log)[2].size_bytes)
        world.change(remote_log_copy_disable=True, retention_bytes=size)
        await world.pass_time(120)
        assert world.log.highest_copied_offset == 2
        assert world.states() == [(0, FINISHED), (6, FINISHED)]
        assert world.log.log_start_offset == 0


async def test_dangling_copies_of_an_earlier_life_are_deleted(clock: VirtualClock) -> None:
    """E15: killed while it copied; what came of that is deleted at once, the segment copied anew."""
    topic = InMemoryMetadataTopic()
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


async def test_copies_of_others_that_are_not_finished_are_deleted_late(clock: VirtualClock) -> None:
    """E15: a leader before this one may be about to publish it: only after ten minutes that is over."""
    async with tiered_world(clock) as world:
        await world.publish_copy(0, 2, state=STARTED, broker=OTHER)
        await world.pass_time(500)
        assert world.storage.calls == []
        await world.pass_time(200)
        assert world.storage.calls == ["delete 0"]
        assert world.states() == []


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


async def test_what_cannot_be_removed_does_not_keep_others(clock: VirtualClock) -> None:
    """A topic that is tiered no more: one object that cannot be deleted, and more copies that another
    broker may be at than are looked at in one round, before those that can go."""
    async with tiered_world(clock) as world:
        for number in range(EXPIRED_AT_ONCE):
            await world.publish_copy(number, number, state=STARTED, broker=OTHER)
        for number in range(1000, 1003):
            await world.publish_copy(number, number)
        delete = world.storage.delete_segment

        def one_fails(segment: RemoteLogSegmentMetadata) -> None:
            delete(segment)
            if segment.start_offset == 1000:
                raise RemoteStorageError("denied")

        world.storage.delete_segment = one_fails  # type: ignore[method-assign]
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        await world.pass_time(60)
        left = [start for start, state in world.states() if state is not STARTED]
        assert left == [1000]
