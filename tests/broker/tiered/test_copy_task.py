"""A leader's copies: in order, over failures, within their quota (T-11, T-12, T-22, T-28 to T-30, E15),
with a log on a virtual disk."""

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
        world.lose_metadata_once_copied()
        await world.pass_time(60)
        assert world.states() == [(0, STARTED)]
        assert world.log.highest_copied_offset == -1
        world.metadata.failing = None
        await world.pass_time(60)
        assert world.states() == [(0, FINISHED)]
        assert world.storage.calls == ["copy 0"]


async def test_a_copy_that_cannot_be_published_keeps_no_place(clock: VirtualClock) -> None:
    """T-11: the pool is small, and others' metadata may be elsewhere. It is published in the end, and nothing
    else of its partition is copied before."""
    settings = {"remote.log.manager.copier.thread.pool.size": "1"}
    async with tiered_world(clock, settings=settings) as world:
        world.fill(2)
        world.lose_metadata_once_copied()
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


async def test_who_leads_again_does_not_copy_what_is_still_to_be_published(
    clock: VirtualClock,
) -> None:
    """Another copier than the one that handed it over: it, too, waits until the copy is known."""
    async with tiered_world(clock) as world:
        world.fill(2)
        world.lose_metadata_once_copied()
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
        waited_ms = await world.gauge("remote-copy-throttle-time-max")
        assert waited_ms == pytest.approx(1000 * size / 50, rel=0.2)
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


async def test_what_is_deleted_while_it_is_opened_is_not_copied(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """DeleteRecords while the copier waits for a thread: what there is by then is copied at once, and the
    store has not failed."""
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


async def test_a_role_that_is_over_tells_the_log_nothing(clock: VirtualClock) -> None:
    """T-38: what it would tell last may be no more for the role after it, which asks anew."""
    async with tiered_world(clock) as world:
        world.fill(1)
        await world.pass_time(1)
        world.log.reset_highest_copied_offset()
        with trio.CancelScope() as over:
            over.cancel()
            await update_highest_copied_offset(world.metadata, ID, world.log)
        assert world.log.highest_copied_offset == -1
        assert await update_highest_copied_offset(world.metadata, ID, world.log) == 2


async def test_what_is_missing_alone_is_copied(clock: VirtualClock) -> None:
    """The first segment has expired, and a kill came before the new start of the log was in its checkpoint:
    what the remote tier has of the later ones is not copied again."""
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


async def test_e15_what_an_unclean_leader_copied_hides_no_gap(clock: VirtualClock) -> None:
    """T-30, E15: epoch 0 ends at 2 in this log, and at 5 in another's, which was copied; of epoch 1 what
    begins at 6 is copied, and what lies before is not: it may not leave the disk."""
    async with tiered_world(clock) as world:
        world.follow(1)
        for number in range(10):
            append(world.log, "x" * 20, now_ms=clock.wall_ms(), epoch=0 if number < 3 else 1)
        await world.publish_copy(0, 5, broker=OTHER)
        await world.publish_copy(6, 8, (1, 6), broker=OTHER)
        world.log.reset_highest_copied_offset()
        await world.pass_time()
        assert world.log.highest_copied_offset == 2


async def test_a_copy_of_another_history_counts_up_to_where_that_parts(clock: VirtualClock) -> None:
    """E15: an unclean leader copied epoch 0 further than this log has it, and epoch 2 is copied later on:
    what this log has in between is not."""
    async with tiered_world(clock) as world:
        world.follow(1)
        await world.pass_time(1)
        for number in range(20):
            append(world.log, "x" * 20, epoch=0 if number < 5 else 2)
        await world.publish_copy(0, 9, broker=OTHER)
        await world.publish_copy(10, 15, (2, 10), broker=OTHER)
        await world.pass_time()
        assert world.log.highest_copied_offset == 4
