"""Moves of a tiered log keep its remote offsets, also after a crash (E4, T-57)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager
from tests.support.log_managers import ONE, SMALL, A, B, LogManagerWorld, append
from tests.support.replica_moves import (
    NAME,
    CountingPower,
    ExpectedRecords,
    check_next_run,
    new_world,
    run_until_crash,
)

TIERED = replace(SMALL, file_delete_delay_ms=0, remote_storage_enable=True, local_retention_bytes=1)
START = 3


def tiered_world(power: CountingPower | None = None) -> LogManagerWorld:
    world = new_world(power)
    world.configs["t"] = TIERED
    return world


def leave(log: PartitionLog, advance_highest_copied_offset: int) -> None:
    """Copy the segments up to an offset to the remote tier, and delete them locally."""
    log.flush()
    log.advance_highest_copied_offset(advance_highest_copied_offset)
    log.delete_expired(0)
    log.remove_deleted(10**15)


async def move(manager: LogManager, expected: ExpectedRecords) -> None:
    """Move a log whose segments are deleted locally before and during the move, during appends."""
    a = next(each for each in manager.directories.all if each.path == A)
    log = await manager.create("t", 0, ONE, directory_id=a.id)
    for number in range(12):
        expected.written.append(f"{number} " + "x" * 50)
        append(log, expected.written[-1], epoch=number // 4)
    log.advance_log_start(START, "asked to")
    leave(log, 7)
    assert log.local_log_start_offset > START
    await manager.checkpoint([Checkpoint.RECOVERY_POINT, Checkpoint.LOG_START])
    expected.start, expected.acknowledged = START, 12
    expected.move_began = getattr(manager.files.power, "uses", 0)  # type: ignore[attr-defined]
    await manager.mover.move(NAME, B)
    number = 0
    while manager.mover.moves():
        if number < 10:
            expected.written.append(f"meanwhile {number}")
            append(log, expected.written[-1], epoch=3)
            expected.acknowledged += 1
            number += 1
            if number == 5:
                async with manager.registry.holding_file_lock(log):
                    leave(log, log.segments[-2].base_offset - 1)
        await trio.lowlevel.checkpoint()
    expected.is_moved = log.directory.parent == B
    with trio.move_on_after(5):
        while len(manager.directory_deletion):
            await trio.sleep(0.001)


def check_tier(log: PartitionLog) -> None:
    assert log.log_start_offset == START
    assert log.local_log_start_offset > START
    assert log.epochs.entries[:3] == (EpochStart(0, START), EpochStart(1, 4), EpochStart(2, 8))


async def check_after(world: LogManagerWorld, expected: ExpectedRecords) -> None:
    await check_next_run(world, expected, at_least=expected.acknowledged, epoch=3)
    async with world.running() as manager:
        log = manager.get(*NAME)
        assert log is not None
        check_tier(log)


async def retry_if_files_replaced() -> tuple[ExpectedRecords, LogManagerWorld, CountingPower]:
    power = CountingPower()
    world = tiered_world(power)
    expected = await run_until_crash(world, move)
    assert expected.is_moved
    return expected, world, power


async def test_moved_tiered_log_keeps_remote_offsets() -> None:
    """E4, T-57."""
    expected, world, _ = await retry_if_files_replaced()
    await check_after(world.killed(), expected)


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
async def test_kill_at_every_disk_operation_keeps_tiered_log(step: int) -> None:
    """E4 and J-13, J-14."""
    expected, _, power = await retry_if_files_replaced()
    first, last = expected.move_began + 1, power.uses
    assert last - first > 200
    for at in range(first, last, step):
        world = tiered_world(CountingPower(at))
        expected = await run_until_crash(world, move)
        await check_after(world.killed(), expected)
