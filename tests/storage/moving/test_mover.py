"""Moves between two directories on virtual disks: what is served, what is on the disk, what is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from odradek.storage.directories.names import TopicPartition
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager import LogManager
from odradek.testing.virtual_clock import VirtualClock
from tests.storage.log_manager_world import ONE, A, B, World, append, contents

T0 = TopicPartition("t", 0)
MOVE = "t-0.move"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def world(clock: VirtualClock) -> World:
    return World(clock=clock)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[tuple[LogManager, PartitionLog]]:
    """A log in /a with some segments, and what moves it."""
    async with world.running(housekeeping=True) as manager:
        a = manager.directories.all[0]
        log = await manager.create("t", 0, ONE, directory_id=a.id)
        for number in range(30):
            append(log, f"value {number} of some length", f"{number} more")
        assert len(log.segments) > 5
        yield manager, log


async def moved(manager: LogManager) -> None:
    """All moves are over."""
    with trio.fail_after(600):
        while manager.mover.moves():
            await trio.sleep(0.05)


async def test_j05_j09_a_replica_is_moved_and_served_on(world: World) -> None:
    async with running(world) as (manager, log):
        before = contents(log)
        await manager.mover.move(T0, B)
        assert MOVE in world.names(B), "tracked"
        await moved(manager)
        assert manager.get("t", 0) is log
        assert log.directory == B / "t-0"
        assert contents(log) == before
        append(log, "after the move")
        assert contents(log) == [*before, "after the move"]
        assert manager.directory_of(log).path == B
        assert "t-0" not in world.names(A)
        assert "t-0.delete" in world.names(A)
        assert world.names(B).count(MOVE) == 0
        statistics = manager.mover.statistics
        assert (statistics.moved, statistics.failed, statistics.cancelled) == (1, 0, 0)
    async with world.running() as manager:
        again = manager.get("t", 0)
        assert again is not None
        assert again.directory == B / "t-0"
        assert contents(again) == [*before, "after the move"]
