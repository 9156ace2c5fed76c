"""Tests of the copy task: order, failures and quota (T-11, T-12, T-22, T-28 to T-30, E15)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from odradek.broker.tiered.copy_task import update_highest_copied_offset
from odradek.storage.tiered.copy_candidates import open_segment_to_copy
from odradek.storage.tiered.errors import (
    RemoteStorageError,
    RemoteStorageUnavailable,
)
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadata,
)
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.tiered.tiered_world import (
    DELETED,
    DELETING,
    FINISHED,
    ID,
    OTHER,
    STARTED,
    TIERED,
    tiered_world,
)
from tests.support.log_managers import append


async def test_closed_segments_are_copied_in_order(clock: VirtualClock) -> None:
    """T-28, T-29: each copy is published as started and as finished. The active segment is not copied."""
    async with tiered_world(clock) as world:
        world.fill(2)
        await world.pass_time()
        assert world.published() == [(0, STARTED), (0, FINISHED), (3, STARTED), (3, FINISHED)]
        assert world.storage.calls == ["copy 0", "copy 3"]
        assert world.log.highest_copied_offset == 5
        await world.pass_time()
        assert len(world.storage.calls) == 2


async def test_copied_segments_expire_by_local_retention(clock: VirtualClock) -> None:
    """T-30, E12: the log start offset does not change."""
    async with tiered_world(clock, config=replace(TIERED, local_retention_bytes=1)) as world:
        world.fill(2)
        world.log.delete_expired(clock.wall_ms())
        assert world.log.local_log_start_offset == 0
        await world.pass_time()
        world.log.flush()
        world.log.delete_expired(clock.wall_ms())
        assert world.log.local_log_start_offset == 6
        assert world.log.log_start_offset == 0


async def test_copy_task_runs_at_task_interval(clock: VirtualClock) -> None:
    """T-11: remote.log.manager.task.interval.ms after the end of the previous run."""
    async with tiered_world(clock) as world:
        await world.pass_time(1)
        world.fill(1)
        await world.pass_time(28)
        assert world.storage.calls == []
        await world.pass_time(2)
        assert world.storage.calls == ["copy 0"]


async def test_failed_copy_is_deleted_and_retried_with_new_id(clock: VirtualClock) -> None:
    """T-12, T-22, E15: the backoff doubles."""
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


async def test_unexpected_error_does_not_stop_copy_task(clock: VirtualClock) -> None:
    """In Kafka a failed segment once stopped the task, and the disk filled without a log message."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.storage.failing["copy"] = ZeroDivisionError("a bug")
        await world.pass_time(60)
        world.storage.failing.clear()
        await world.pass_time(60)
        assert [each for each in world.states() if each[1] is FINISHED] == [(0, FINISHED)]
        assert len(world.storage.kept) == 1


async def test_failed_deletion_of_failed_copy_is_retried(clock: VirtualClock) -> None:
    """T-36, E15."""
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


async def test_publication_of_copy_is_retried_without_new_copy(clock: VirtualClock) -> None:
    """T-29: the metadata is unavailable after the copy."""
    async with tiered_world(clock) as world:
        world.fill(1)
        world.fail_metadata_after_copy()
        await world.pass_time(60)
        assert world.states() == [(0, STARTED)]
        assert world.log.highest_copied_offset == -1
        world.metadata.failing = None
        await world.pass_time(60)
        assert world.states() == [(0, FINISHED)]
        assert world.storage.calls == ["copy 0"]


async def test_unpublished_copy_occupies_no_copier_thread(clock: VirtualClock) -> None:
    """T-11: other partitions may use other metadata partitions. Further segments of the same partition are
    copied only after the publication."""
    settings = {"remote.log.manager.copier.thread.pool.size": "1"}
    async with tiered_world(clock, settings=settings) as world:
        world.fill(2)
        world.fail_metadata_after_copy()
        await world.pass_time(0.1)
        assert world.manager.copiers.borrowed_tokens == 0
        assert await world.gauge("RemoteStoreUnavailable") == 1
        await world.pass_time(60)
        assert world.storage.calls == ["copy 0"]
        world.metadata.failing = None
        await world.pass_time(90)
        assert world.storage.calls == ["copy 0", "copy 3"]
        assert world.states() == [(0, FINISHED), (3, FINISHED)]
        assert world.log.highest_copied_offset == 5
        assert not world.manager.work.in_progress


async def test_copy_task_of_next_leadership_waits_for_unpublished_copy(
    clock: VirtualClock,
) -> None:
    """The copy was started by the copy task of the previous leadership."""
    async with tiered_world(clock) as world:
        world.fill(2)
        world.fail_metadata_after_copy()
        await world.pass_time(0.1)
        world.follow(1)
        await world.pass_time(10)
        world.metadata.failing = None  # before the next attempt to publish it
        world.lead(2)
        await world.pass_time(0.1)
        assert world.states() == [(0, STARTED)]
        assert world.storage.calls == ["copy 0"]
        await world.pass_time(90)
        assert world.storage.calls == ["copy 0", "copy 3"]
        assert world.states() == [(0, FINISHED), (3, FINISHED)]
        assert world.log.highest_copied_offset == 5


