"""Moves between two log directories on virtual disks: served records, files, and reported progress."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
import trio

from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.topics import TopicPartition
from odradek.seams.files import File, OutOfDescriptors, Path
from odradek.storage.directories import names
from odradek.storage.errors import (
    CordonedDirectory,
    DiskFull,
    LogFailed,
    NameTooLong,
    ReplicaNotAvailable,
    UnknownDirectory,
)
from odradek.storage.log.partition_log import AppendResult, PartitionLog
from odradek.storage.log.producer_state import BatchMetadata, ProducerEntry
from odradek.storage.log.segment import Segment
from odradek.storage.log.truncation import EmptyLogStart
from odradek.storage.log_manager.log_manager import LogManager
from odradek.storage.moving import future_replica
from odradek.storage.moving.future_replica import FutureReplica
from odradek.storage.moving.move_states import MoveState
from odradek.storage.moving.mover import MoverSettings
from odradek.testing.virtual_clock import VirtualClock
from tests.support.log_managers import ONE, TWO, A, B, LogManagerWorld, append, contents
from tests.support.replica_moves import hold_moves
from tests.support.waiting import wait_until_async

C, M = Path("/c"), Path("/m")
T_MS = 1_767_225_600_000
T0 = TopicPartition("t", 0)
MOVE = "t-0.move"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def world() -> LogManagerWorld:
    return LogManagerWorld()


@asynccontextmanager
async def running(world: LogManagerWorld) -> AsyncIterator[tuple[LogManager, PartitionLog]]:
    """Run a node with a log of several segments in /a."""
    async with world.running(housekeeping=True) as manager:
        a = manager.registry.logs_by_directory[A].directory
        log = await manager.create("t", 0, ONE, directory_id=a.id)
        for number in range(30):
            append(log, f"value {number} of some length", f"{number} more")
        assert len(log.segments) > 5
        yield manager, log


async def moved(manager: LogManager) -> None:
    """Wait until all moves are over."""
    await wait_until_async(lambda: not manager.mover.moves(), pause=0.001)


async def test_moved_replica_serves_reads_and_appends(world: LogManagerWorld) -> None:
    """J-05, J-09."""
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


async def grown(log: PartitionLog, count: int = 5) -> None:
    for number in range(count):
        append(log, f"grown {number} " + "z" * 60)


async def test_cancelled_move_removes_future_replica(world: LogManagerWorld) -> None:
    """J-02."""
    async with running(world) as (manager, log):
        before = contents(log)
        hold_moves(manager.mover)
        await manager.mover.move(T0, B)
        (status,) = manager.mover.moves()
        assert (status.state, status.copied_bytes) == (MoveState.QUEUED, 0)
        assert status.offset_lag == log.end_offset
        assert (status.source, status.destination) == (A, B)
        await manager.mover.cancel(T0)
        assert manager.mover.moves() == []
        assert MOVE not in world.names(B)
        await manager.mover.cancel(T0)  # there is no move
        assert contents(log) == before
        assert log.directory == A / "t-0"
        assert manager.mover.statistics.cancelled == 1


@pytest.mark.parametrize("operation", ["rename", "sync"])
async def test_cancellation_without_file_descriptors_is_retried(
    clock: VirtualClock, operation: str
) -> None:
    """J-02: otherwise the next start would continue the cancelled move."""
    world = LogManagerWorld(paths=(M, A, B), clock=clock)
    async with running(world) as (manager, _):
        hold_moves(manager.mover)
        await manager.mover.move(T0, B)
        path = f"{B}/t-0.move" if operation == "rename" else str(B)
        fault = world.disk.fail(path, errno.EMFILE, {operation}, times=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.mover.cancel, T0)
            await clock.run_for(2)
        assert fault.failed
        assert [name for name in world.names(B) if name.startswith("t-0")] == []


async def test_move_cancelled_while_copying_removes_future_replica(world: LogManagerWorld) -> None:
    async with running(world) as (manager, log):
        world.mover = MoverSettings(bytes_per_second=1)
        await manager.mover.move(T0, B)
        await wait_until_async(lambda: manager.mover.moves()[0].copied_bytes > 0, pause=0.001)
        assert manager.mover.moves()[0].state is MoveState.COPYING
        await manager.mover.cancel(T0)
        assert MOVE not in world.names(B)
        assert log.directory == A / "t-0"
        assert len(contents(log)) == 60


async def test_move_to_another_directory_replaces_the_current_move(world: LogManagerWorld) -> None:
    world.paths = (A, B, C)
    async with running(world) as (manager, log):
        hold_moves(manager.mover)
        await manager.mover.move(T0, B)
        await manager.mover.move(T0, B)  # the same destination: no change
        assert [status.destination for status in manager.mover.moves()] == [B]
        await manager.mover.move(T0, C)
        assert [status.destination for status in manager.mover.moves()] == [C]
        assert MOVE not in world.names(B)
        await manager.mover.move(T0, A)  # the current directory: only cancelled
        assert manager.mover.moves() == []
        assert log.directory.parent == A


async def test_moves_beyond_thread_limit_are_queued(world: LogManagerWorld) -> None:
    """J-06."""
    async with running(world) as (manager, log):
        other = await manager.create("u", 0, TWO, directory_id=manager.directories.all[0].id)
        append(other, "x" * 100)
        world.mover = MoverSettings(threads=1, bytes_per_second=1)
        await manager.mover.move(T0, B)
        await manager.mover.move(TopicPartition("u", 0), B)
        await wait_until_async(
            lambda: manager.mover.moves()[0].state is MoveState.COPYING, pause=0.001
        )
        assert manager.mover.moves()[1].state is MoveState.QUEUED
        world.mover = MoverSettings(threads=2)  # at run time
        manager.update_configs()
        await moved(manager)
        assert (log.directory.parent, other.directory.parent) == (B, B)


def test_default_thread_count_is_number_of_directories(world: LogManagerWorld) -> None:
    """J-06."""
    world.paths = (A, B, C)
    manager = world.manager()
    assert manager.mover.threads == 3
    manager.directories.close()


async def test_throttle_limits_all_moves_together_within_5_percent(clock: VirtualClock) -> None:
    """J-07."""
    world = LogManagerWorld(clock=clock)
    async with running(world) as (manager, log):
        other = await manager.create("u", 0, TWO, directory_id=manager.directory_of(log).id)
        for number in range(30):
            append(other, f"value {number} of some length", f"{number} more")
        size = log.size_bytes + other.size_bytes
        world.mover = MoverSettings(bytes_per_second=size // 20)
        async with trio.open_nursery() as nursery:
            began = clock.monotonic()
            for name in (T0, TopicPartition("u", 0)):
                nursery.start_soon(manager.mover.move, name, B)
            await clock.run_for(1)
        while manager.mover.moves():
            await clock.run_for(0.1)
        assert 19 <= clock.monotonic() - began <= 21


async def test_old_directory_is_removed_after_delete_delay(clock: VirtualClock) -> None:
    """J-10."""
    world = LogManagerWorld(clock=clock)
    async with running(world) as (manager, log):
        await manager.mover.move(T0, B)
        await clock.settle()
        assert not manager.mover.moves()
        await clock.run_for(59)
        assert "t-0.delete" in world.names(A)
        await clock.run_for(2)
        assert "t-0.delete" not in world.names(A)
        # Back and forth before the first was removed: the second `.delete` has a uuid.
        for where in (A, B, A, B):
            await manager.mover.move(T0, where)
            await clock.settle()
        assert log.directory.parent == B
        assert len([name for name in world.names(A) if name.endswith(".delete")]) == 2
        await clock.run_for(120)
        assert not [name for name in world.names(A) if name.endswith(".delete")]
        assert len(contents(log)) == 60


async def test_clean_shutdown_leaves_only_names_known_to_kafka(world: LogManagerWorld) -> None:
    """J-10."""
    async with running(world) as (manager, log):
        for where in (B, A, B):
            await manager.mover.move(T0, where)
            await moved(manager)
        assert [name for name in world.names(A) if name.endswith(".delete")]
        before = contents(log)
    left = [name for path in (A, B) for name in world.names(path) if name.startswith("t-0")]
    assert sorted(names.parse(name).state.name for name in left) == [
        "DELETED", "DELETED", "DELETED", "LIVE"
    ]  # fmt: skip
    async with world.running() as manager:
        again = manager.get("t", 0)
        assert again is not None
        assert contents(again) == before
        assert len(manager.directory_deletion) == 3


async def test_old_directory_removed_by_operator_does_not_prevent_clean_shutdown(
    world: LogManagerWorld,
) -> None:
    """J-10."""
    async with running(world) as (manager, _):
        await manager.mover.move(T0, B)
        await moved(manager)
        world.files.remove_tree(A / "t-0.delete")
    assert ".kafka_cleanshutdown" in world.names(A)


@pytest.mark.parametrize("bad", [A, B])
async def test_move_stops_when_a_directory_goes_offline(world: LogManagerWorld, bad: Path) -> None:
    """J-11."""
    world.paths = (M, A, B)
    async with running(world) as (manager, log):
        before = contents(log)
        world.mover = MoverSettings(bytes_per_second=1)
        await manager.mover.move(T0, B)
        await wait_until_async(lambda: manager.mover.moves()[0].copied_bytes > 0, pause=0.001)
        manager.registry.logs_by_directory[bad].directory.fail(OSError(errno.EIO, "bad"))
        await moved(manager)
        assert manager.mover.statistics.failed == 1
        assert MOVE in world.names(B), "the next start decides"
        if bad == A:
            with pytest.raises(LogFailed):
                log.check_online()
        else:
            assert contents(log) == before
            append(log, "later append")


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
@pytest.mark.parametrize("operation", ["write", "sync", "rename", "create"])
async def test_destination_error_keeps_source_online(
    world: LogManagerWorld, operation: str, code: int
) -> None:
    """J-11: for any failing operation, the source remains the current replica."""
    world.paths = (M, A, B)
    async with running(world) as (manager, log):
        before = contents(log)
        release = hold_moves(manager.mover)
        await manager.mover.move(T0, B)
        world.disk.fail("/b/*", code, {operation})
        release()
        await moved(manager)
        assert manager.registry.logs_by_directory[B].directory.failed
        assert log.directory == A / "t-0"
        append(log, "later append")
        assert contents(log) == [*before, "later append"]
        assert not manager.registry.logs_by_directory[A].directory.failed


async def test_source_error_takes_source_offline(world: LogManagerWorld) -> None:
    world.paths = (M, A, B)
    async with running(world) as (manager, log):
        release = hold_moves(manager.mover)
        await manager.mover.move(T0, B)
        world.disk.fail("/a/t-0/*.log", errno.EIO, {"read"})
        release()
        await moved(manager)
        assert manager.mover.statistics.failed == 1
        assert manager.registry.logs_by_directory[A].directory.failed, (
            "as by any other error of its disk"
        )
        assert not manager.registry.logs_by_directory[B].directory.failed, "it was not its error"
        assert log.directory.parent == A


async def test_source_without_file_descriptors_is_retried(world: LogManagerWorld) -> None:
    async with running(world) as (manager, log):
        release = hold_moves(manager.mover)
        await manager.mover.move(T0, B)
        world.disk.fail("/a/t-0/*.log", errno.EMFILE, {"read"}, times=1)
        release()
        await moved(manager)
        assert log.directory.parent == B
        assert len(contents(log)) == 60


async def test_last_of_two_concurrent_move_requests_wins(world: LogManagerWorld) -> None:
    world.paths = (A, B, C)
    async with running(world) as (manager, _):
        hold_moves(manager.mover)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.mover.move, T0, B)
            nursery.start_soon(manager.mover.move, T0, C)
        (status,) = manager.mover.moves()
        assert manager.mover.statistics.cancelled == 1, "the one that was begun first"
        assert [path for path in (B, C) if MOVE in world.names(path)] == [status.destination]


async def test_full_destination_fails_move_and_frees_space(world: LogManagerWorld) -> None:
    world.disk.mount(B, 6000)
    async with running(world) as (manager, log):
        before = contents(log)
        with suppress(DiskFull):
            await manager.mover.move(T0, B)
        await moved(manager)
        assert log.directory.parent == A
        assert contents(log) == before
        assert not manager.registry.logs_by_directory[B].directory.failed
        assert MOVE not in world.names(B), "its space is free again"


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
async def test_refused_move_is_not_started_by_next_start(
    world: LogManagerWorld, operation: str
) -> None:
    """A remaining `.move` would be continued by the next start (J-04, J-13)."""
    async with running(world) as (manager, _log):
        fault = world.disk.fail(f"{B}/{MOVE}*/*", errno.ENOSPC, {operation})
        with pytest.raises(DiskFull):
            await manager.mover.move(T0, B)
        assert manager.mover.moves() == []
        assert MOVE not in world.names(B)
        world.disk.heal(fault)
    async with world.running(housekeeping=True) as manager:
        assert manager.mover.moves() == []
        await manager.mover.move(T0, B)
        await moved(manager)
        assert manager.get("t", 0) is not None


async def test_full_destination_is_logged(
    world: LogManagerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(world) as (manager, log):
        release = hold_moves(manager.mover)
        await manager.mover.move(T0, B)
        world.disk.fail("/b/t-0.move/*", errno.ENOSPC, {"write"})
        release()
        await moved(manager)
        assert (
            "failed (the destination is full): the replica stays in its log directory"
            in caplog.text
        )
        assert (log.directory.parent, MOVE in world.names(B)) == (A, False)


async def test_retention_and_delete_records_apply_to_future_replica(
    world: LogManagerWorld,
) -> None:
    """J-12."""
    async with running(world) as (manager, log):
        world.mover = MoverSettings(bytes_per_second=1)
        await manager.mover.move(T0, B)
        await wait_until_async(lambda: manager.mover.moves()[0].copied_bytes > 0, pause=0.001)
        log.advance_log_start(40, "asked to")
        log.delete_expired(world.clock.wall_ms())
        kept = contents(log)
        world.mover = MoverSettings()
        await moved(manager)
        assert log.log_start_offset == 40
        assert contents(log) == kept
        logs = [name for name in world.names(B / "t-0") if name.endswith(".log")]
        assert len(logs) == len(log.segments)
    async with world.running() as manager:
        again = manager.get("t", 0)
        assert again is not None
        assert (again.log_start_offset, contents(again)) == (40, kept)


@pytest.mark.parametrize("offset", [0, 3, 27, 31, 59])
async def test_truncation_applies_to_future_replica(world: LogManagerWorld, offset: int) -> None:
    """J-12."""
    async with running(world) as (manager, log):
        world.mover = MoverSettings(bytes_per_second=1)
        await manager.mover.move(T0, B)
        await wait_until_async(lambda: manager.mover.moves()[0].copied_bytes > 0, pause=0.001)
        log.truncate_to(offset)
        await grown(log)
        kept = contents(log)
        world.mover = MoverSettings()
        await moved(manager)
        assert contents(log) == kept
        assert log.directory.parent == B


async def test_full_truncation_while_copying_restarts_copy(world: LogManagerWorld) -> None:
    async with running(world) as (manager, log):
        world.mover = MoverSettings(bytes_per_second=1)
        await manager.mover.move(T0, B)
        await wait_until_async(lambda: manager.mover.moves()[0].copied_bytes > 0, pause=0.001)
        log.truncate_fully_and_start_at(1000)
        await grown(log)
        kept = contents(log)
        world.mover = MoverSettings()
        await moved(manager)
        assert (log.log_start_offset, contents(log)) == (1000, kept)


@pytest.mark.parametrize("offset", [1, 1000])
async def test_recovery_point_never_exceeds_log_after_truncation(
    world: LogManagerWorld, offset: int
) -> None:
    """This includes a full truncation after everything was copied and synced."""
    async with running(world) as (_, log):
        future = FutureReplica(world.files, log, B / MOVE)
        future.begin()
        future.catch_up()
        future.complete()
        assert future.recovery_point == log.end_offset
        log.truncate_fully_and_start_at(offset)
        await grown(log, 1)
        future.catch_up()
        future.complete()
        assert future.recovery_point == log.end_offset
        await grown(log, 1)
        future.catch_up()
        assert future.recovery_point < log.end_offset


async def test_producer_snapshot_of_restarted_log_replaces_old_copy(
    world: LogManagerWorld,
) -> None:
    """After a full truncation, the log may have a segment and a snapshot at the same offset as before."""
    async with running(world) as (_, log):
        future = FutureReplica(world.files, log, B / MOVE)
        future.begin()
        future.catch_up()
        future.complete()
        offset = log.segments[-1].base_offset
        name = log.snapshots.path(offset).name
        assert world.files.exists(B / MOVE / name)
        producer = ProducerEntry(5, 0, -1, 0, -1, [BatchMetadata(3, offset - 1, 0, 0)])
        log.truncate_fully(EmptyLogStart(offset, 0, (), [producer]))
        future.catch_up()
        future.complete()
        wanted = world.files.read(log.snapshots.path(offset))
        assert world.files.read(B / MOVE / name) == wanted


@pytest.mark.parametrize("rolls", [True, False])
async def test_truncated_producer_snapshot_within_segment_is_replaced(
    world: LogManagerWorld, rolls: bool
) -> None:
    """A clean shutdown left the snapshot. After a truncation and other appends it is stale, and a start that loads it
    would restore the wrong producers."""
    async with running(world) as (_, log):
        append(log, "a segment's first")
    async with world.running() as manager:
        found = manager.get("t", 0)
        assert found is not None
        log, end = found, found.end_offset
        assert log.snapshots.latest == end > log.segments[-1].base_offset
        future = FutureReplica(world.files, log, B / MOVE)
        log.on_truncated = future.source_truncated
        future.begin()
        future.catch_up()
        future.complete()
        assert snapshots(world, B / MOVE) == snapshots(world, log.directory)
        log.truncate_to(end - 1)
        records = [Record(-1, T_MS, None, b"other")] * (end - log.end_offset)
        batch = build_batch(records, producer_id=5, producer_epoch=0, base_sequence=0)
        log.append_as_leader(memoryview(batch), leader_epoch=1, now_ms=T_MS)
        if rolls:
            log.roll()
        future.catch_up()
        future.complete()
        assert snapshots(world, B / MOVE) == snapshots(world, log.directory)


def snapshots(world: LogManagerWorld, directory: Path) -> dict[str, bytes]:
    names = [name for name in world.names(directory) if name.endswith(".snapshot")]
    return {name: world.files.read(directory / name) for name in names}


async def test_partition_deleted_while_moving_is_removed(world: LogManagerWorld) -> None:
    async with running(world) as (manager, _):
        world.mover = MoverSettings(bytes_per_second=1)
        await manager.mover.move(T0, B)
        await wait_until_async(lambda: manager.mover.moves()[0].copied_bytes > 0, pause=0.001)
        await manager.delete(T0)
        assert manager.mover.moves() == []
        assert MOVE not in world.names(B)
        assert "t-0" not in world.names(A)
        again = await manager.create("t", 0, TWO)  # the name is free, and can be moved
        append(again, "new")
        world.mover = MoverSettings()
        await manager.mover.move(T0, B if again.directory.parent == A else A)
        await moved(manager)
        assert contents(again) == ["new"]


def idempotent(log: PartitionLog, sequence: int) -> AppendResult:
    batch = build_batch(
        [Record(-1, T_MS, None, b"idempotent")],
        producer_id=7,
        producer_epoch=1,
        base_sequence=sequence,
    )
    return log.append_as_leader(memoryview(batch), leader_epoch=3, now_ms=T_MS)


async def test_moved_log_keeps_producers_epochs_and_offsets(world: LogManagerWorld) -> None:
    async with running(world) as (manager, log):
        log.assign_epoch(3, log.end_offset)
        append(log, "in epoch 3", epoch=3)
        for sequence in range(4):
            assert not idempotent(log, sequence).duplicate
        log.advance_high_watermark(log.end_offset)
        await manager.mover.move(T0, B)
        await moved(manager)
        assert idempotent(log, 3).duplicate
    async with world.running() as manager:
        again = manager.get("t", 0)
        assert again is not None
        assert idempotent(again, 3).duplicate
        assert [entry.epoch for entry in again.epochs.entries] == [0, 3]
        assert again.high_watermark == again.end_offset == 65


async def test_response_in_progress_is_sent_from_old_files(world: LogManagerWorld) -> None:
    async with running(world) as (manager, log):
        read = log.read(0, 100, limit=log.end_offset)
        assert read.slice is not None
        before = read.slice.read()
        await manager.mover.move(T0, B)
        await moved(manager)
        assert read.slice.read() == before
        read.slice.file.unpin()


async def test_invalid_move_requests_are_refused(world: LogManagerWorld) -> None:
    world.paths = (M, A, B)
    async with running(world) as (manager, _):
        move = manager.mover.move
        with pytest.raises(UnknownDirectory):
            await move(T0, Path("/nowhere"))
        with pytest.raises(NameTooLong):
            await move(TopicPartition("x" * 240, 0), B)
        manager.registry.cordoned = frozenset({B})
        with pytest.raises(CordonedDirectory):
            await move(T0, B)
        manager.registry.cordoned = frozenset()
        with pytest.raises(ReplicaNotAvailable):
            await move(TopicPartition("later", 0), B)
        later = await manager.create("later", 0, TWO)
        assert later.directory.parent == B, "J-03"
        manager.registry.logs_by_directory[A].directory.fail(OSError(errno.EIO, "bad"))
        with pytest.raises(LogFailed):
            await move(T0, B)
        with pytest.raises(LogFailed):
            await move(TopicPartition("later", 0), M)


@pytest.mark.parametrize("passes", range(4))
async def test_copy_without_file_descriptors_continues_without_loss(
    world: LogManagerWorld, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync before the swap is the one that makes the copy durable."""
    monkeypatch.setattr(future_replica, "PIECE_BYTES", 1)
    async with running(world) as (_, log):
        future = FutureReplica(world.files, log, B / MOVE)
        future.begin()
        fault = world.disk.fail(f"{B}/{MOVE}/*", errno.EMFILE, passes=passes)
        with pytest.raises(OutOfDescriptors):
            future.advance(1000)
        assert fault.failed
        world.disk.heal()
        future.catch_up()
        future.complete()
        assert future.recovery_point == log.end_offset
        assert future.copied_bytes == log.size_bytes


