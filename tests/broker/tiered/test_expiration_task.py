"""Tests of the expiration task of the leader (T-36, T-37, S-03, E15)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

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


async def test_log_start_offset_advances_before_deletion(clock: VirtualClock) -> None:
    """T-36, S-03: retention.bytes; followers receive the log start offset before the first object is deleted."""
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


async def test_retention_size_gauges_of_both_tiers(clock: VirtualClock) -> None:
    """RetentionSizeInPercent and LocalRetentionSizeInPercent of RemoteLogManager."""
    async with tiered_world(clock) as world:
        world.fill(3)
        size = world.log.size_bytes
        await world.pass_time()
        names = ("TieredRetentionSizeInPercent", "LocalRetentionSizeInPercent")
        partition_log = (("partition", "0"), ("topic", "orders"))
        assert [await world.gauge(name, *partition_log) for name in names] == [0, 0]
        world.change(retention_bytes=2 * size, local_retention_bytes=4 * size)
        await world.pass_time()
        assert [await world.gauge(name, *partition_log) for name in names] == [50, 25]


async def test_segment_above_high_watermark_is_not_deleted(clock: VirtualClock) -> None:
    """T-36: the high watermark of a new leader lags, and the log start offset cannot exceed it. Otherwise a
    consumer would find the records in neither tier."""
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


async def test_failed_deletion_does_not_block_other_segments(clock: VirtualClock) -> None:
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


async def test_deletions_are_concurrent_up_to_limit(clock: VirtualClock) -> None:
    """One after the other, 100,000 segments would take hours."""
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


async def test_deletions_start_in_offset_order(clock: VirtualClock) -> None:
    """After a crash that loses the new log start offset the remaining segments have no gap."""
    async with tiered_world(clock) as world:
        world.fill(8)
        await world.pass_time()
        update, left = world.metadata.update_segment, 8.0

        async def slow(event: RemoteLogSegmentMetadataUpdate) -> None:
            nonlocal left
            left = max(left - 1, 0)
            await clock.sleep(left)  # earlier calls take longer
            await update(event)

        world.metadata.update_segment = slow  # type: ignore[method-assign]
        world.change(retention_bytes=1)
        await world.pass_time(60)
        given_up = [start for start, state in world.published() if state is DELETING]
        assert given_up == [0, 3, 6, 9, 12, 15, 18, 21]
        assert world.states() == []


@pytest.mark.parametrize("error", [RemoteStorageUnavailable, RemoteStorageError])
async def test_failed_start_of_deletion_blocks_later_segments(
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


async def test_segment_deleted_by_other_broker_does_not_block_later_segments(
    clock: VirtualClock,
) -> None:
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


async def test_unavailable_storage_gets_few_deletions(clock: VirtualClock) -> None:
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


async def test_records_without_timestamps_expire_after_copy_time(clock: VirtualClock) -> None:
    """T-36: once they were deleted at once."""
    config = replace(TIERED, retention_ms=3_600_000)
    async with tiered_world(clock, config=config) as world:
        for _ in range(4):
            append(world.log, "x" * 20, now_ms=-1)
        await world.pass_time(3500)
        assert world.states() == [(0, FINISHED)]
        await world.pass_time(200)
        assert world.states() == []
        assert world.log.log_start_offset == 3


async def test_published_copy_counts_once_in_retention_size(
    clock: VirtualClock,
) -> None:
    """S-03: a finished segment is in the remote tier even if the copy task did not receive the confirmation. At
    exactly retention.bytes nothing expires."""
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


async def test_copies_after_gap_count_as_local_in_retention_size(clock: VirtualClock) -> None:
    """S-03: only contiguous copies count as remote; later ones are on the disk as well. At exactly
    retention.bytes nothing expires."""
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


async def test_unfinished_copies_of_previous_run_are_deleted_at_once(clock: VirtualClock) -> None:
    """E15: the broker was killed during a copy. The segment is copied again."""
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


async def test_unfinished_copies_of_other_brokers_are_deleted_after_delay(
    clock: VirtualClock,
) -> None:
    """E15: a previous leader may still publish the copy within ten minutes."""
    async with tiered_world(clock) as world:
        await world.publish_copy(0, 2, state=STARTED, broker=OTHER)
        await world.pass_time(500)
        assert world.storage.calls == []
        await world.pass_time(200)
        assert world.storage.calls == ["delete 0"]
        assert world.states() == []


async def test_disabling_with_delete_on_disable_empties_remote_tier(clock: VirtualClock) -> None:
    """remote.storage.enable=false with remote.log.delete.on.disable=true: the log then starts at the local log
    start offset. Without it the remote segments stay."""
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


async def test_progress_of_a_deletion_is_the_number_of_remaining_segments(
    clock: VirtualClock,
) -> None:
    """X-05, X-07."""
    async with tiered_world(clock) as world:
        world.fill(2)
        await world.pass_time()
        world.storage.failing["delete"] = RemoteStorageUnavailable("503")
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        progress = partial(world.manager.disablement_progress, world.partition)
        assert progress() == "the remote log metadata is not read to its end yet"
        await world.pass_time()
        assert progress().startswith("2 remote segments are not deleted yet: ")
        assert not world.manager.is_disabled(world.partition)
        world.storage.failing.clear()
        await world.pass_time(120)
        assert world.manager.is_disabled(world.partition)


async def test_disabled_topic_is_emptied_in_consecutive_runs(clock: VirtualClock) -> None:
    """There are more segments than one run deletes; the runs do not wait for the task interval."""
    async with tiered_world(clock, config=replace(TIERED, internal_segment_bytes=100)) as world:
        for _ in range(2 * EXPIRED_AT_ONCE + 2):
            append(world.log, "x" * 20, now_ms=clock.wall_ms())
        await world.pass_time()
        assert len(world.storage.kept) == 2 * EXPIRED_AT_ONCE + 1
        world.change(remote_storage_enable=False, remote_log_delete_on_disable=True)
        await world.pass_time(20)
        assert world.storage.kept == {}


async def test_failed_deletion_of_disabled_topic_does_not_block_others(clock: VirtualClock) -> None:
    """One object cannot be deleted, and more copies of another broker are unfinished than one run checks."""
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
