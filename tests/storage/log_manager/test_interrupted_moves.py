"""Starts with interrupted moves (J-13 to J-16), with Odradek's and Kafka's names, and with offline directories."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.protocol.topics import TopicPartition
from odradek.seams.files import Path
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.clean_shutdown import FILE_NAME
from odradek.storage.errors import LogFailed
from odradek.storage.log.file_names import EPOCHS, METADATA
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.loading import LogOpener
from odradek.storage.log_manager.log_manager import LogManager
from odradek.storage.log_registry.directory_logs import DirectoryLogs
from odradek.testing.virtual_files import VirtualFiles
from tests.support.log_managers import ONE, TWO, A, B, LogManagerWorld, append, contents

T0 = TopicPartition("t", 0)
M, C = Path("/m"), Path("/c")
FUTURE = f"t-0.{UUID(int=9).hex}-future"
VALUES = [f"value {number} of some length" for number in range(20)]


async def disk_with(*places: tuple[Path, str]) -> LogManagerWorld:
    """Create a disk with copies of one partition in these directories, under these names."""
    world = LogManagerWorld(paths=(M, A, B, C))
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE, directory_id=manager.directories.all[1].id)
        for value in VALUES:
            append(log, value)
    files = VirtualFiles(world.disk)
    for directory, name in places:
        files.make_directory(directory / name)
        for each in files.list(A / "t-0"):
            files.write_new(directory / name / each, files.read(A / "t-0" / each))
        files.sync_directory(directory)
    if (A, "t-0") not in places:
        files.remove_tree(A / "t-0")
        files.sync_directory(A)
    return world


async def bring_back(world: LogManagerWorld, name: str) -> None:
    """Put a log of topic id TWO, a deleted topic of the same name, into /c."""
    before = LogManagerWorld(paths=(M, C))
    async with before.running() as manager:
        log = await manager.create("t", 0, TWO, directory_id=manager.directories.all[1].id)
        append(log, "of another topic")
    files = VirtualFiles(world.disk)
    files.make_directory(C / name)
    for each in before.names(C / "t-0"):
        files.write_new(C / name / each, VirtualFiles(before.disk).read(C / "t-0" / each))
    files.sync_directory(C)


@asynccontextmanager
async def started(
    world: LogManagerWorld, *, elsewhere: bool = False, known: UUID | None = None
) -> AsyncIterator[LogManager]:
    """Start a node; `known`: the topic id that the cluster assigns to it; None: any."""

    def is_stray(name: TopicPartition, topic_id: UUID | None) -> bool:
        return known is not None and topic_id != known

    async with world.running(housekeeping=True, is_stray=is_stray) as manager:
        await manager.rename_stray_logs(is_stray)
        await manager.promote_moved(lambda name, topic_id: elsewhere, is_stray)
        with trio.fail_after(20):
            while manager.mover.moves():
                await trio.lowlevel.checkpoint()
        yield manager


def left(world: LogManagerWorld, path: Path) -> list[str]:
    return [name for name in world.names(path) if name.startswith("t-") and "delete" not in name]


@pytest.mark.parametrize("name", ["t-0.move", FUTURE])
async def test_move_with_source_and_future_replica_continues(name: str) -> None:
    """J-13."""
    world = await disk_with((A, "t-0"), (B, name))
    async with started(world) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert log.directory == B / "t-0"
        assert contents(log) == VALUES
    assert (left(world, A), left(world, B)) == ([], ["t-0"])


async def test_move_without_file_descriptors_continues_later() -> None:
    """J-13."""
    world = await disk_with((A, "t-0"), (B, FUTURE))
    fault = world.disk.fail(f"{B}/{FUTURE}", errno.EMFILE, {"rename"}, times=1)
    async with started(world) as manager:
        assert fault.failed
        log = manager.get("t", 0)
        assert log is not None
        assert log.directory == B / "t-0"
        assert contents(log) == VALUES
        assert not manager.registry.logs_by_directory[B].directory.failed


async def test_future_replica_that_differs_is_copied_again() -> None:
    """J-13: the future replica is torn, longer, or has other records."""
    world = await disk_with((A, "t-0"), (B, "t-0.move"))
    files = VirtualFiles(world.disk)
    for number, name in enumerate(files.list(B / "t-0.move")):
        file = files.open(B / "t-0.move" / name, write=True)
        if file.size and number % 2:
            file.write_at(file.size // 2, b"???")
        file.append_v([b"more"])
        file.sync()
    async with started(world) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert log.directory == B / "t-0"
        assert contents(log) == VALUES


async def test_future_replica_without_current_on_failing_disk_is_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J-14."""
    world = await disk_with((A, "t-0.delete"), (B, "t-0.move"))
    async with world.running() as manager:
        load = LogOpener.load

        def and_fail(
            opener: LogOpener, directory_logs: DirectoryLogs, *others: Any
        ) -> PartitionLog:
            opened = load(opener, directory_logs, *others)
            directory_logs.directory.fail(OSError(errno.EIO, "its disk"))
            return opened

        monkeypatch.setattr(LogOpener, "load", and_fail)
        await manager.promote_moved()
        with pytest.raises(LogFailed):
            manager.get("t", 0)
        assert manager.logs() == ()