async def test_requested_directory_is_kept_after_failed_creation(
    world: LogManagerWorld,
) -> None:
    """J-03."""
    async with running(world) as (manager, _):
        later = TopicPartition("later", 0)
        with pytest.raises(ReplicaNotAvailable):
            await manager.mover.move(later, A)
        fault = world.disk.fail(f"{A}/later-0*", errno.ENOSPC)
        with pytest.raises(DiskFull):
            await manager.create(*later, TWO)
        world.disk.heal(fault)
        made = await manager.create(*later, TWO)
        assert made.directory.parent == A, "/b has fewer bytes"
        assert not manager.registry.preferred


async def test_move_continues_after_clean_shutdown(world: LogManagerWorld) -> None:
    """J-13: the future replica becomes Kafka's `-future`: whole segments, cleanly closed."""
    async with running(world) as (manager, log):
        before = contents(log)
        world.mover = MoverSettings(bytes_per_second=1)
        await manager.mover.move(T0, B)
        await wait_until_async(lambda: manager.mover.moves()[0].copied_bytes > 0, pause=0.001)
    (future,) = [name for name in world.names(B) if name.endswith("-future")]
    assert MOVE not in world.names(B)
    assert {"partition.metadata", "leader-epoch-checkpoint"} <= set(world.names(B / future))
    world.mover = MoverSettings()
    async with world.running(housekeeping=True) as manager:
        await moved(manager)
        again = manager.get("t", 0)
        assert again is not None
        assert again.directory == B / "t-0"
        assert contents(again) == before
    assert not [name for name in world.names(B) if name.endswith("-future")]


