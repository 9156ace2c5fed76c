"""A log that moves from /a to /b during appends, for the crash tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import trio

from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Path
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager
from odradek.storage.log_registry.services import NEVER_MS, LogManagerIntervals
from odradek.storage.moving.mover import Mover
from odradek.testing.power import NodeCrashed, Power
from odradek.testing.virtual_files import VirtualFiles
from tests.support.log_managers import ONE, SMALL, A, B, LogManagerWorld, append, contents

NAME = TopicPartition("t", 0)
M = Path("/m")
"""Metadata directory, so that each of the others can be offline."""
QUIET = LogManagerIntervals(
    retention_check_ms=NEVER_MS,
    recovery_point_ms=NEVER_MS,
    log_start_ms=NEVER_MS,
    high_watermark_ms=NEVER_MS,
    producer_id_check_ms=NEVER_MS,
    deleted_segments_ms=NEVER_MS,
    probe_ms=10**12,
)
"""LogManagerIntervals without background tasks, so that only the move accesses the disk."""


def hold_moves(mover: Mover) -> Callable[[], None]:
    """Queue moves without starting them; the returned function starts them."""
    settings = mover.settings
    mover.settings = lambda: replace(settings(), threads=0)

    def release() -> None:
        mover.settings = settings
        mover.settings_changed()

    return release


class CountingPower(Power):
    """Counts the disk operations of a node, and kills the process at a given one."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at = at
        self.uses = 0

    def check(self) -> None:
        self.uses += 1
        if self.uses == self.at:
            self.cut()
        super().check()


@dataclass
class ExpectedRecords:
    """Records that must, and records that may exist after a crash."""

    written: list[str] = field(default_factory=list)
    """All records in order; the last one may not have been acknowledged."""
    acknowledged: int = 0
    synced: int = 0
    start: int = 0
    """Durable log start offset."""
    is_moved: bool = False
    move_began: int = 0
    """Number of the last disk operation, and of the last sync, before the move."""
    syncs_began: int = 0

    def write(self, log: PartitionLog, value: str) -> None:
        self.written.append(value)
        append(log, value)
        self.acknowledged = len(self.written)


def new_world(power: Power | None = None) -> LogManagerWorld:
    world = LogManagerWorld(
        paths=(M, A, B), intervals=QUIET, configs={"t": replace(SMALL, file_delete_delay_ms=0)}
    )
    if power is not None:
        world.files = VirtualFiles(world.disk, power)
    return world


async def move(manager: LogManager, expected: ExpectedRecords) -> None:
    """Move a log with flushed and unflushed segments and deleted records, during appends."""
    a = next(each for each in manager.directories.all if each.path == A)
    log = await manager.create("t", 0, ONE, directory_id=a.id)
    for number in range(10):
        expected.write(log, f"{number} " + "x" * 50)
    log.flush()
    log.advance_log_start(3, "asked to")
    await manager.checkpoint([Checkpoint.RECOVERY_POINT, Checkpoint.LOG_START])
    expected.synced, expected.start = 10, 3
    for number in range(4):
        expected.write(log, f"unsynced {number}")
    expected.move_began = getattr(manager.files.power, "uses", 0)  # type: ignore[attr-defined]
    expected.syncs_began = manager.files.syncs  # type: ignore[attr-defined]
    await manager.mover.move(NAME, B)
    number = 0
    while manager.mover.moves():
        if number < 40:
            expected.write(log, f"meanwhile {number}")
            number += 1
        await trio.lowlevel.checkpoint()
    expected.is_moved = log.directory.parent == B
    expected.write(log, "after the move")
    with trio.move_on_after(5):  # the old directory is removed
        while len(manager.directory_deletion):
            await trio.sleep(0.001)


async def run_until_crash(
    world: LogManagerWorld, act: Callable[[LogManager, ExpectedRecords], object] = move
) -> ExpectedRecords:
    """Run a node until the planned power cut, or until `act` returns, without a shutdown."""
    expected = ExpectedRecords()
    try:
        manager = world.manager()
        await manager.load()
        await manager.promote_moved()
        async with trio.open_nursery() as nursery:
            await nursery.start(manager.run)
            await act(manager, expected)  # type: ignore[misc]
            nursery.cancel_scope.cancel()
    except NodeCrashed:
        pass
    except BaseExceptionGroup as group:
        if group.split(NodeCrashed)[1] is not None:
            raise
    world.files.power.cut()
    return expected


async def settled(manager: LogManager) -> None:
    """Wait until continued moves are over and old directories are removed."""
    with trio.fail_after(30):
        while manager.mover.moves():
            await trio.lowlevel.checkpoint()


def check(log: PartitionLog, expected: ExpectedRecords, *, at_least: int) -> None:
    """Check that the log is a prefix of the written records, without loss or duplicates."""
    found = contents(log)
    start = log.local_log_start_offset
    assert log.log_start_offset >= expected.start
    assert found == expected.written[start : start + len(found)]
    assert start + len(found) >= at_least, f"{start + len(found)} of {at_least}"


async def check_next_run(
    world: LogManagerWorld, expected: ExpectedRecords, *, at_least: int, epoch: int = 0
) -> None:
    """Check a start without faults: one directory has the log, and no files of the move are left."""
    async with world.running(housekeeping=True) as manager:
        await manager.promote_moved()
        log = manager.get(*NAME)
        assert log is not None
        check(log, expected, at_least=at_least)
        found = contents(log)
        await settled(manager)
        assert contents(log) == found
        append(log, "later append", epoch=epoch)
    left = {path: [name for name in world.names(path) if name.startswith("t-")] for path in (A, B)}
    live = [path for path in (A, B) if "t-0" in left[path]]
    assert live == [log.directory.parent], left
    assert all(name == "t-0" or name.endswith("delete") for name in (*left[A], *left[B])), left
    async with world.running() as manager:
        again = manager.get(*NAME)
        assert again is not None
        assert contents(again) == [*found, "later append"]


async def check_with_a_bad_directory(
    world: LogManagerWorld, expected: ExpectedRecords, *, at_least: int
) -> None:
    """Check that starts with each directory offline lose nothing (J-15)."""
    for bad in (A, B):
        fault = world.disk.fail(f"{bad}/*")
        async with world.running(housekeeping=True) as manager:
            await manager.promote_moved()
            served = manager.registry.logs.get(NAME)
            if served is not None:
                check(served, expected, at_least=at_least)
        world.disk.heal(fault)
        world.files = VirtualFiles(world.disk)
    await check_next_run(world, expected, at_least=at_least)
