"""A move is ended at every step: the process killed, or the power cut (J-13 to J-16).

Killed, the page cache lives on: every record that was acknowledged is there. After a power cut what
was synced is there, and a beginning of the rest. Each time the next start finds the replica in one
directory, and finishes or forgets the move; and each time also a run_until_crash in between with either
directory bad.
"""

from __future__ import annotations

import pytest

from tests.support.log_managers import LogManagerWorld
from tests.support.replica_moves import (
    CountingPower,
    ExpectedRecords,
    check_next_run,
    check_with_a_bad_directory,
    new_world,
    run_until_crash,
)

IMAGES = 2


async def retry_if_files_replaced() -> tuple[ExpectedRecords, LogManagerWorld, CountingPower]:
    power = CountingPower()
    world = new_world(power)
    expected = await run_until_crash(world)
    assert expected.is_moved
    assert expected.written[-1] == "after the move"
    assert len(expected.written) > 25
    return expected, world, power


async def test_undisturbed_move_completes() -> None:
    expected, world, _ = await retry_if_files_replaced()
    await check_next_run(world.killed(), expected, at_least=expected.acknowledged)


@pytest.mark.parametrize(
    ("step", "bad"),
    [
        pytest.param(11, False, id="11-"),
        pytest.param(17, True, id="17-with a bad directory"),
        pytest.param(1, False, id="1-", marks=pytest.mark.slow),
        pytest.param(3, True, id="3-with a bad directory", marks=pytest.mark.slow),
    ],
)
async def test_kill_at_every_disk_operation_loses_nothing(step: int, bad: bool) -> None:
    expected, _, power = await retry_if_files_replaced()
    first, last = expected.move_began + 1, power.uses
    assert last - first > 300
    for at in range(first, last, step):
        world = new_world(CountingPower(at))
        expected = await run_until_crash(world)
        checked = check_with_a_bad_directory if bad else check_next_run
        try:
            await checked(world.killed(), expected, at_least=expected.acknowledged)
        except BaseException as error:
            error.add_note(f"killed at use {at} of {first} to {last}")
            raise


@pytest.mark.parametrize("when", ["at", "after"])
@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(False, id=""),
        pytest.param(True, id="with a bad directory", marks=pytest.mark.slow),
    ],
)
async def test_power_cut_at_every_sync_keeps_synced_records(when: str, bad: bool) -> None:
    expected, world, _ = await retry_if_files_replaced()
    first, last = expected.syncs_began + 1, world.files.syncs
    assert last - first > 15
    for at in range(first, last + 1):
        world = new_world()
        if when == "at":
            world.files.cut_power_at(at)
        else:
            world.files.cut_power_after(at)
        expected = await run_until_crash(world)
        checked = check_with_a_bad_directory if bad else check_next_run
        for seed in range(1 if bad else IMAGES):
            try:
                await checked(world.crashed(seed), expected, at_least=expected.synced)
            except BaseException as error:
                error.add_note(f"power cut {when} sync {at} of {first} to {last}, image {seed}")
                raise
