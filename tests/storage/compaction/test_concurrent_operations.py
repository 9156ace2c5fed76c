"""Compaction of a log with concurrent reads, truncation, deletion, retention, config changes and
failures."""

from __future__ import annotations

import dataclasses
import errno
import logging
import random
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
import trio

from odradek.protocol.records.batch import batches
from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Files
from odradek.seams.workers import WorkerDied
from odradek.storage.compaction import segment_swap
from odradek.storage.compaction.cleaner_settings import CleanerSettings
from odradek.storage.compaction.compaction_pass import PRODUCERS_PER_STEP, CompactionPass
from odradek.storage.compaction.compaction_plan import CompactionProgress, SegmentReplacement
from odradek.storage.compaction.log_cleaner import LogCleaner
from odradek.storage.log.partition_log import (
    AbortedTransaction,
    AppendOrigin,
    LogRead,
    PartitionLog,
)
from odradek.storage.log.producer_state import ProducerEntry
from odradek.storage.log.segment import Segment
from odradek.storage.log.transaction_verification import VERIFICATION_DISABLED
from odradek.storage.log_manager.log_manager import LogManager
from odradek.storage.throttle import Throttle
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_disk import DiskFault
from tests.storage.compaction.compacted_logs import check_files
from tests.storage.compaction.random_log_content import COMPACTED, History, content
from tests.support.log_managers import ONE, A, LogManagerWorld, append_keyed
from tests.support.partition_logs import idempotent, marker

A_ = TypeVar("A_")
T = TypeVar("T")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def world(clock: VirtualClock) -> LogManagerWorld:
    return LogManagerWorld(paths=(A,), clock=clock, configs={"t": COMPACTED})


@dataclass
class Interruption:
    """Workers that call a function at a chosen step of a pass, before the broker receives the
    step."""

    workers: object
    act: Callable[[], Awaitable[object]]
    kind: type[object] = CompactionProgress
    skip: int = 0
    steps: list[object] = field(default_factory=list)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Interruption]:
        async with self.workers.open():  # type: ignore[attr-defined]
            yield self

    async def run(
        self, work: Callable[[Files, A_], Iterator[T]], argument: A_
    ) -> AsyncGenerator[T, None]:
        async with aclosing(self.workers.run(work, argument)) as steps:  # type: ignore[attr-defined]
            async for step in steps:
                self.steps.append(step)
                if isinstance(step, self.kind):
                    if not self.skip:
                        await self.act()
                    self.skip -= 1
                yield step


@asynccontextmanager
async def begun(world: LogManagerWorld) -> AsyncIterator[tuple[LogManager, PartitionLog]]:
    """A due log with several groups of segments."""
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        history = History(log, random.Random(4), world.clock, keys=6)
        history.go_on(80)
        history.seal()
        yield manager, log


async def interrupted(
    manager: LogManager, act: Callable[[], Awaitable[object]], **where: object
) -> Interruption:
    log_cleaner = manager.log_cleaner
    assert log_cleaner is not None
    interruption = Interruption(log_cleaner.workers, act, **where)  # type: ignore[arg-type]
    log_cleaner.workers = interruption
    try:
        await log_cleaner.clean_due_logs(passes_max=1)
    finally:
        log_cleaner.workers = interruption.workers  # type: ignore[assignment]
    return interruption


POINTS: list[dict[str, object]] = [
    {"kind": CompactionProgress},
    {"kind": CompactionProgress, "skip": 4},
    {"kind": SegmentReplacement},
    {"kind": SegmentReplacement, "skip": 1},
]


@pytest.mark.parametrize("where", POINTS)
async def test_truncation_aborts_cleaning(world: LogManagerWorld, where: dict[str, object]) -> None:
    async with begun(world) as (manager, log):
        cut = log.segments[-2].base_offset + 1

        async def truncate() -> None:
            log.truncate_to(cut)

        await interrupted(manager, truncate, **where)
        assert manager.log_cleaner is not None
        assert manager.log_cleaner.statistics.aborted == 1
        assert log.end_offset <= cut
        assert log.cleaned_to == 0
        check_files(world, log)
        # The next pass compacts later appends.
        history = History(log, random.Random(5), world.clock, keys=6)
        append_keyed(log, {b"new": b"value"}, now_ms=world.clock.wall_ms())
        history.seal()
        await manager.log_cleaner.clean_due_logs()
        assert content(log)[-1].records[0].key == b"new"
        check_files(world, log)


