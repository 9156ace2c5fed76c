"""Rounds of copying and retention where copies, records or leaders are not as they should be (T-36,
S-03, E15), with a log on a virtual disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.expiry import EXPIRED_AT_ONCE
from odradek.storage.tiered.metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
)
from odradek.storage.tiered.sealed import copyable_segments, open_sealed
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.tiered.tiered_world import ID, ME, OTHER, TieredWorld, tiered_world
from tests.storage.log_manager_world import append
from tests.storage.tiered.segments import segment

STARTED = SegmentState.COPY_SEGMENT_STARTED
FINISHED = SegmentState.COPY_SEGMENT_FINISHED


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


async def publish_copy(
    world: TieredWorld,
    start: int,
    end: int,
    *of: tuple[int, int],
    size: int | None = None,
    state: SegmentState = FINISHED,
    broker: int = ME,
) -> None:
    """A copy of [start, end] comes to be known, of epochs `of` (else 0), by whoever published it."""
    known = replace(
        segment(start, end, *of, state=STARTED, newest_ms=world.clock.wall_ms()), broker_id=broker
    )
    known = replace(known, id=RemoteLogSegmentId(ID, known.id.id))
    if size is not None:
        known = replace(known, size_bytes=size)
    await world.metadata.add_segment(known)
    if state is not STARTED:
        await world.metadata.update_segment(
            RemoteLogSegmentMetadataUpdate(known.id, broker, world.clock.wall_ms(), state)
        )


async def test_what_lies_behind_a_gap_counts_as_local_alone(clock: VirtualClock) -> None:
    """S-03: a log is copied as far as there are copies one behind the other; what is there of it further
    on is on the disk as well. With exactly retention.bytes nothing goes."""
    async with tiered_world(clock) as world:
        world.fill(1)
        await world.pass_time(1)
        world.change(remote_log_copy_disable=True)
        world.fill(2)
        size = world.log.size_bytes
        await publish_copy(world, 6, 8, size=copyable_segments(world.log)[2].size_bytes)
        world.change(remote_log_copy_disable=True, retention_bytes=size)
        await world.pass_time(120)
        assert world.log.highest_copied_offset == 2
        assert world.states() == [(0, FINISHED), (6, FINISHED)]
        assert world.log.log_start_offset == 0


async def test_a_copy_of_another_history_counts_up_to_where_that_parts(clock: VirtualClock) -> None:
    """E15: an unclean leader copied epoch 0 further than this log has it, and epoch 2 is copied later on:
    what this log has in between is not."""
    async with tiered_world(clock) as world:
        world.follow(1)
        await world.pass_time(1)
        for number in range(20):
            append(world.log, "x" * 20, epoch=0 if number < 5 else 2)
        await publish_copy(world, 0, 9, broker=OTHER)
        await publish_copy(world, 10, 15, (2, 10), broker=OTHER)
        await world.pass_time()
        assert world.log.highest_copied_offset == 4


async def test_what_is_deleted_while_it_is_opened_is_not_copied(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """DeleteRecords while the copier waits for a thread: what there is by then is copied at once, and the
    store has not failed."""
    async with tiered_world(clock) as world:
        run = world.manager.work._seams.offload.run

        async def later(function: Callable[..., Any], *args: Any, lane: str) -> Any:
            if function is open_sealed and world.log.log_start_offset == 0:
                world.partition.delete_before(6, "DeleteRecords")
                world.log.delete_expired(clock.wall_ms())
            return await run(function, *args, lane=lane)

        world.manager.work._seams.offload.run = later  # type: ignore[method-assign]
        world.fill(3)
        await world.pass_time(1)
        assert world.storage.calls == ["copy 6"]
        assert "cannot be copied" not in caplog.text


async def test_what_cannot_be_removed_does_not_keep_others(clock: VirtualClock) -> None:
    """A topic that is tiered no more: one object that cannot be deleted, and more copies that another
    broker may be at than are looked at in one round, before those that can go."""
    async with tiered_world(clock) as world:
        for number in range(EXPIRED_AT_ONCE):
            await publish_copy(world, number, number, state=STARTED, broker=OTHER)
        for number in range(1000, 1003):
            await publish_copy(world, number, number)
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
