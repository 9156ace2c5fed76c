"""Any operation of a move fails once, in either directory (J-11): nothing is lost, and the other stays online."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest
import trio

from odradek.seams.files import Path
from odradek.storage.errors import DiskFull, NoDescriptors, StorageError
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager
from odradek.testing.virtual_disk import DiskFault
from tests.support.log_managers import ONE, A, B, LogManagerWorld
from tests.support.replica_moves import (
    NAME,
    ExpectedRecords,
    check,
    check_next_run,
    new_world,
    settled,
)

STEP = 5
WITHOUT_DESCRIPTORS_STEP = 17
"""A larger step, because each retry without file descriptors takes a moment."""


def write(expected: ExpectedRecords, log: PartitionLog, value: str) -> None:
    """Append as a producer: a refused record must not exist, an unacknowledged one may."""
    try:
        expected.write(log, value)
    except (DiskFull, NoDescriptors):
        expected.written.pop()
    except StorageError:
        pass


async def run_with_failure(
    world: LogManagerWorld, expected: ExpectedRecords, bad: Path, code: int, number: int
) -> DiskFault:
    """A move in which one operation on a directory fails; the process is killed afterwards."""
    manager: LogManager = world.manager()
    await manager.load()
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        id = manager.registry.logs_by_directory[A].directory.id
        log = await manager.create(*NAME, ONE, directory_id=id)
        for value in range(14):
            write(expected, log, f"{value} " + "x" * 50)
        fault = world.disk.fail(f"{bad}/t-0*", code, passes=number, times=1)
        with suppress(StorageError):
            await manager.mover.move(NAME, B)
        for value in range(20):
            if manager.mover.moves() and log.failure is None:
                write(expected, log, f"meanwhile {value}")
            await trio.lowlevel.checkpoint()
        await settled(manager)
        assert fault.failed or manager.mover.statistics.moved
        world.disk.heal()  # the checks below are not part of the move
        if log.failure is None:
            write(expected, log, "later append")
            check(log, expected, at_least=expected.acknowledged)
        else:
            assert code != errno.EMFILE, "back-pressure, never a failed directory"
            assert manager.registry.directory_logs_of(log).directory.failed or code == errno.ENOSPC
        other = manager.registry.logs_by_directory[B if bad == A else A]
        assert not other.directory.failed
        nursery.cancel_scope.cancel()
    world.files.power.cut()
    return fault


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("bad", [A, B])
async def test_failure_of_any_operation_loses_nothing(bad: Path, code: int) -> None:
    number, failed = 0, 1
    while failed:
        world, expected = new_world(), ExpectedRecords()
        try:
            fault = await run_with_failure(world, expected, bad, code, number)
            failed = fault.failed
            world.disk.heal()
            await check_next_run(world.killed(), expected, at_least=expected.acknowledged)
        except BaseException as error:
            error.add_note(f"operation {number} on {bad} failed")
            raise
        number += WITHOUT_DESCRIPTORS_STEP if code == errno.EMFILE else STEP
    assert number > 100