@pytest.mark.parametrize("where", POINTS)
async def test_topic_deletion_aborts_cleaning(
    world: LogManagerWorld, where: dict[str, object]
) -> None:
    async with begun(world) as (manager, _):

        async def delete() -> None:
            await manager.delete(TopicPartition("t", 0))

        await interrupted(manager, delete, **where)
        assert manager.log_cleaner is not None
        assert manager.log_cleaner.statistics.aborted == 1
        assert not world.failures
        # A new log of that name is compacted.
        again = await manager.create("t", 0, ONE)
        history = History(again, random.Random(6), world.clock)
        history.go_on(20)
        history.seal()
        assert await manager.log_cleaner.clean_due_logs() == 1


@pytest.mark.parametrize("where", POINTS)
async def test_rename_to_stray_aborts_cleaning(
    world: LogManagerWorld, where: dict[str, object]
) -> None:
    async with begun(world) as (manager, _):

        async def set_aside() -> None:
            assert await manager.rename_stray_logs(lambda name, topic_id: True)

        await interrupted(manager, set_aside, **where)
        assert manager.log_cleaner is not None
        assert manager.log_cleaner.statistics.aborted == 1
        assert manager.log_cleaner.statistics.uncleanable == 0
        assert not world.failures
        assert len(manager.online_directories()) == 1
        await manager.create("t", 0, ONE)  # the name and the directory are free


async def test_last_batches_of_many_producers_are_collected_in_parts(
    world: LogManagerWorld,
) -> None:
    async with begun(world) as (manager, log):
        many = range(10_000, 14_000)
        log.producers.active.update({each: ProducerEntry(each, epoch=3) for each in many})
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        dirty_range = await manager.log_cleaner._find_dirty_range(log, world.clock.wall_ms())  # type: ignore[union-attr]
        assert dirty_range is not None
        one = CompactionPass(
            manager.services, log, dirty_range, CleanerSettings(), manager.log_cleaner._entropy
        )  # type: ignore[union-attr]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_turns)
            found = await one._last_batches()
            nursery.cancel_scope.cancel()
        assert turns >= len(many) // PRODUCERS_PER_STEP // 2  # either task may run first
        assert set(found.producer_ids) >= set(many)


@pytest.mark.parametrize("where", POINTS[:2])
async def test_retention_of_planned_segments_aborts_cleaning(
    world: LogManagerWorld, where: dict[str, object]
) -> None:
    world.configs["t"] = dataclasses.replace(
        COMPACTED, cleanup_policy=("compact", "delete"), retention_bytes=20_000
    )
    async with begun(world) as (manager, log):

        async def retain() -> None:
            log.update_config(dataclasses.replace(log.config, retention_bytes=5000))
            assert log.delete_expired(world.clock.wall_ms()) > 0

        await interrupted(manager, retain, **where)
        assert manager.log_cleaner is not None
        assert manager.log_cleaner.statistics.aborted == 1
        log.remove_deleted(world.clock.wall_ms())
        check_files(world, log)
        await manager.log_cleaner.clean_due_logs()
        assert log.cleaned_to == log.segments[-1].base_offset


async def test_delete_records_within_segment_does_not_abort_cleaning(
    world: LogManagerWorld,
) -> None:
    async with begun(world) as (manager, log):

        async def delete_records() -> None:
            log.advance_log_start(log.segments[3].base_offset + 1, "asked for")

        await interrupted(manager, delete_records)
        assert log.cleaned_to == log.segments[-1].base_offset


async def test_appends_and_rolls_do_not_abort_cleaning(world: LogManagerWorld) -> None:
    async with begun(world) as (manager, log):
        end = log.segments[-1].base_offset

        async def append() -> None:
            append_keyed(log, {b"k": b"v"}, now_ms=world.clock.wall_ms())
            log.roll()

        await interrupted(manager, append)
        assert log.cleaned_to == end
        assert content(log)[-1].records[0].value == b"v"
        check_files(world, log)


async def test_cleanup_policy_without_compact_aborts_cleaning(world: LogManagerWorld) -> None:
    async with begun(world) as (manager, log):

        async def change() -> None:
            log.update_config(dataclasses.replace(COMPACTED, cleanup_policy=("delete",)))

        await interrupted(manager, change)
        assert log.cleaned_to == 0


