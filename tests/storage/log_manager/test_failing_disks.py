"""A disk fails at the nth operation of a kind; the other log directory is not affected, and no
record is lost. One scripted run of a node with two log directories, which an earlier run has
closed cleanly. Each directory has a plain log, a compacted one, one that is truncated, and one
that is deleted and recreated, while background tasks run. The run is repeated, each time with a
failure of one kind of operation on B at another place, once or permanently. No request to A
fails, and A stays online. A request to B succeeds or raises a storage error. B goes offline and
stays offline, or stays online (a full disk where the operation was undone). The next run on the
repaired disk has every acknowledged record, and closes cleanly."""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from odradek.protocol.topics import TopicPartition
from odradek.storage.errors import StorageError
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager, LogManagerIntervals
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_disk import OPERATIONS, VirtualDisk
from tests.support.log_managers import (
    T0,
    UUID,
    A,
    B,
    LogManagerWorld,
    append,
    append_keyed,
    contents,
)

SMALL = {"internal_segment_bytes": 400, "index_interval_bytes": 100, "file_delete_delay_ms": 2_000}
PLAIN = LogConfig(**SMALL)
SHORT = LogConfig(**SMALL, retention_bytes=1_500)
COMPACTED = LogConfig(
    **SMALL, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01
)
EVERY = LogManagerIntervals(
    initial_delay_ms=100,
    retention_check_ms=700,
    recovery_point_ms=500,
    log_start_ms=600,
    high_watermark_ms=400,
    deleted_segments_ms=900,
)
ROUNDS = 6
PLACES, MORE_PLACES = 2, 8
"""Number of operations of a kind that fail, spread evenly over a run; in the slow test."""


