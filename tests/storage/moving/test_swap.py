"""Failures during the swap (J-08, J-11), when the source is `.delete` and appends go to both replicas."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
import trio

from odradek.protocol.records.records import Record, build_batch
from odradek.seams.files import Path
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.log_directory import LogDirectory
from odradek.storage.errors import DiskFull, LogFailed
from odradek.storage.log.partition_log import (
    AbortedTransaction,
    AppendOrigin,
    AppendResult,
    PartitionLog,
)
from odradek.storage.log.transaction_verification import VERIFICATION_DISABLED
from odradek.storage.log_manager.log_manager import LogManager
from odradek.storage.moving.replica_swap import ReplicaSwap
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from tests.support.log_managers import ONE, T0, A, B, LogManagerWorld, append
from tests.support.partition_logs import idempotent, marker
from tests.support.replica_moves import (
    NAME,
    ExpectedRecords,
    check,
    check_next_run,
    new_world,
    settled,
)

COPY = f"{B}/t-0.move/*.log"


class FilesWithSwapHook(VirtualFiles):
    """Calls a function once, before the rename of the source to `.delete` is synced."""

    def __init__(self, disk: VirtualDisk) -> None:
        super().__init__(disk)
        self.act: Callable[[], None] | None = None

    def sync_directory(self, path: Path) -> None:
        act = self.act
        if act is not None and path == A and self.exists(A / "t-0.delete"):
            self.act = None
            act()
        super().sync_directory(path)


class SwapScenario:
    """A node and a log that is moved from /a to /b."""

    def __init__(self, manager: LogManager, files: FilesWithSwapHook, log: PartitionLog) -> None:
        self.manager = manager
        self.files = files
        self.log = log
        self.expected = ExpectedRecords()
        for number in range(14):
            self.expected.write(log, f"{number} " + "x" * 50)

    def directory(self, path: Path) -> LogDirectory:
        return self.manager.registry.logs_by_directory[path].directory

    async def move(self, act: Callable[[], None]) -> None:
        """Move the log, call `act` during the swap, and return when the move is over."""
        self.files.act = act
        await self.manager.mover.move(NAME, B)
        await settled(self.manager)
        assert self.files.act is None, "the swap was not reached"

    def append_later(self) -> None:
        self.expected.write(self.log, "later append")
        check(self.log, self.expected, at_least=self.expected.acknowledged)


async def run_and_kill(
    world: LogManagerWorld, act: Callable[[SwapScenario], object]
) -> ExpectedRecords:
    """Run `act` in a node that is killed, and return the acknowledged records."""
    files = world.files = FilesWithSwapHook(world.disk)
    manager = world.manager()
    await manager.load()
    log = await manager.create(*NAME, ONE, directory_id=manager.directories.all[1].id)
    scenario = SwapScenario(manager, files, log)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(manager.run)
            await act(scenario)  # type: ignore[misc]
            nursery.cancel_scope.cancel()
    except* NodeCrashed:
        pass
    files.power.cut()
    world.disk.heal()
    world.files = VirtualFiles(world.disk)
    world.workers.power = world.files.power
    return scenario.expected


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EMFILE])
async def test_append_missing_in_future_replica_survives_kill(code: int) -> None:
    """The append was acknowledged, so the replica of the next start has it."""

    async def act(scenario: SwapScenario) -> None:
        def append_and_die() -> None:
            scenario.files.disk.fail(COPY, code, {"write"})
            scenario.expected.write(scenario.log, "in the swap")
            scenario.files.power.cut()

        await scenario.move(append_and_die)

    world = new_world()
    expected = await run_and_kill(world, act)
    assert expected.written[-1] == "in the swap"
    await check_next_run(world, expected, at_least=expected.acknowledged)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_destination_failure_in_swap_restores_source(code: int) -> None:
    async def act(scenario: SwapScenario) -> None:
        def append() -> None:
            scenario.files.disk.fail(COPY, code, {"write"}, times=1)
            scenario.expected.write(scenario.log, "in the swap")

        await scenario.move(append)
        assert scenario.log.directory == A / "t-0"
        assert scenario.manager.mover.statistics.failed == 1
        assert scenario.directory(B).failed is (code == errno.EIO)
        scenario.append_later()

    world = new_world()
    expected = await run_and_kill(world, act)
    await check_next_run(world, expected, at_least=expected.acknowledged)


@pytest.mark.parametrize("operation", ["write", "create"])
async def test_swap_without_file_descriptors_is_retried(operation: str) -> None:
    """The error occurs in an append, or when the indexes of the future replica are updated."""

    async def act(scenario: SwapScenario) -> None:
        def append() -> None:
            scenario.files.disk.fail(f"{B}/t-0.move/*", errno.EMFILE, {operation}, times=1)
            for number in range(8):  # some segments' worth
                scenario.expected.write(scenario.log, f"in the swap {number} " + "y" * 60)

        await scenario.move(append)
        assert scenario.log.directory == B / "t-0"
        assert scenario.manager.mover.statistics.moved == 1
        assert not scenario.directory(B).failed
        scenario.append_later()

    world = new_world()
    expected = await run_and_kill(world, act)
    await check_next_run(world, expected, at_least=expected.acknowledged)


async def test_unreadable_snapshot_in_swap_takes_source_offline() -> None:
    """A producer snapshot of a roll in the swap cannot be read: the source is renamed back and goes offline."""

    async def act(scenario: SwapScenario) -> None:
        def append() -> None:
            for number in range(8):
                scenario.expected.write(scenario.log, f"in the swap {number} " + "y" * 60)
            scenario.files.disk.fail(f"{A}/t-0*/*.snapshot", errno.EIO, {"read"})

        await scenario.move(append)
        assert scenario.directory(A).failed
        assert not scenario.directory(B).failed
        with pytest.raises(LogFailed):
            scenario.log.check_online()

    world = new_world()
    expected = await run_and_kill(world, act)
    await check_next_run(world, expected, at_least=expected.acknowledged)


async def test_unexpected_error_in_swap_restores_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """After any error while the source is `.delete`, it is renamed back."""

    def broken(*_: object) -> None:
        raise RuntimeError("of our own")

    async def act(scenario: SwapScenario) -> None:
        monkeypatch.setattr(ReplicaSwap, "_switch", broken)
        await scenario.move(lambda: scenario.expected.write(scenario.log, "in the swap"))
        assert scenario.log.directory == A / "t-0"
        scenario.append_later()

    world = new_world()
    expected = await run_and_kill(world, act)
    monkeypatch.undo()
    await check_next_run(world, expected, at_least=expected.acknowledged)


async def test_producer_state_survives_kill_in_swap() -> None:
    """A producer that retries without a response gets the offset of the first attempt."""

    def idempotent(log: PartitionLog, sequence: int) -> AppendResult:
        records = [Record(-1, 1_767_225_600_000, None, b"idempotent " + b"z" * 40)]
        batch = build_batch(records, producer_id=7, producer_epoch=1, base_sequence=sequence)
        return log.append_as_leader(memoryview(batch), leader_epoch=0, now_ms=1_767_225_600_000)

    first: list[int] = []

    async def act(scenario: SwapScenario) -> None:
        first.extend(idempotent(scenario.log, sequence).first_offset for sequence in range(5))

        def append_and_die() -> None:
            first.append(idempotent(scenario.log, 5).first_offset)
            scenario.files.power.cut()

        await scenario.move(append_and_die)

    world = new_world()
    await run_and_kill(world, act)
    async with world.running() as manager:
        await manager.promote_moved()
        log = manager.get(*NAME)
        assert log is not None
        assert log.directory == B / "t-0"
        again = idempotent(log, 5)
        assert (again.duplicate, again.first_offset) == (True, first[5])
        assert not idempotent(log, 6).duplicate


async def test_transaction_aborted_in_swap_survives_power_cut() -> None:
    """The segment of the transaction was sealed before the switch, so the next flush opens its copy again."""
    aborted: list[AbortedTransaction] = []

    async def act(scenario: SwapScenario) -> None:
        def abort_and_roll() -> None:
            for data in (idempotent(7, 0, transactional=True), marker(7, commit=False)):
                scenario.log.append_as_leader(
                    data,
                    leader_epoch=0,
                    now_ms=T0,
                    origin=AppendOrigin.COORDINATOR,
                    guard=VERIFICATION_DISABLED,
                )
            for _ in range(4):
                scenario.expected.write(scenario.log, "in the swap " + "y" * 80)

        await scenario.move(abort_and_roll)
        scenario.log.flush()
        await scenario.manager.checkpoint([Checkpoint.RECOVERY_POINT])
        aborted.extend(scenario.log.aborted_transactions(0, scenario.log.end_offset))
        assert len(aborted) == 1

    world = new_world()
    await run_and_kill(world, act)
    for seed in range(4):
        async with world.crashed(seed).running() as manager:
            log = manager.get(*NAME)
            assert log is not None
            assert log.aborted_transactions(0, log.end_offset) == aborted


async def test_roll_with_refused_append_in_swap_keeps_log_usable() -> None:
    """The disk of the source was full: the moved log can be read and appended to."""

    async def act(scenario: SwapScenario) -> None:
        def refused() -> None:
            scenario.files.disk.fail(f"{A}/t-0.delete/*.log", errno.ENOSPC, {"write"}, times=1)
            with pytest.raises(DiskFull):
                append(scenario.log, "refused " + "y" * 120)

        await scenario.move(refused)
        assert scenario.log.directory == B / "t-0"
        check(scenario.log, scenario.expected, at_least=scenario.expected.acknowledged)
        assert scenario.log.log_end.segment is scenario.log.segments[-1]
        scenario.append_later()

    world = new_world()
    expected = await run_and_kill(world, act)
    await check_next_run(world, expected, at_least=expected.acknowledged)
