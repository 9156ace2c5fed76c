"""Whether the store is there that was copied to: what is done, and said, where it is not. On virtual time."""

from __future__ import annotations

import pytest

from odradek.storage.tiered.errors import RemoteStorageUnavailable
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadataUpdate
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.tiered.tiered_world import (
    DELETED,
    DELETING,
    FINISHED,
    ID,
    ME,
    TieredWorld,
    tiered_world,
)

AGAIN = "the remote store is there again"


async def begin(world: TieredWorld) -> None:
    """Of three closed segments one was copied, by an earlier life of this node."""
    world.follow(1)
    world.fill(3)
    await world.publish_copy(0, 2)
    world.lead(2)


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in each for each in caplog.messages)


async def test_into_a_store_that_has_nothing_of_it_nothing_is_copied(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not mounted, emptied, or another one: the operator is told, and nothing that is known is given up."""
    async with tiered_world(clock) as world:
        world.storage.has_some = False
        await begin(world)
        await world.pass_time(2)
        assert said(caplog, "the remote store has nothing of") == 1
        await world.pass_time(150)
        assert 2 <= said(caplog, "the remote store has nothing of") <= 3
        assert await world.gauge("RemoteStoreAway") == 1
        assert world.log.highest_copied_offset == -1  # nothing leaves the disk
        assert world.storage.calls == []
        assert world.states() == [(0, FINISHED)]
        world.storage.failing["look"] = RemoteStorageUnavailable("503")
        await world.pass_time(60)
        assert world.storage.calls == []
        world.storage.failing.clear()
        world.storage.has_some = True
        await world.pass_time(60)
        assert world.storage.calls == ["copy 3", "copy 6"]
        assert await world.gauge("RemoteStoreAway") == 0
        assert said(caplog, AGAIN) == 1


async def test_while_it_is_away_all_else_goes_on(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """What was copied may leave the disk: it is known to be there."""
    async with tiered_world(clock) as world:
        world.storage.failing["look"] = RemoteStorageUnavailable("503")
        await begin(world)
        await world.pass_time(0.1)
        assert said(caplog, "the remote store is away (503)") == 1
        await world.pass_time()
        assert world.storage.calls == ["copy 3", "copy 6"]
        assert await world.gauge("RemoteStoreAway") == 1
        world.storage.failing.clear()
        await world.pass_time(60)
        assert await world.gauge("RemoteStoreAway") == 0
        assert said(caplog, AGAIN) == 1


async def test_what_is_just_being_deleted_is_not_missed(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with tiered_world(clock) as world:
        world.storage.has_some = False
        await begin(world)
        await world.pass_time(0.1)
        (segment,) = world.metadata.segments(ID)
        for state in (DELETING, DELETED):
            await world.metadata.update_segment(
                RemoteLogSegmentMetadataUpdate(segment.id, ME, clock.wall_ms(), state)
            )
        await world.pass_time()
        assert said(caplog, "the remote store") == 0
        assert world.storage.calls == ["copy 0", "copy 3", "copy 6"]


async def test_a_store_that_was_never_seen_is_not_missed(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        world.storage.has_some = False
        world.fill(2)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "copy 3"]
        assert await world.gauge("RemoteStoreAway") == 0