async def test_slices_pinned_before_cleaning_keep_their_content(world: LogManagerWorld) -> None:
    async with begun(world) as (manager, log):
        read = log.read(0, 1 << 20, limit=log.end_offset)
        assert read.slice is not None
        before = read.slice.read()
        assert manager.log_cleaner is not None
        await manager.log_cleaner.clean_due_logs()
        log.remove_deleted(world.clock.wall_ms() + 1)
        assert read.slice.read() == before
        assert len(list(batches(memoryview(before), check=True, allow_partial=True))) > 2
        read.slice.file.unpin()


@asynccontextmanager
async def with_aborted_transaction(
    world: LogManagerWorld,
) -> AsyncIterator[tuple[LogCleaner, PartitionLog]]:
    """Two segments that compaction merges into one; the second has the aborted records, from
    offset 10 on."""
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        for number in range(10):
            append_keyed(log, {b"key %d" % number: b"x" * 60})
        log.roll()
        now_ms = world.clock.wall_ms()
        aborted = idempotent(7, 0, 3, transactional=True)
        log.append_as_leader(aborted, leader_epoch=0, now_ms=now_ms, guard=VERIFICATION_DISABLED)
        log.append_as_leader(
            marker(7, commit=False), leader_epoch=0, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
        )
        log.advance_high_watermark(log.end_offset)
        log.roll()
        log.flush()
        assert manager.log_cleaner is not None
        yield manager.log_cleaner, log
        assert manager.log_cleaner.statistics.passes == 1
        assert len(log.segments) == 2


def check_committed(log: PartitionLog, act: Callable[[], object]) -> None:
    """Check that a read_committed reader receives the aborted transactions of its records if
    `act` runs between the read and the lookup of the transactions."""
    collect = log.aborted_in

    def act_first(read: LogRead, *, nowait: bool = False) -> Sequence[AbortedTransaction]:
        del log.aborted_in  # type: ignore[method-assign]
        act()
        return collect(read, nowait=nowait)

    log.aborted_in = act_first  # type: ignore[method-assign]
    read, aborted = log.read_committed(10, 1 << 20, limit=log.end_offset)
    assert read.slice is not None
    found = list(batches(memoryview(read.slice.read()), check=True))
    read.slice.file.unpin()
    assert [each.producer_id for each in found] == [7] * len(found)
    assert [(each.producer_id, each.first_offset) for each in aborted] == [(7, 10)]


async def test_cleaning_between_read_and_transaction_index_lookup_keeps_aborted_transactions(
    world: LogManagerWorld,
) -> None:
    async with with_aborted_transaction(world) as (log_cleaner, log):

        def compact() -> None:
            assert trio.from_thread.run(log_cleaner.clean_due_logs) == 1

        await trio.to_thread.run_sync(check_committed, log, compact)