@pytest.mark.parametrize("name", ["t-0.move", FUTURE])
async def test_future_replica_without_current_is_promoted(name: str) -> None:
    """J-14."""
    world = await disk_with((A, "t-0.delete"), (B, name))
    async with world.running() as manager:
        with pytest.raises(LogFailed):  # offline until the metadata is known
            manager.get("t", 0)
        await manager.promote_moved()
        log = manager.get("t", 0)
        assert log is not None
        assert log.directory == B / "t-0"
        assert contents(log) == VALUES
        assert log.topic_id == ONE
        append(log, "later append")
    assert left(world, B) == ["t-0"]
    async with started(world) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == [*VALUES, "later append"]


async def test_future_replica_assigned_to_missing_directory_is_offline() -> None:
    """J-14: an unmounted disk looks like an empty directory without errors."""
    world = await disk_with((B, "t-0.move"))
    async with started(world, elsewhere=True) as manager:
        with pytest.raises(LogFailed):
            manager.get("t", 0)
        assert manager.offline == (T0,)
    assert left(world, B) == ["t-0.move"]
    async with started(world) as manager:  # now the metadata assigns it here
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES


@pytest.mark.parametrize("name", ["t-0.move", FUTURE])
async def test_future_replica_without_current_is_offline_while_a_directory_is_offline(
    name: str,
) -> None:
    """J-15."""
    world = await disk_with((B, name))
    fault = world.disk.fail("/c*")
    async with started(world) as manager:
        with pytest.raises(LogFailed):
            manager.get("t", 0)
        assert left(world, B) == [name]
    world.disk.heal(fault)
    world.files = VirtualFiles(world.disk)
    async with started(world) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES


@pytest.mark.parametrize("name", ["t-0.delete", f"t-0.{UUID(int=8).hex}-delete"])
async def test_deleted_directories_are_removed(name: str) -> None:
    """J-16."""
    world = await disk_with((A, "t-0"), (B, name))
    async with started(world) as manager:
        assert len(manager.directory_deletion) == 1
        log = manager.get("t", 0)
        assert log is not None
        assert log.directory == A / "t-0"


async def test_future_replica_in_directory_of_current_replica_is_removed() -> None:
    world = await disk_with((A, "t-0"), (A, "t-0.move"))
    async with started(world) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES
    assert left(world, A) == ["t-0"]


async def test_removal_of_future_replica_without_file_descriptors_is_retried() -> None:
    world = await disk_with((A, "t-0"), (A, "t-0.move"))
    fault = world.disk.fail(f"{A}/t-0.move", errno.EMFILE, {"rename"}, times=1)
    async with started(world):
        assert fault.failed
    assert left(world, A) == ["t-0"]