async def test_oversized_custom_metadata_stops_copy_task(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """remote.log.metadata.custom.metadata.max.bytes: the copy and its metadata are deleted."""
    settings = {"remote.log.metadata.custom.metadata.max.bytes": "4"}
    async with tiered_world(clock, settings=settings) as world:
        world.storage.custom = b"12345"
        world.fill(2)
        await world.pass_time(120)
        assert world.storage.calls == ["copy 0", "delete 0"]
        assert world.states() == []
        assert "custom.metadata.max.bytes" in caplog.text


async def test_copies_are_throttled_by_quota(clock: VirtualClock) -> None:
    """remote.log.manager.copy.max.bytes.per.second."""
    settings = {"remote.log.manager.copy.max.bytes.per.second": "50"}
    async with tiered_world(clock, settings=settings) as world:
        world.fill(4)
        size = world.log.segment_list.all[0].size
        await world.pass_time(0.1)
        assert world.storage.calls == ["copy 0"]
        await world.pass_time(size / 50 + 0.5)
        assert world.storage.calls == ["copy 0", "copy 3"]
        waited_ms = await world.gauge("remote-copy-throttle-time-max")
        assert waited_ms == pytest.approx(1000 * size / 50, rel=0.2)
        await world.pass_time(3 * size / 50 + 1)
        assert len(world.storage.calls) == 4


async def test_copy_task_releases_its_thread_after_maximum_run_time(
    clock: VirtualClock,
) -> None:
    """It waits for a thread again and continues with the next segment."""
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


async def test_segment_deleted_by_delete_records_is_not_copied(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """DeleteRecords during the copy of an earlier segment is not reported as a failure of the remote storage."""
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


async def test_segment_deleted_while_opened_is_not_copied(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """DeleteRecords while the copy task waits for a thread: the next segment is copied at once, and no failure
    of the remote storage is reported."""
    async with tiered_world(clock) as world:
        run = world.manager.work._seams.offload.run

        async def later(function: Callable[..., Any], *args: Any, lane: str) -> Any:
            if function is open_segment_to_copy and world.log.log_start_offset == 0:
                world.partition.delete_before(6, "DeleteRecords")
                world.log.delete_expired(clock.wall_ms())
            return await run(function, *args, lane=lane)

        world.manager.work._seams.offload.run = later  # type: ignore[method-assign]
        world.fill(3)
        await world.pass_time(1)
        assert world.storage.calls == ["copy 6"]
        assert "cannot be copied" not in caplog.text


async def test_cancelled_role_does_not_update_highest_copied_offset(clock: VirtualClock) -> None:
    """T-38: the value may be wrong for the next role, which computes it."""
    async with tiered_world(clock) as world:
        world.fill(1)
        await world.pass_time(1)
        world.log.reset_highest_copied_offset()
        with trio.CancelScope() as over:
            over.cancel()
            await update_highest_copied_offset(world.metadata, ID, world.log)
        assert world.log.highest_copied_offset == -1
        assert await update_highest_copied_offset(world.metadata, ID, world.log) == 2


async def test_only_missing_segments_are_copied(clock: VirtualClock) -> None:
    """The first segment has expired, and the broker was killed before it checkpointed the log start offset.
    Later segments that are in the remote tier are not copied again."""
    async with tiered_world(clock) as world:
        world.follow(1)
        world.fill(4)
        await world.publish_copy(3, 5, broker=OTHER)
        await world.publish_copy(6, 8, broker=OTHER)
        await world.pass_time(0.1)
        world.lead(2)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "copy 9"]
        assert world.log.highest_copied_offset == 11


async def test_highest_copied_offset_ends_at_gap_in_lineage(clock: VirtualClock) -> None:
    """T-30, E15: epoch 0 ends at 2 in this log, and at 5 in the log of another leader, which was copied. Epoch
    1 is copied from offset 6, so offsets 3 to 5 must stay on the disk."""
    async with tiered_world(clock) as world:
        world.follow(1)
        for number in range(10):
            append(world.log, "x" * 20, now_ms=clock.wall_ms(), epoch=0 if number < 3 else 1)
        await world.publish_copy(0, 5, broker=OTHER)
        await world.publish_copy(6, 8, (1, 6), broker=OTHER)
        world.log.reset_highest_copied_offset()
        await world.pass_time()
        assert world.log.highest_copied_offset == 2


async def test_highest_copied_offset_ends_where_lineages_diverge(clock: VirtualClock) -> None:
    """E15: an unclean leader copied more of epoch 0 than this log has, and epoch 2 is copied from a later
    offset."""
    async with tiered_world(clock) as world:
        world.follow(1)
        await world.pass_time(1)
        for number in range(20):
            append(world.log, "x" * 20, epoch=0 if number < 5 else 2)
        await world.publish_copy(0, 9, broker=OTHER)
        await world.publish_copy(10, 15, (2, 10), broker=OTHER)
        await world.pass_time()
        assert world.log.highest_copied_offset == 4