async def test_compaction_is_paused_while_moving(world: LogManagerWorld) -> None:
    async with running(world) as (manager, log):
        assert manager.log_cleaner is not None
        log.update_config(replace(log.config, cleanup_policy=("compact",)))
        world.mover = MoverSettings(bytes_per_second=1)
        await manager.mover.move(T0, B)
        await wait_until_async(lambda: manager.mover.moves()[0].copied_bytes > 0, pause=0.001)
        assert not manager.log_cleaner._is_candidate(log)
        await manager.mover.cancel(T0)
        assert manager.log_cleaner._is_candidate(log)


@pytest.mark.parametrize("asked", ["what is to be copied", "how much that is"])
async def test_source_files_renamed_before_open_do_not_fail_directory(
    world: LogManagerWorld, asked: str
) -> None:
    """A truncation or retention in another thread renames listed files: the copy adapts, and no directory fails."""
    async with running(world):
        pass
    async with world.running() as manager:  # so that none is open
        log = manager.get("t", 0)
        assert log is not None
        future = FutureReplica(world.files, log, B / MOVE)
        future.begin()
        if asked == "how much that is":
            future._follow_segments()
        open_file = Segment._open_file

        def after_a_truncation(segment: Segment) -> File:
            if segment.directory == log.directory:
                monkeypatch.undo()
                log.truncate_fully_and_start_at(100)
            return open_file(segment)

        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(Segment, "_open_file", after_a_truncation)
            assert (
                future.remaining_bytes
                if asked == "how much that is"
                else future.copy_slice(1 << 20)
            ) > 0
        append(log, "later append")
        future.catch_up()
        assert future.end_offset == 101
        assert not manager.registry.directory_logs_of(log).directory.failed