async def test_first_of_two_future_replicas_continues() -> None:
    world = await disk_with((A, "t-0"), (B, "t-0.move"), (C, "t-0.move"))
    async with started(world) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert log.directory == B / "t-0"
    assert (left(world, A), left(world, B), left(world, C)) == ([], ["t-0"], [])


async def test_two_future_replicas_without_current_are_kept_offline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await disk_with((B, "t-0.move"), (C, "t-0.move"))
    async with started(world) as manager:
        assert manager.offline == (T0,)
    assert f"t-0 has only the future replica {B}/t-0.move, which may be incomplete" in caplog.text
    assert "this node does not have its log directory" not in caplog.text
    assert (left(world, B), left(world, C)) == (["t-0.move"], ["t-0.move"])


async def test_recreated_topic_turns_future_replica_into_stray() -> None:
    """The future replica of the old topic does not prevent a move of the new one."""
    world = await disk_with((B, "t-0.move"))
    async with started(world, elsewhere=True) as manager:
        log = await manager.create("t", 0, TWO, directory_id=manager.directories.all[1].id)
        append(log, "new")
        await manager.mover.move(T0, B)
        with trio.fail_after(20):
            while manager.mover.moves():
                await trio.lowlevel.checkpoint()
        assert log.directory == B / "t-0"
        assert (log.topic_id, contents(log)) == (TWO, ["new"])


@pytest.mark.parametrize("there", [(A, "t-0"), (A, "t-0.delete")])
async def test_log_of_another_topic_does_not_overwrite_future_replica(
    there: tuple[Path, str],
) -> None:
    """After a crash in the swap, `.move` is the only copy of the replica."""
    world = await disk_with(there, (B, "t-0.move"))
    await bring_back(world, "t-0")
    async with started(world, known=ONE) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert (log.directory, log.topic_id, contents(log)) == (B / "t-0", ONE, VALUES)
    (stray,) = left(world, C)
    assert stray.endswith("-stray")


async def test_log_of_another_topic_does_not_overwrite_future_replica_while_a_directory_is_offline() -> (
    None
):
    world = await disk_with((B, "t-0.move"))
    await bring_back(world, "t-0")
    fault = world.disk.fail(f"{A}/*")
    async with started(world, known=ONE) as manager:
        with pytest.raises(LogFailed):
            manager.get("t", 0)
        assert left(world, B) == ["t-0.move"]
    world.disk.heal(fault)
    world.files = VirtualFiles(world.disk)
    async with started(world, known=ONE) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES


async def test_checkpoints_of_another_topic_do_not_apply_to_future_replica() -> None:
    """For example, the log start offset of the other topic is not used."""
    world = await disk_with((A, "t-0.delete"), (C, "t-0.move"))
    await bring_back(world, "t-0")
    VirtualFiles(world.disk).write_new(C / Checkpoint.LOG_START.value, b"0\n1\nt 0 1\n")
    async with started(world, known=ONE) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert (log.directory, log.topic_id, contents(log)) == (C / "t-0", ONE, VALUES)
    assert [name for name in left(world, C) if name.endswith("-stray")]


@pytest.mark.parametrize("where", [B, C], ids=["in another directory", "same directory"])
async def test_damaged_log_of_another_topic_does_not_prevent_promotion(where: Path) -> None:
    world = await disk_with((A, "t-0.delete"), (where, "t-0.move"))
    await bring_back(world, "t-0")
    files = VirtualFiles(world.disk)
    files.remove(C / "t-0" / EPOCHS)
    files.make_directory(C / "t-0" / EPOCHS)
    async with started(world, known=ONE) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert (log.directory, log.topic_id, contents(log)) == (where / "t-0", ONE, VALUES)
    assert [name for name in left(world, C) if name.endswith("-stray")]