@dataclass
class DirectoryExpectation:
    """Acknowledged records of one log directory."""

    name: str
    path: object
    runs: int = 0
    """Runs so far; makes the values of each run different."""
    refusals: list[Exception] = field(default_factory=list)
    acknowledged: dict[str, list[str]] = field(default_factory=dict)
    by_key: dict[bytes, bytes] = field(default_factory=dict)
    uncertain: dict[bytes, list[bytes]] = field(default_factory=dict)
    """Values of refused appends since then; the log may contain them."""

    def attempt(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except StorageError as error:
            self.refusals.append(error)
            return False
        return True

    def write(self, topic: str, log: PartitionLog, value: str) -> None:
        if self.attempt(lambda: append(log, value)):
            self.acknowledged.setdefault(topic, []).append(value)

    def write_keyed(self, log: PartitionLog, key: bytes, value: bytes) -> None:
        self.uncertain.setdefault(key, []).append(value)
        if self.attempt(lambda: append_keyed(log, {key: value})):
            self.by_key[key] = value
            del self.uncertain[key]
            self.acknowledged.setdefault("c", [])


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


CONFIGS = {"c-a": COMPACTED, "c-b": COMPACTED, "short-a": SHORT, "short-b": SHORT}
Before = tuple[VirtualDisk, list[DirectoryExpectation]]
"""Disk after an earlier run, and the records that it acknowledged."""


def new_world(clock: VirtualClock, disk: VirtualDisk | None = None) -> LogManagerWorld:
    return LogManagerWorld(
        disk or VirtualDisk(), clock=clock, intervals=EVERY, configs={**CONFIGS}, default=PLAIN
    )


@pytest.fixture
async def before(clock: VirtualClock) -> Before:
    """The earlier run."""
    world = new_world(clock)
    world.disk.mount(B)
    both = await run(world, expectations())
    assert [expected.refusals for expected in both] == [[], []]
    return world.disk, both


def after(
    clock: VirtualClock, before: Before
) -> tuple[LogManagerWorld, list[DirectoryExpectation]]:
    """A copy of the world in which all writes are synced, like the result of a power failure."""
    disk, both = before
    return new_world(clock, disk.crash(0)), copy.deepcopy(both)


async def use_logs(
    world: LogManagerWorld, manager: LogManager, expectations: list[DirectoryExpectation]
) -> None:
    logs: dict[tuple[str, str], PartitionLog] = {}
    for expected in expectations:
        directory_logs = next(
            each for each in manager.directories.all if each.path == expected.path
        )
        for number, topic in enumerate(("t", "c", "short", "cut", "gone")):
            id = UUID(int=1000 + number + 100 * (expected.path == B))
            try:
                logs[expected.name, topic] = await manager.create(
                    f"{topic}-{expected.name}",
                    0,
                    id,
                    is_new=topic not in expected.acknowledged,
                    directory_id=directory_logs.id,
                )
            except StorageError as error:
                expected.refusals.append(error)
    for number in range(ROUNDS):
        for expected in expectations:
            for at in range(4):
                stamp = f"{expected.runs}.{number}.{at}"
                for topic in ("t", "short", "cut", "gone"):
                    if (expected.name, topic) in logs:
                        expected.write(topic, logs[expected.name, topic], f"{stamp} {'x' * 50}")
                if (expected.name, "c") in logs:
                    key = b"k%d" % (at % 3)
                    expected.write_keyed(logs[expected.name, "c"], key, stamp.encode() + b"y" * 50)
            await read_and_truncate(manager, expected, logs, number)
        await world.clock.run_for(1.1)


async def read_and_truncate(
    manager: LogManager,
    expected: DirectoryExpectation,
    logs: dict[tuple[str, str], PartitionLog],
    number: int,
) -> None:
    for topic in ("t", "c", "short"):
        if (expected.name, topic) in logs:
            log = logs[expected.name, topic]
            for read in (
                lambda log: log.last_stable_offset,
                lambda log: log.find_timestamp(T0),
                lambda log: log.max_timestamp(),
                lambda log: log.aborted_transactions(log.log_start_offset, log.end_offset),
            ):
                expected.attempt(partial(read, log))
            try:
                contents(log)
            except StorageError as error:
                expected.refusals.append(error)
            except OSError as error:  # a slice is read when it is sent
                manager.report_at(log.directory / "x", error)
    if number == 2 and (expected.name, "cut") in logs:
        cut = logs[expected.name, "cut"]
        offset = cut.end_offset - 3
        expected.attempt(lambda: cut.truncate_to(offset))
        expected.acknowledged["cut"] = expected.acknowledged.get("cut", [])[:offset]
    if number == 3 and (expected.name, "gone") in logs:
        del logs[expected.name, "gone"]
        expected.acknowledged.pop("gone", None)
        try:
            await manager.delete(TopicPartition(f"gone-{expected.name}", 0))
        except StorageError as error:
            expected.refusals.append(error)


def expectations() -> list[DirectoryExpectation]:
    return [DirectoryExpectation("a", A), DirectoryExpectation("b", B)]


async def run(
    world: LogManagerWorld, both: list[DirectoryExpectation]
) -> list[DirectoryExpectation]:
    for expected in both:
        expected.runs += 1
    async with world.running(housekeeping=True) as manager:
        await use_logs(world, manager, both)
        on_a, on_b = both
        assert on_a.refusals == []
        assert not manager.directories.all[0].failed
        if any("offline" in str(refused) for refused in on_b.refusals):
            assert manager.directories.all[1].failed
    return both


async def check_next_run(world: LogManagerWorld, both: list[DirectoryExpectation]) -> None:
    async with world.running(housekeeping=True) as manager:
        assert not any(directory.failed for directory in manager.directories.all)
        for expected in both:
            for topic, values in expected.acknowledged.items():
                log = manager.get(f"{topic}-{expected.name}", 0)
                if values:
                    assert log is not None, f"{topic}-{expected.name} is gone"
                    check_log(log, values)
            log = manager.get(f"c-{expected.name}", 0)
            if log is not None:
                check_compacted(log, expected)
        await world.clock.run_for(3)
        for log in manager.logs():
            append_keyed(log, {b"k": b"later append"})


def check_log(log: PartitionLog, acknowledged: list[str]) -> None:
    """Check all records from the log start offset on; only refused batches may be in between."""
    found = contents(log)
    if log.topic.startswith("short"):  # retention may have deleted the oldest
        kept = [value for value in found if value in acknowledged]
        assert kept == acknowledged[len(acknowledged) - len(kept) :]
        return
    if log.topic.startswith("cut"):
        found = [value for value in found if value in acknowledged]
    assert found[: len(acknowledged)] == acknowledged


def check_compacted(log: PartitionLog, expected: DirectoryExpectation) -> None:
    last = dict(keyed_contents(log))
    for key, value in expected.by_key.items():
        assert last[key] in (value, *expected.uncertain.get(key, ()))


def keyed_contents(log: PartitionLog) -> list[tuple[bytes, bytes]]:
    from odradek.protocol.records.batch import batches
    from odradek.protocol.records.records import decode

    found = []
    offset = log.log_start_offset
    while offset < log.end_offset:
        read = log.read(offset, 1 << 20, limit=log.end_offset)
        if read.slice is None:
            break
        data = read.slice.read()
        read.slice.file.unpin()
        for batch in batches(memoryview(data)):
            found += [(record.key or b"", record.value or b"") for record in decode(batch)]
            offset = batch.last_offset + 1
    return found


async def count_operations_on_b(clock: VirtualClock, before: Before) -> dict[str, int]:
    """Number of operations of each kind on B."""
    world, both = after(clock, before)
    counting = {
        operation: world.disk.fail("/b*", operations={operation}, passes=1_000_000)
        for operation in sorted(OPERATIONS)
    }
    await run(world, both)
    return {operation: 1_000_000 - fault.passes for operation, fault in counting.items()}


def places(total: int, most: int) -> list[int]:
    most = min(most, total)
    return sorted({round(n * (total - 1) / max(1, most - 1)) for n in range(most)})


async def test_run_without_failures_keeps_all_records_and_uses_every_operation(
    clock: VirtualClock, before: Before
) -> None:
    counts = await count_operations_on_b(clock, before)
    assert {each for each, count in counts.items() if count < 5} <= {"list"}
    world, both = after(clock, before)
    await run(world, both)
    assert [expected.refusals for expected in both] == [[], []]
    await check_next_run(world, both)
    assert world.failures == []


KINDS = [(operation, errno.EIO) for operation in sorted(OPERATIONS)] + [
    (operation, errno.ENOSPC) for operation in ("create", "rename", "sync", "write")
]


@pytest.mark.parametrize(("operation", "error"), KINDS)
@pytest.mark.parametrize("most", [PLACES, pytest.param(MORE_PLACES, marks=pytest.mark.slow)])
async def test_failure_of_nth_operation_loses_nothing(
    operation: str, error: int, most: int, clock: VirtualClock, before: Before
) -> None:
    total = (await count_operations_on_b(clock, before))[operation]
    for number in places(total, most):
        for times in (1, 10**9):
            world, both = after(clock, before)
            world.disk.fail("/b*", error, {operation}, passes=number, times=times)
            try:
                await one_failure(world, both)
            except BaseException as failure:
                failure.add_note(f"{operation} {number} of {total} fails with {error}, {times}x")
                raise


async def one_failure(world: LogManagerWorld, both: list[DirectoryExpectation]) -> None:
    await run(world, both)
    world.disk.heal()
    world.failures.clear()
    await check_next_run(world, both)