async def test_swap_between_read_and_transaction_index_lookup_keeps_aborted_transactions(
    world: LogManagerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = segment_swap.replace_in_segment_list

    def show_between(log: PartitionLog, old: Sequence[Segment], fresh: Segment) -> None:
        check_committed(log, lambda: show(log, old, fresh))

    monkeypatch.setattr(segment_swap, "replace_in_segment_list", show_between)
    async with with_aborted_transaction(world) as (log_cleaner, _):
        assert await log_cleaner.clean_due_logs() == 1


async def test_corrupt_log_becomes_uncleanable_and_is_logged_once(
    world: LogManagerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async with begun(world) as (manager, log):
        victim = log.segments[2].path(".log")
        file = world.files.open(victim, write=True)
        file.write_at(100, bytes([file.read_at(100, 1)[0] ^ 1]))
        names = world.names(log.directory)
        assert manager.log_cleaner is not None
        with caplog.at_level(logging.ERROR):
            assert await manager.log_cleaner.clean_due_logs() == 1
            assert await manager.log_cleaner.clean_due_logs() == 0
        assert (
            caplog.text.count("error when cleaning log t-0. Marking the partition as uncleanable")
            == 1
        )
        assert world.names(log.directory) == names
        assert manager.log_cleaner.statistics.uncleanable == 1
        assert log.failure is None


async def test_full_disk_leaves_log_unchanged_and_directory_online(world: LogManagerWorld) -> None:
    async with begun(world) as (manager, log):
        before, names = content(log), world.names(log.directory)
        world.disk.fail("*.cleaned", errno.ENOSPC, ["write"])
        assert manager.log_cleaner is not None
        assert await manager.log_cleaner.clean_due_logs() == 1  # the next round retries
        assert content(log) == before
        assert world.names(log.directory) == names
        assert not world.failures
        world.disk.heal()
        assert await manager.log_cleaner.clean_due_logs() == 1
        assert content(log) != before


class Exhaustion:
    """After it begins, one operation on names fails without a file descriptor, after a number of
    successful ones."""

    def __init__(self, world: LogManagerWorld, passes: int) -> None:
        self._disk, self._passes = world.disk, passes
        self._fault: DiskFault | None = None

    async def begin(self) -> None:
        operations = {"rename", "remove", "sync"}
        self._fault = self._disk.fail(
            "*/t-0*", errno.EMFILE, operations, passes=self._passes, times=1
        )

    @property
    def failed(self) -> int:
        return 0 if self._fault is None else self._fault.failed


async def test_swap_without_file_descriptors_completes_or_reverts_or_takes_log_offline() -> None:
    """Otherwise the log would keep segments that are unlinked later, or a `.swap` file that
    replaces later appends at the next start."""
    passes, failed, lost, undone = 0, 1, 0, 0
    while failed:
        world = LogManagerWorld(paths=(A,), clock=VirtualClock(), configs={"t": COMPACTED})
        async with world.running() as manager:
            log = await manager.create("t", 0, ONE)
            for number in range(40):
                append_keyed(log, {b"k%d" % (number % 7): bytes(90)}, now_ms=number)
            log.advance_high_watermark(log.end_offset)
            log.roll()
            log.flush()
            latest = latest_of(log)
            exhaustion = Exhaustion(world, passes)
            await interrupted(manager, exhaustion.begin, kind=SegmentReplacement)
            world.disk.heal()
            failed, passes = exhaustion.failed, passes + 1
            if log.failure is not None:
                lost += 1
            else:
                log.remove_deleted(world.clock.wall_ms() + 10**9)
                assert latest_of(log) == latest, f"operation {passes}"
                undone += failed
                assert not [each for each in world.names(log.directory) if ".swap" in each]
        async with world.running() as manager:
            again = manager.get("t", 0)
            assert again is not None
            assert latest_of(again) == latest, f"operation {passes}"
            check_files(world, again)
        assert not world.failures  # the directory stays online
    assert lost
    assert undone


def latest_of(log: PartitionLog) -> dict[bytes | None, int]:
    """Offset of the last record of each key."""
    return {record.key: record.offset for batch in content(log) for record in batch.records}


async def test_dead_worker_is_replaced_after_backoff(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    world.cleaner = CleanerSettings(backoff_ms=1000)
    async with begun(world) as (manager, log), trio.open_nursery() as nursery:
        assert manager.log_cleaner is not None
        world.workers.deaths = 1
        nursery.start_soon(manager.log_cleaner.run)
        await clock.run_for(0.5)
        assert log.cleaned_to == 0
        assert world.workers.opened == 1
        await clock.run_for(3)
        assert log.cleaned_to == log.segments[-1].base_offset
        nursery.cancel_scope.cancel()


async def test_changed_cleaner_settings_apply_while_running(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    world.cleaner = CleanerSettings(backoff_ms=1000, enable=False)
    async with begun(world) as (manager, log), trio.open_nursery() as nursery:
        assert manager.log_cleaner is not None
        nursery.start_soon(manager.log_cleaner.run)
        await clock.run_for(10)
        assert world.workers.opened == 0
        world.cleaner = CleanerSettings(backoff_ms=1000, threads=2, io_max_bytes_per_second=5000)
        await clock.run_for(3)
        assert log.cleaned_to == 0  # reading about 30 kB twice takes longer
        await clock.run_for(20)
        assert log.cleaned_to == log.segments[-1].base_offset
        nursery.cancel_scope.cancel()


async def test_shorter_backoff_applies_immediately(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    world.cleaner = CleanerSettings(backoff_ms=3_600_000, enable=False)
    async with begun(world) as (manager, log), trio.open_nursery() as nursery:
        assert manager.log_cleaner is not None
        nursery.start_soon(manager.log_cleaner.run)
        await clock.run_for(1)
        world.cleaner = CleanerSettings(backoff_ms=100)
        manager.update_configs()
        await clock.run_for(1)
        assert log.cleaned_to == log.segments[-1].base_offset
        nursery.cancel_scope.cancel()


async def test_worker_that_cannot_be_started_does_not_stop_the_log_cleaner(
    world: LogManagerWorld, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Nowhere:
        def open(self) -> object:
            raise WorkerDied("no worker process can be started: out of memory")

    async with begun(world) as (manager, _), trio.open_nursery() as nursery:
        assert manager.log_cleaner is not None
        manager.log_cleaner.workers = Nowhere()  # type: ignore[assignment]
        nursery.start_soon(manager.log_cleaner.run)
        await clock.run_for(40)
        assert caplog.text.count("out of memory") >= 2
        nursery.cancel_scope.cancel()


async def test_throttle_limits_bytes_per_second(clock: VirtualClock) -> None:
    throttle = Throttle(clock, lambda: 1000)
    done: list[float] = []

    async def pay() -> None:
        for size in (500, 1000, 0):
            await throttle.pay(size)
            done.append(clock.monotonic())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pay)
        await clock.run_for(2)
    assert done == pytest.approx([0.5, 1.5, 1.5])


async def test_logs_are_cleaned_once_each_by_descending_dirty_ratio(world: LogManagerWorld) -> None:
    world.configs |= {"u": COMPACTED, "v": COMPACTED}
    async with world.running() as manager:
        for topic, clean in (("t", 3), ("u", 1), ("v", 2)):
            log = await manager.create(topic, 0, ONE)
            history = History(log, random.Random(1), world.clock, keys=40)
            for number in range(clean + 1):
                history.go_on(20)
                history.seal()
                if number < clean:
                    log.cleaned_to = log.segments[-1].base_offset
        assert manager.log_cleaner is not None
        order: list[str] = []
        for _ in range(3):
            cleaned_to = {log.topic: log.cleaned_to for log in manager.logs()}
            assert await manager.log_cleaner.clean_due_logs(passes_max=1) == 1
            for log in manager.logs():
                if log.cleaned_to != cleaned_to[log.topic]:
                    assert log.cleaned_to == log.segments[-1].base_offset
                    order.append(log.topic)
        assert order == ["u", "v", "t"]
        assert await manager.log_cleaner.clean_due_logs() == 0


async def test_cleaner_checkpoint_survives_restart(world: LogManagerWorld) -> None:
    async with begun(world) as (manager, log):
        assert manager.log_cleaner is not None
        await manager.log_cleaner.clean_due_logs()
        cleaned_to = log.cleaned_to
        assert world.read(A / "cleaner-offset-checkpoint") == f"0\n1\nt 0 {cleaned_to}\n"
    async with world.running() as manager:
        again = manager.get("t", 0)
        assert again is not None
        assert again.cleaned_to == cleaned_to
        assert manager.log_cleaner is not None
        assert await manager.log_cleaner.clean_due_logs() == 0


async def test_concurrent_readers_in_threads_read_whole_batches_during_cleaning(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    world.threads = True
    done = False

    def read_on(log: PartitionLog) -> int:
        rounds = 0
        while not done or not rounds:
            last = -1
            for batch in content(log):  # checks every CRC
                assert batch.base_offset > last
                last = batch.last_offset
            assert last == log.end_offset - 1
            rounds += 1
        return rounds

    async with begun(world) as (manager, log), trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, read_on, log)
        nursery.start_soon(trio.to_thread.run_sync, read_on, log)
        assert manager.log_cleaner is not None
        for _ in range(8):
            log.cleaned_to = None
            assert await manager.log_cleaner.clean_due_logs() == 1
        done = True
        check_files(world, log)


async def test_cleaned_files_that_cannot_be_removed_leave_log_online(
    world: LogManagerWorld,
) -> None:
    """A `.cleaned` file has no effect; the next swap removes it."""
    async with begun(world) as (manager, log):
        before = content(log)

        async def exhaust() -> None:
            world.disk.fail("*.cleaned", errno.EMFILE, {"rename", "remove"})

        await interrupted(manager, exhaust, kind=SegmentReplacement)
        assert log.failure is None
        assert content(log) == before
        assert [each for each in world.names(log.directory) if each.endswith(".cleaned")]
        world.disk.heal()
        assert manager.log_cleaner is not None
        await manager.log_cleaner.clean_due_logs()
        check_files(world, log)
    assert not world.failures