async def test_future_replica_next_to_another_topic_is_offline_while_a_directory_is_offline() -> (
    None
):
    world = await disk_with((C, "t-0.move"))
    await bring_back(world, "t-0")
    fault = world.disk.fail(f"{A}/*")
    async with started(world, known=ONE) as manager:
        with pytest.raises(LogFailed):
            manager.get("t", 0)
        assert "t-0.move" in left(world, C)
    world.disk.heal(fault)
    world.files = VirtualFiles(world.disk)
    async with started(world, known=ONE) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES


@pytest.mark.parametrize("where", ["t-0", "t-0.delete"])
async def test_future_replica_of_another_topic_becomes_stray(where: str) -> None:
    world = await disk_with((A, where), *([(B, "t-0.move")] if where != "t-0" else []))
    await bring_back(world, "t-0.move")
    async with started(world, known=ONE) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES
        assert log.directory.parent != C
    (stray,) = left(world, C)
    assert stray.endswith("-stray")


async def test_future_replica_of_deleted_topic_becomes_stray_while_a_directory_is_offline() -> None:
    world = await disk_with((B, "t-0.move"))
    world.disk.fail(f"{C}/*")
    async with started(world, known=TWO) as manager:
        assert manager.offline == ()
        assert (await manager.create("t", 0, TWO)).topic_id == TWO
    assert [name for name in left(world, B) if name.endswith("-stray")]


async def test_move_continues_after_removal_of_empty_duplicate_log() -> None:
    """The log of one directory never had a record."""
    world = await disk_with((A, "t-0"), (B, "t-0.move"))
    VirtualFiles(world.disk).make_directory(C / "t-0")
    async with started(world) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert (log.directory, contents(log)) == (B / "t-0", VALUES)


async def crash_in_the_swap(
    world: LogManagerWorld, manager: LogManager, seed: int
) -> LogManagerWorld:
    """Return the disk after a power cut when the log is `t-0.delete` in /a and `t-0.move` in /b."""
    crashed: list[LogManagerWorld] = []
    sync = world.files.sync_directory

    def and_crash(path: Path) -> None:
        sync(path)
        if path == A and "t-0.delete" in world.names(A) and not crashed:
            crashed.append(world.crashed(seed))

    world.files.sync_directory = and_crash  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        await manager.mover.move(T0, B)
        while manager.mover.moves():
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    return crashed[0]


@pytest.mark.parametrize("seed", range(8))
async def test_removed_empty_log_does_not_return_after_power_cut_in_swap(seed: int) -> None:
    """Otherwise the future replica, then the only copy of the log, would be truncated to the empty log."""
    world = await disk_with((A, "t-0"))
    files = VirtualFiles(world.disk)
    files.make_directory(C / "t-0")
    files.write_new(C / "t-0" / METADATA, files.read(A / "t-0" / METADATA))
    files.sync_directory(C)
    manager = world.manager()
    await manager.load()
    assert left(world, C) == []
    async with started(await crash_in_the_swap(world, manager, seed)) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES


@pytest.mark.parametrize("seed", range(8))
async def test_log_of_failed_creation_does_not_return_after_power_cut_in_swap(seed: int) -> None:
    world = LogManagerWorld(paths=(M, A, B, C), seed=seed)
    manager = world.manager()
    await manager.load()
    fault = world.disk.fail(f"{M}/t-0/*", errno.ENOSPC, times=1)
    log = await manager.create("t", 0, ONE)
    assert (fault.failed, log.directory) == (1, A / "t-0")
    for value in VALUES:
        append(log, value)
    async with started(await crash_in_the_swap(world, manager, seed)) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES


@pytest.mark.parametrize("is_copy", [False, True])
async def test_stray_log_keeps_checkpoint_of_future_replica(is_copy: bool) -> None:
    """The log is in two directories, or its future replica is offline; its log start offset is kept."""
    world = await disk_with(*([(C, FUTURE)] if is_copy else [(A, "t-0"), (C, "t-0")]))
    await bring_back(world, "t-0.move")
    path, begins_at_5 = C / Checkpoint.LOG_START.value, "0\n1\nt 0 5\n"
    VirtualFiles(world.disk).write_new(path, begins_at_5.encode())
    if is_copy:
        world.disk.fail(f"{A}/*")
    async with started(world, known=ONE) as manager:
        assert manager.offline == (T0,)
        assert [each for each in left(world, C) if each.endswith("-stray")]
        assert world.read(path) == begins_at_5


async def test_promoted_log_that_failed_to_open_is_recovered_at_next_start() -> None:
    """J-14: the log was renamed already, and its end may be torn."""
    world = await disk_with((A, "t-0.delete"), (B, "t-0.move"))
    files = VirtualFiles(world.disk)
    last = [name for name in files.list(B / "t-0.move") if name.endswith(".log")][-1]
    file = files.open(B / "t-0.move" / last, write=True)
    file.write_at(file.size - 1, b"?")
    file.sync()
    fault = world.disk.fail(f"{B}/t-0/*", errno.ELOOP, times=1)
    async with started(world) as manager:
        assert fault.failed
        assert manager.offline == (T0,)
    async with started(world) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES[:-1]


@pytest.mark.parametrize("where", ["t-0.move", "t-0/*.log"])
async def test_promotion_without_file_descriptors_is_retried(where: str) -> None:
    """J-14."""
    world = await disk_with((A, "t-0.delete"), (B, "t-0.move"))
    fault = world.disk.fail(f"{B}/{where}", errno.EMFILE, {"rename", "open"}, times=1)
    async with started(world) as manager:
        assert fault.failed
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES


async def test_clean_shutdown_before_promotion_leaves_future_replica_unclean() -> None:
    """J-14."""
    world = await disk_with((A, "t-0.delete"), (B, "t-0.move"))
    fault = world.disk.fail(f"{B}/t-0/*.log", errno.EMFILE)
    async with world.running(housekeeping=True) as manager:
        with trio.move_on_after(0.5) as waiting:
            await manager.promote_moved()
        assert waiting.cancelled_caught
        assert manager.offline == (T0,)
    assert left(world, B) == ["t-0"]
    assert FILE_NAME in world.names(A)
    assert FILE_NAME not in world.names(B)
    world.disk.heal(fault)
    async with started(world) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES


async def test_unexpected_error_in_promotion_takes_only_the_partition_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J-14."""
    world = await disk_with((A, "t-0.delete"), (B, "t-0.move"))

    def break_down(*args: Any) -> PartitionLog:
        raise ZeroDivisionError

    async with world.running() as manager:
        with monkeypatch.context() as patch:
            patch.setattr(LogOpener, "load", break_down)
            await manager.promote_moved()
        assert manager.offline == (T0,)
        assert manager.registry.are_all_online
    async with started(world) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES


async def test_promotion_blocked_by_a_file_takes_only_the_partition_offline() -> None:
    """J-14."""
    world = await disk_with((A, "t-0.delete"), (B, "t-0.move"))
    VirtualFiles(world.disk).write_new(B / "t-0", b"a note")
    async with started(world) as manager:
        assert manager.offline == (T0,)
        assert manager.registry.are_all_online
    VirtualFiles(world.disk).remove(B / "t-0")
    async with started(world) as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == VALUES


async def test_future_replica_with_wrong_file_type_takes_only_the_partition_offline() -> None:
    """J-14."""
    world = await disk_with((A, "t-0.delete"), (B, "t-0.move"))
    files = VirtualFiles(world.disk)
    files.remove(B / "t-0.move" / METADATA)
    files.make_directory(B / "t-0.move" / METADATA)
    async with started(world) as manager:
        assert manager.offline == (T0,)
        assert manager.registry.are_all_online
