"""Log manager on virtual files: loading, creation, deletion, background tasks and shutdown."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio
import trio.testing

from odradek.protocol.topics import TopicPartition
from odradek.protocol.uuids import uuid_to_text
from odradek.seams.files import OutOfDescriptors, Path
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.errors import (
    DiskFull,
    InconsistentTopicId,
    LogFailed,
    NoDescriptors,
    NoDirectory,
)
from odradek.storage.log import partition_metadata
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.truncation import EmptyLogStart
from odradek.storage.log_manager.loading import Adopt, DirectoryLoader, DirectoryScan, LogOpener
from odradek.storage.log_manager.log_manager import LogManagerIntervals
from odradek.storage.log_registry.directory_logs import DirectoryLogs
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_files import VirtualFiles
from tests.support.log_managers import (
    ONE,
    SMALL,
    T0,
    THREE,
    TWO,
    A,
    B,
    LogManagerWorld,
    append,
    contents,
)

RECOVERY, STARTS, WATERMARKS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
)
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_POINTS = [Checkpoint.RECOVERY_POINT]


@pytest.fixture
def clock() -> VirtualClock:
    """A test that requests it by name runs under it (pytest-trio)."""
    return VirtualClock()


@pytest.fixture
def world(clock: VirtualClock) -> LogManagerWorld:
    return LogManagerWorld(clock=clock)


# Creation


async def test_new_partitions_are_spread_over_log_directories(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        logs = [await manager.create("t", number, ONE) for number in range(5)]
        assert [log.directory.parent for log in logs] == [A, B, A, B, A]
        assert manager.get("t", 3) is logs[3]
        assert manager.get("t", 9) is None
        assert manager.directory_of(logs[1]).path == B
        assert len(manager.logs()) == 5


async def test_new_partitions_go_to_directory_with_fewest_bytes(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    """Sizes are measured at the first creation after a pause."""
    async with world.running() as manager:
        first = await manager.create("t", 0, ONE)
        second = await manager.create("t", 1, ONE)
        assert (first.directory.parent, second.directory.parent) == (A, B)
        for number in range(30):  # several segments
            append(first, f"value {number}")
        clock.advance(2)
        logs = [await manager.create("u", number, TWO) for number in range(5)]
        # The average is half of A's bytes: B gets two replicas, then they alternate.
        assert [log.directory.parent for log in logs] == [B, B, A, B, A]
        for number in range(60):
            append(second, f"value {number}")
        clock.advance(2)
        assert (await manager.create("v", 0, THREE)).directory.parent == A
    async with world.running() as manager:  # also after a restart, from the files
        assert (await manager.create("v", 1, THREE)).directory.parent == A


async def test_log_is_created_in_requested_directory_id(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        wanted = manager.directories.all[1]
        assert wanted.id is not None
        for number in range(2):
            log = await manager.create("t", number, ONE, directory_id=wanted.id)
            assert manager.directory_of(log) is wanted


async def test_create_returns_existing_log_unless_topic_id_differs(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        assert await manager.create("t", 0, ONE) is log
        with pytest.raises(InconsistentTopicId):
            await manager.create("t", 0, TWO)


async def test_concurrent_creations_of_partition_share_log(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        found = []

        async def create() -> None:
            found.append(await manager.create("t", 0, ONE))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            nursery.start_soon(create)
        assert found[0] is found[1]


async def test_cordoned_directory_gets_no_new_partitions(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        manager.registry.cordoned = frozenset({A})
        logs = [await manager.create("t", number, ONE) for number in range(3)]
        assert {log.directory.parent for log in logs} == {B}


async def test_config_change_during_creation_is_applied(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.create, "t", 0, ONE)
            await trio.lowlevel.checkpoint()
            world.configs["t"] = LogConfig(retention_ms=5)
            manager.update_configs(["t"])
        log = manager.get("t", 0)
        assert log is not None
        assert log.config.retention_ms == 5


# Shutdown and loading


async def test_clean_shutdown_keeps_all_state(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        assert manager.previous_broker_epoch == -1
        for number in range(3):
            log = await manager.create("t", number, ONE)
            for at in range(20):
                append(log, f"{number}:{at}")
        log = await manager.create("t", 0, ONE)
        log.advance_log_start(5, "asked to")
    assert world.read(A / CLEAN_SHUTDOWN_FILE) == '{"version":0,"brokerEpoch":7}'
    assert world.read(A / RECOVERY) == "0\n2\nt 0 20\nt 2 20\n"
    assert world.read(A / WATERMARKS) == "0\n2\nt 0 20\nt 2 20\n"
    assert world.read(A / STARTS) == "0\n1\nt 0 5\n"

    async with world.running() as manager:
        assert manager.previous_broker_epoch == 7
        assert CLEAN_SHUTDOWN_FILE not in world.names(A)
        for number in range(3):
            log = manager.get("t", number)
            assert log is not None
            assert log.topic_id == ONE
            assert log.high_watermark == log.end_offset == log.recovery_point == 20
            assert log.log_start_offset == (5 if number == 0 else 0)
            assert contents(log) == [f"{number}:{at}" for at in range(log.log_start_offset, 20)]


async def test_crash_keeps_synced_records(world: LogManagerWorld) -> None:
    manager = world.manager()
    await manager.load()
    log = await manager.create("t", 0, ONE)
    for at in range(20):
        append(log, str(at))
    log.flush()
    await manager.checkpoint(RECOVERY_POINTS)
    append(log, "perhaps")
    for seed in range(10):
        again = world.crashed(seed)
        async with again.running() as second:
            assert second.previous_broker_epoch == -1
            found = second.get("t", 0)
            assert found is not None
            assert contents(found)[:20] == [str(at) for at in range(20)]


async def test_high_watermark_is_restored_from_checkpoint(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        append(log, "a", "b", "c")
    text = world.read(A / WATERMARKS).replace("t 0 3", "t 0 2")
    world.files.write_new(A / Checkpoint.HIGH_WATERMARK.value, text.encode())
    async with world.running() as manager:
        again = manager.get("t", 0)
        assert again is not None
        assert (again.high_watermark, again.end_offset) == (2, 3)


async def test_unknown_directories_are_ignored(
    world: LogManagerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.running() as manager:
        append(await manager.create("t", 0, ONE), "a")
    others = [
        "__cluster_metadata-0",
        "lost+found",
        "remote-log-index-cache",
        ".hidden",
        "no partition",
        "t-1.0123456789abcdef0123456789abcdef-future",
        "t-2.0123456789abcdef0123456789abcdef-stray",
        "t-3.move",
    ]
    for name in others:
        world.files.make_directory(A / name)
    async with world.running() as manager:
        assert [str(log.directory) for log in manager.logs()] == ["/a/t-0"]
    assert set(others) <= set(world.names(A))
    assert (
        "1 directories are ignored, because their names are not in the form of topic-partition: no partition"
        in caplog.text
    )


async def test_incomplete_load_writes_no_clean_shutdown_file(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        append(await manager.create("t", 0, ONE), "a")
    manager = world.manager()
    await manager.close()
    manager.directories.close()
    assert CLEAN_SHUTDOWN_FILE in world.names(A)  # it was not removed, because no log was opened
    manager = world.manager()
    world.disk.fail("/a/t-0*", operations={"list"})
    await manager.load()
    await manager.close()
    manager.directories.close()
    assert CLEAN_SHUTDOWN_FILE not in world.names(A)
    assert CLEAN_SHUTDOWN_FILE in world.names(B)


async def test_failed_log_prevents_clean_shutdown_file_of_its_directory_only(
    world: LogManagerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.running() as manager:
        broken = await manager.create("t", 0, ONE)
        await manager.create("t", 1, ONE)
        append(broken, "a")
        world.disk.fail("/a/t-0/*.log", operations={"sync"})
    assert CLEAN_SHUTDOWN_FILE not in world.names(A)
    assert CLEAN_SHUTDOWN_FILE in world.names(B)
    assert "log directory /a is offline: " in caplog.text
    assert "log directory /a was not shut down cleanly, so the next start" in caplog.text
    assert "Traceback" not in caplog.text


async def test_log_fenced_by_unexpected_error_prevents_clean_shutdown_file_of_its_directory_only(
    world: LogManagerWorld,
) -> None:
    async with world.running() as manager:
        fenced = await manager.create("t", 0, ONE)
        append(fenced, "a")
        fenced.fail(ZeroDivisionError())
    assert CLEAN_SHUTDOWN_FILE not in world.names(A)
    assert CLEAN_SHUTDOWN_FILE in world.names(B)


async def test_partition_in_two_directories_is_offline(
    world: LogManagerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.running() as manager:
        append(await manager.create("t", 0, ONE), "in a")
        append(await manager.create("t", 1, ONE), "in b")
    world.files.rename(B / "t-1", B / "t-0")
    world.files.remove(B / "t-0" / "partition.metadata")
    async with world.running() as manager:
        with pytest.raises(LogFailed, match=r"t-0 is in /./t-0 and in /./t-0"):
            manager.get("t", 0)
        with pytest.raises(LogFailed):
            await manager.create("t", 0, ONE)
        append(await manager.create("t", 2, ONE), "others are")
    assert CLEAN_SHUTDOWN_FILE in world.names(A)
    world.files.remove_tree(B / "t-0")
    async with world.running() as manager:
        log = manager.get("t", 0)
        assert log is not None
        assert contents(log) == ["in a"]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("has_id", [True, False])
async def test_empty_duplicate_log_is_removed(
    world: LogManagerWorld, is_first: bool, has_id: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed creation leaves one, and the log is created in another directory."""
    async with world.running() as manager:
        for number in (0, 1):
            log = await manager.create("t", number, ONE)
            if number == is_first:
                append(log, "all there is")
    world.files.rename(B / "t-1", B / "t-0")
    unused = (A if is_first else B) / "t-0"
    if not has_id:
        world.files.remove(unused / "partition.metadata")
    async with world.running() as manager:
        (log,) = manager.logs()
        assert contents(log) == ["all there is"]
        append(log, "more")
    assert not world.files.exists(unused)
    assert f"duplicate log directories found: deleting {unused}" in caplog.text
    async with world.running() as manager:
        (log,) = manager.logs()
        assert contents(log) == ["all there is", "more"]


async def test_empty_duplicate_log_of_another_topic_is_kept(world: LogManagerWorld) -> None:
    """The topic was recreated: only the cluster metadata identifies the current log."""
    async with world.running() as manager:
        append(await manager.create("t", 0, ONE), "of the first")
        await manager.create("t", 1, TWO)
    world.files.rename(B / "t-1", B / "t-0")
    async with world.running() as manager:
        with pytest.raises(LogFailed, match=r"t-0 is in /./t-0 and in /./t-0"):
            manager.get("t", 0)


C = Path("/c")


@pytest.mark.parametrize("is_last", [False, True])
async def test_log_in_directory_that_fails_while_loading_is_no_duplicate(
    monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    """In either order of loading: the log may be there because the directory failed before."""
    world = LogManagerWorld()
    async with world.running() as logs:
        append(
            await logs.create("t", 0, ONE, directory_id=logs.online_directories()[0].directory.id),
            "there",
        )
    world.files.make_directory(B / "t-0")
    load, first_is_done = LogOpener.load, trio.Event()
    open_all = DirectoryLoader._open_all

    def and_fail(opener: LogOpener, directory_logs: DirectoryLogs, *others: Any) -> PartitionLog:
        opened = load(opener, directory_logs, *others)
        if directory_logs.directory.path == B:
            directory_logs.directory.fail(OSError(errno.EIO, "its disk"))
        return opened

    async def one_by_one(loading: DirectoryLoader, found: DirectoryScan, adopt: Adopt) -> None:
        if (loading.directory_logs.directory.path == A) != is_last:
            await first_is_done.wait()
        await open_all(loading, found, adopt)
        first_is_done.set()

    monkeypatch.setattr(LogOpener, "load", and_fail)
    monkeypatch.setattr(DirectoryLoader, "_open_all", one_by_one)
    async with world.running() as logs:
        assert [contents(log) for log in logs.logs()] == [["there"]]
        assert logs.offline == ()


async def test_partition_in_three_directories_is_offline(caplog: pytest.LogCaptureFixture) -> None:
    world = LogManagerWorld(paths=(A, B, C))
    async with world.running() as manager:
        for number in range(3):
            log = await manager.create("t", number, ONE)
            append(log, "a", "b")
            log.advance_log_start(1, "asked to")
    for log_directory, number in ((B, 1), (C, 2)):
        world.files.rename(log_directory / f"t-{number}", log_directory / "t-0")
        path = log_directory / STARTS
        world.files.write_new(path, world.files.read(path).replace(f"t {number}".encode(), b"t 0"))
    async with world.running() as manager:
        assert manager.logs() == ()
        with pytest.raises(LogFailed, match=r"t-0 is in /./t-0; t-0 is in /./t-0 and in /./t-0"):
            manager.get("t", 0)
        caplog.clear()
    assert all(CLEAN_SHUTDOWN_FILE in world.names(log_directory) for log_directory in (A, B, C))
    for log_directory in (B, C):
        world.files.remove_tree(log_directory / "t-0")
    async with world.running() as manager:
        (log,) = manager.logs()
        assert (log.log_start_offset, contents(log)) == (1, ["b"])


async def test_duplicate_log_that_cannot_be_closed_does_not_prevent_start(
    world: LogManagerWorld,
) -> None:
    async with world.running() as manager:
        append(await manager.create("t", 0, ONE), "in a")
        append(await manager.create("t", 1, ONE), "in b")
    world.files.rename(B / "t-1", B / "t-0")
    for log_directory in (A, B):
        # So that the shutdown has a change to sync
        world.files.remove(log_directory / CLEAN_SHUTDOWN_FILE)
    world.disk.fail("/a/t-0/*.log", operations={"sync"})
    async with world.running() as manager:
        assert manager.logs() == ()
        assert [directory.failed for directory in manager.directories.all] == [True, False]
    assert CLEAN_SHUTDOWN_FILE in world.names(B)


# Deletion


async def test_cancelled_deletion_releases_partition_name(world: LogManagerWorld) -> None:
    names = [TopicPartition("t", number) for number in range(3)]
    async with world.running() as manager:
        for name in names:
            await manager.create(*name, ONE)
        async with trio.open_nursery() as nursery:
            async with manager.online_directories()[0].file_lock:
                nursery.start_soon(manager.delete, names[2])
                await trio.testing.wait_all_tasks_blocked()
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await manager.delete(*names)
        with trio.fail_after(5):
            await manager.delete(*names)
            for name in names:
                await manager.create(*name, TWO)


async def test_overlapping_deletions_do_not_deadlock(world: LogManagerWorld) -> None:
    names = [TopicPartition("t", number) for number in range(3)]
    async with world.running() as manager:
        for name in names:
            await manager.create(*name, ONE)
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(manager.delete, names[0], names[1], names[0])
                nursery.start_soon(manager.delete, names[1], names[0])
                nursery.start_soon(manager.delete, names[2], names[1])
        assert manager.logs() == ()
        assert len(manager.directory_deletion) == 3


async def test_deleted_log_frees_its_name_and_is_removed_after_delay(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    async with world.running(housekeeping=True) as manager:
        log = await manager.create("t", 0, ONE)
        append(log, "old")
        await manager.checkpoint(RECOVERY_POINTS)
        assert "t 0" in world.read(A / RECOVERY)
        await manager.delete(TopicPartition("t", 0), TopicPartition("unknown", 0))
        assert manager.get("t", 0) is None
        assert "t 0" not in world.read(A / RECOVERY)
        (deleted,) = [name for name in world.names(A) if name.endswith("-delete")]
        with pytest.raises(LogFailed):
            append(log, "too late")
        fresh = await manager.create("t", 0, TWO)
        append(fresh, "new")
        await clock.run_for(59)
        assert deleted in world.names(A)
        await clock.run_for(2)
        assert deleted not in world.names(A)
        assert contents(fresh) == ["new"]


async def test_deleted_log_removed_by_operator_is_accepted(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    """Completely before the delay has passed, or file by file during the removal."""
    async with world.running(housekeeping=True) as manager:
        for number in range(2):
            await manager.create(
                "t", number, ONE, directory_id=manager.online_directories()[0].directory.id
            )
        await manager.delete(TopicPartition("t", 0), TopicPartition("t", 1))
        first, second = (name for name in world.names(A) if name.endswith("-delete"))
        world.files.remove_tree(A / first)
        fault = world.disk.fail(f"{A}/{second}/*", errno.ENOENT, {"remove"}, times=1)
        await clock.run_for(62)
        assert fault.failed
        assert second not in world.names(A)
        assert len(manager.directory_deletion) == 0
        assert len(manager.online_directories()) == 2


async def test_reader_of_deleted_log_finishes(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        append(log, "still here")
        read = log.read(0, 1000, limit=1)
        assert read.slice is not None
        await manager.delete(TopicPartition("t", 0))
        assert b"still here" in read.slice.read()
        read.slice.file.unpin()


async def test_deleted_log_is_removed_after_restart(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    async with world.running() as manager:
        await manager.create("t", 0, ONE)
        await manager.delete(TopicPartition("t", 0))
    assert any(name.endswith("-delete") for name in world.names(A))
    world.files.make_directory(A / "moved-1.delete")
    async with world.running(housekeeping=True) as manager:
        assert manager.logs() == ()
        await clock.run_for(61)
        assert not any("delete" in name for name in world.names(A))


async def test_stale_checkpoint_entries_do_not_apply_to_new_log(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        append(await manager.create("t", 0, ONE), "a")
    world.files.remove_tree(A / "t-0")  # removed by an operator
    manager = world.manager()
    await manager.load()
    assert world.read(A / RECOVERY) == "0\n0\n"
    manager.directories.close()


async def test_stray_logs_are_closed_and_kept(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        append(await manager.create("t", 0, ONE), "mine")
        append(await manager.create("u", 0, TWO), "whose?")
        assert await manager.rename_stray_logs(lambda name, topic_id: topic_id == TWO) == [("u", 0)]
        assert manager.get("u", 0) is None
        await manager.create("u", 0, THREE)
    assert any(name.startswith("u-0.") and name.endswith("-stray") for name in world.names(B))


async def test_deletion_on_full_disk_succeeds(world: LogManagerWorld) -> None:
    mount = world.disk.mount(A)
    async with world.running() as manager:
        append(await manager.create("t", 0, ONE), "x" * 100)
        await manager.create("t", 2, ONE)
        await manager.checkpoint(RECOVERY_POINTS)
        mount.capacity_bytes = mount.used_bytes
        await manager.delete(TopicPartition("t", 0))
        assert not manager.directories.all[0].failed
        assert RECOVERY not in world.names(A)
        mount.capacity_bytes = 1 << 30
    assert CLEAN_SHUTDOWN_FILE in world.names(A)


# Failures


async def test_io_error_takes_only_its_log_directory_offline(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        logs = [await manager.create("t", number, ONE) for number in range(4)]
        world.disk.fail("/a/t-0/*")
        with pytest.raises(LogFailed):
            append(logs[0], "lost")
        assert [directory.failed for directory in manager.directories.all] == [True, False]
        with pytest.raises(LogFailed, match="log directory /a is offline"):
            manager.get("t", 2)
        with pytest.raises(LogFailed):
            append(logs[2], "its neighbour")
        append(logs[1], "another directory")
        ((failed, lost),) = world.failures
        assert failed.path == A
        assert {log.partition for log in lost} == {0, 2}
        assert sorted(manager.offline) == [("t", 0), ("t", 2)]
        assert (await manager.create("new", 0, TWO)).directory.parent == B
        with pytest.raises(LogFailed):
            await manager.create("t", 2, ONE)
        again = await manager.create("t", 2, THREE)  # the topic was recreated
        assert again.directory.parent == B
        assert manager.get("t", 2) is again
        with pytest.raises(LogFailed, match="because a log directory is offline"):
            await manager.create("old", 0, TWO, is_new=False)
        with pytest.raises(LogFailed):
            await manager.delete(TopicPartition("t", 0))
        assert manager.storage_failed.is_set()  # /a is the metadata log directory too
        world.disk.heal()
    assert CLEAN_SHUTDOWN_FILE not in world.names(A)
    assert CLEAN_SHUTDOWN_FILE in world.names(B)


async def test_kafka_gauges_report_log_directories(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        manager.registry.cordoned = frozenset({A})
        expected = {
            "OfflineLogDirectoryCount": 0,
            "CordonedLogDirectoryCount": 1,
            "LogDirectoryOffline,logDirectory=/a": 0,
            "LogDirectoryOffline,logDirectory=/b": 0,
            "LogDirectoryCordoned,logDirectory=/a": 1,
            "LogDirectoryCordoned,logDirectory=/b": 0,
        }
        assert manager.gauges() == expected
        manager.directories.all[1].fail(OSError(errno.EIO, "gone"))
        offline = {"OfflineLogDirectoryCount": 1, "LogDirectoryOffline,logDirectory=/b": 1}
        assert manager.gauges() == expected | offline


async def test_failure_of_last_log_directory_sets_all_failed(world: LogManagerWorld) -> None:
    world.paths = (A,)
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        world.disk.fail("/a/*", operations={"write"})
        assert not manager.storage_failed.is_set()
        with pytest.raises(LogFailed):
            append(log, "x")
        assert manager.storage_failed.is_set()
        with pytest.raises(LogFailed, match="no log directory is online"):
            await manager.create("u", 0, TWO)


async def test_failed_creation_continues_in_next_directory(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        world.disk.fail("/a/t-0*", operations={"create"})
        log = await manager.create("t", 0, ONE)
        assert log.directory.parent == B
        assert manager.directories.all[0].failed


async def test_creation_on_full_disk_is_undone(world: LogManagerWorld) -> None:
    world.paths = (A,)
    mount = world.disk.mount(A)
    async with world.running() as manager:
        mount.capacity_bytes = mount.used_bytes
        with pytest.raises(DiskFull):
            await manager.create("t", 0, ONE)
        assert "t-0" not in world.names(A)
        assert not manager.directories.all[0].failed
        mount.capacity_bytes = 1 << 30
        append(await manager.create("t", 0, ONE), "now")


async def test_full_disk_at_checkpoint_changes_nothing(world: LogManagerWorld) -> None:
    mount = world.disk.mount(A)
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        append(log, "a")
        await manager.checkpoint(RECOVERY_POINTS)
        before = world.read(A / RECOVERY)
        log.flush()
        mount.capacity_bytes = 0
        await manager.checkpoint(RECOVERY_POINTS)
        assert not manager.directories.all[0].failed
        assert world.read(A / RECOVERY) == before
        mount.capacity_bytes = 1 << 30
        await manager.checkpoint(RECOVERY_POINTS)
        assert "t 0 1" in world.read(A / RECOVERY)


async def test_full_log_directory_is_logged_until_space_is_free(
    world: LogManagerWorld, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Including a failed append to a log without other replicas, which no other node notices."""
    mount = world.disk.mount(A)

    def told() -> list[str]:
        return [each for each in caplog.messages if "log directory /a " in each]

    async with world.running(housekeeping=True) as manager:
        log = await manager.create("t", 0, ONE, directory_id=manager.directories.all[0].id)
        append(log, "a")
        mount.capacity_bytes = mount.used_bytes + 100
        with pytest.raises(DiskFull):
            append(log, "x" * 200)
        await clock.run_for(2)
        (line,) = told()
        assert "no space left in log directory /a ([Errno 28]" in line
        assert " B of 8.3 KiB are available" in line
        await clock.run_for(115)
        assert len(told()) == 2
        mount.capacity_bytes = 1 << 30
        await clock.run_for(2)
        assert "/a has free space again" in told()[-1]
        await clock.run_for(120)
        assert len(told()) == 3
        assert not manager.directories.all[0].failed
    assert ".room" not in world.names(A)


async def test_full_log_directory_is_detected_by_allocation(
    world: LogManagerWorld, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A quota or a lack of inodes: the file system reports free space."""
    async with world.running(housekeeping=True) as manager:
        world.disk.fail("/a/*", errno.EDQUOT, {"create"})
        with pytest.raises(DiskFull):
            await manager.create("t", 0, ONE, directory_id=manager.directories.all[0].id)
        await clock.run_for(59)
        assert [each.partition(" (")[0] for each in caplog.messages] == [
            "no space left in log directory /a"
        ]
        world.disk.heal()
        await clock.run_for(2)
        assert "/a has free space again" in caplog.messages[-1]


async def test_allocation_file_of_killed_process_is_removed_at_start(
    world: LogManagerWorld,
) -> None:
    world.files.make_directory(A)
    world.files.open(A / ".room", create=True).preallocate(1 << 20)
    async with world.running():
        assert ".room" not in world.names(A)


async def test_log_that_cannot_be_opened_is_offline_alone(
    world: LogManagerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.running() as manager:
        for number in range(4):
            append(await manager.create("t", number, ONE), str(number), "and more")
        damaged = manager.get("t", 1)
        assert damaged is not None
        damaged.advance_log_start(1, "asked to")
    metadata = B / "t-1" / "partition.metadata"
    before = world.files.read(metadata)
    world.files.write_new(metadata, b"garbage")
    caplog.clear()
    async with world.running() as manager:
        assert not any(directory.failed for directory in manager.directories.all)
        assert sorted(log.partition for log in manager.logs()) == [0, 2, 3]
        with pytest.raises(LogFailed, match="failed to load log /b/t-1"):
            manager.get("t", 1)
        with pytest.raises(LogFailed):
            await manager.create("t", 1, ONE, is_new=False)
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "/b/t-1 is offline" in line.getMessage()
    assert line.exc_info is None
    assert CLEAN_SHUTDOWN_FILE in world.names(A)
    assert CLEAN_SHUTDOWN_FILE not in world.names(B)
    world.files.write_new(metadata, before)
    async with world.running() as manager:
        mended = manager.get("t", 1)
        assert mended is not None
        assert mended.log_start_offset == 1  # deleted records stay deleted


async def test_unexpected_error_while_opening_takes_only_the_log_offline(
    world: LogManagerWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.running() as manager:
        await manager.create("t", 0, ONE)
        await manager.create("u", 0, TWO)

    def broken(data: bytes) -> None:
        raise ZeroDivisionError

    real = partition_metadata.parse_metadata
    monkeypatch.setattr(
        partition_metadata,
        "parse_metadata",
        lambda data: broken(data) if data.endswith(uuid_to_text(ONE).encode()) else real(data),
    )
    async with world.running() as manager:
        assert [log.topic for log in manager.logs()] == ["u"]
        assert manager.offline == (TopicPartition("t", 0),)
        assert not any(directory.failed for directory in manager.directories.all)
    assert "ZeroDivisionError" in caplog.text


async def test_unreadable_log_directory_is_offline_after_start(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        await manager.create("t", 0, ONE)
    world.disk.fail("/b", operations={"list"})
    async with world.running() as manager:
        assert manager.directories.all[1].failed
        assert manager.get("t", 0) is not None
    world.disk.heal()
    world.disk.fail("/a", operations={"list"})
    async with world.running() as manager:
        assert manager.storage_failed.is_set()
    world.disk.heal()
    world.disk.fail("/a/.lock")
    with pytest.raises(NoDirectory):
        world.manager()


@pytest.mark.parametrize("what", ["read-only", "unmounted", "dead"])
async def test_missing_idle_log_directory_is_detected(
    world: LogManagerWorld, clock: VirtualClock, what: str
) -> None:
    """Periodic checks find read-only remounts and unmounted disks without writes."""
    async with world.running(housekeeping=True) as manager:
        log = await manager.create("t", 0, ONE, directory_id=manager.directories.all[1].id)
        other = await manager.create("u", 0, TWO, directory_id=manager.directories.all[0].id)
        await world.clock.run_for(10)
        assert world.failures == []
        if what == "read-only":
            world.disk.make_read_only("/b*")
        elif what == "unmounted":
            world.disk.mount(B)
        else:
            world.disk.fail("/b*")
        await world.clock.run_for(2)
        assert [directory.path for directory, _ in world.failures] == [B]
        with pytest.raises(LogFailed):
            append(log, "lost")
        append(other, "kept")


async def test_failure_in_worker_thread_is_reported_on_the_loop(world: LogManagerWorld) -> None:
    world.threads = True
    where = []
    world.on_failure = lambda directory, logs: where.append(trio.lowlevel.in_trio_run())
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        append(log, "a")
        world.disk.fail("/a/t-0/*.log", operations={"sync"})
        with pytest.raises(LogFailed):
            await manager.offload.run(log.flush, lane="/a")
        await trio.testing.wait_all_tasks_blocked()
        assert where == [True]
        assert manager.directories.all[0].failed
        with pytest.raises(LogFailed):
            manager.get("t", 0)


class NoneLeft(VirtualFiles):
    """Fails without file descriptors while it is set."""

    exhausted = ""

    def open(self, path: Path, *, create: bool = False, write: bool = False):  # type: ignore[no-untyped-def]
        if self.exhausted and self.exhausted in str(path):
            raise OutOfDescriptors(errno.EMFILE, "too many")
        return super().open(path, create=create, write=write)


async def test_missing_file_descriptors_fail_no_log_directory(world: LogManagerWorld) -> None:
    files = world.files = NoneLeft(world.disk)
    async with world.running() as manager:
        files.exhausted = "t-0"
        with pytest.raises(NoDescriptors):
            await manager.create("t", 0, ONE)
        files.exhausted = ""
        assert not any(directory.failed for directory in manager.directories.all)
        append(await manager.create("t", 0, ONE), "a")
    manager = world.manager()
    files.exhausted = "t-0"
    with pytest.raises(NoDirectory, match="ulimit"):
        await manager.load()
    manager.directories.close()


# Background tasks


async def test_checkpoints_are_written_periodically_and_only_after_changes(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    async with world.running(housekeeping=True) as manager:
        run_for = clock.run_for
        log = await manager.create("t", 0, ONE)
        append(log, "a")
        await run_for(5.5)
        assert "t 0 1" in world.read(A / WATERMARKS)
        assert RECOVERY not in world.names(A)
        log.flush()
        log.advance_log_start(1, "asked to")
        await run_for(60)
        assert "t 0 1" in world.read(A / RECOVERY)
        assert "t 0 1" in world.read(A / STARTS)
        syncs = world.files.syncs
        await run_for(600)
        assert world.files.syncs == syncs


async def test_expired_segments_are_deleted_and_unlinked(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    world.configs["t"] = LogConfig(
        internal_segment_bytes=300, retention_ms=1_000_000, file_delete_delay_ms=20_000
    )
    async with world.running(housekeeping=True) as manager:
        run_for = clock.run_for
        log = await manager.create("t", 0, ONE)
        for _ in range(20):
            append(log, "x" * 60, now_ms=clock.wall_ms())
        assert len(log.segments) > 3
        files = len(world.names(A / "t-0"))
        await run_for(900)
        assert log.log_start_offset == 0
        await run_for(420)
        assert log.log_start_offset == 20
        await run_for(60)
        names = world.names(A / "t-0")
        assert len(names) < files
        assert not any(name.endswith(".deleted") for name in names)


async def test_rolled_segment_is_flushed(world: LogManagerWorld, clock: VirtualClock) -> None:
    async with world.running(housekeeping=True) as manager:
        log = await manager.create("t", 0, ONE)
        while len(log.segments) == 1:
            append(log, "x" * 60)
        assert log.recovery_point == 0
        await clock.settle()
        assert log.recovery_point == log.segments[1].base_offset


async def test_flush_messages_triggers_flush(world: LogManagerWorld, clock: VirtualClock) -> None:
    world.configs["t"] = LogConfig(flush_messages=2)
    async with world.running(housekeeping=True) as manager:
        log = await manager.create("t", 0, ONE)
        append(log, "a")
        append(log, "b")
        assert log.recovery_point == 0
        await clock.settle()
        assert log.recovery_point == 2


async def test_flush_without_file_descriptors_is_retried(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    """No append is needed for that: requests may wait for the high watermark."""
    world.configs["t"] = LogConfig(flush_messages=1)
    async with world.running(housekeeping=True) as manager:
        log = await manager.create("t", 0, ONE)
        told: list[int] = []
        log.on_flushed = lambda: told.append(log.recovery_point)
        world.disk.fail("*.log", errno.EMFILE, {"sync"}, times=2)
        append(log, "a")
        await clock.settle()
        assert (log.recovery_point, log.failure) == (0, None)
        await clock.run_for(5)
        assert log.recovery_point == 1
        assert told == [0, 0, 1]


async def test_data_made_durable_by_a_move_is_notified_as_flush(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    """The future replica that becomes the log may be durable already."""
    world.configs["t"] = LogConfig(flush_messages=1)
    async with world.running(housekeeping=True) as manager:
        log = await manager.create("t", 0, ONE)
        told: list[int] = []
        log.on_flushed = lambda: told.append(log.recovery_point)
        async with manager.registry.holding_file_lock(log):
            append(log, "a")
            await clock.settle()
            log.flush()
        await clock.settle()
        assert told == [1]


async def test_concurrent_flush_requests_share_flush(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        append(log, "the first one syncs names too")
        await manager.flush(log, 1)
        before = world.files.syncs
        append(log, "a")
        await manager.flush(log, 2)
        one = world.files.syncs - before
        append(log, "b", "c")
        async with trio.open_nursery() as nursery:
            for up_to in (3, 4, 4):
                nursery.start_soon(manager.flush, log, up_to)
        assert world.files.syncs - before == 2 * one
        append(log, "d")
        log.fail(LogFailed("gone"))
        await manager.flush(log, 4)
        with pytest.raises(LogFailed):
            await manager.flush(log, 5)


async def test_truncation_excludes_flush_and_lowers_recovery_point_first(
    world: LogManagerWorld,
) -> None:
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        for number in range(6):
            append(log, f"value {number}")
        await manager.flush(log, 6)
        await manager.checkpoint(RECOVERY_POINTS)
        async with manager.registry.holding_file_lock(log), trio.open_nursery() as nursery:
            nursery.start_soon(manager.truncate, log, 4)
            await trio.testing.wait_all_tasks_blocked()
            assert log.end_offset == 6
            nursery.cancel_scope.cancel()
        await manager.truncate(log, 4)
        assert contents(log) == [f"value {number}" for number in range(4)]
        assert "t 0 4" in world.read(A / RECOVERY)
        await manager.truncate_fully(log, EmptyLogStart(9, 2))
        assert "t 0 2" in world.read(A / STARTS)
        assert (log.log_start_offset, log.end_offset) == (2, 9)


async def test_flush_ms_applies_while_scheduler_runs(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    world.intervals = LogManagerIntervals(flush_check_ms=1_000)
    world.configs["t"] = LogConfig(flush_ms=10_000)
    async with world.running(housekeeping=True) as manager:
        run_for = clock.run_for
        log = await manager.create("t", 0, ONE)
        other = await manager.create("u", 0, TWO)
        append(log, "a")
        append(other, "a")
        await run_for(8)
        assert log.recovery_point == 0
        await run_for(8)
        assert log.recovery_point == 1
        assert other.recovery_point == 0


async def test_idle_producers_expire(world: LogManagerWorld, clock: VirtualClock) -> None:
    world.intervals = LogManagerIntervals(
        producer_id_check_ms=10_000, producer_id_expiration_ms=90_000
    )
    from odradek.protocol.records.records import Record, build_batch

    async with world.running(housekeeping=True) as manager:
        log = await manager.create("t", 0, ONE)
        batch = build_batch(
            [Record(-1, clock.wall_ms(), None, b"v")],
            producer_id=5,
            producer_epoch=0,
            base_sequence=0,
        )
        log.append_as_leader(memoryview(batch), leader_epoch=0, now_ms=clock.wall_ms())
        assert 5 in log.producers.active
        await clock.run_for(60)
        assert 5 in log.producers.active
        await clock.run_for(60)
        assert 5 not in log.producers.active


async def test_unexpected_error_fences_log_and_task_continues(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    async with world.running(housekeeping=True) as manager:
        broken = await manager.create("t", 0, ONE)
        good = await manager.create("t", 1, ONE)

        def bug(now_ms: int) -> int:
            raise ZeroDivisionError

        broken.delete_expired = bug  # type: ignore[method-assign]
        await clock.run_for(400)
        assert isinstance(broken.failure, ZeroDivisionError)
        assert good.failure is None
        assert not any(directory.failed for directory in manager.directories.all)


async def test_unexpected_error_in_flush_affects_only_its_log(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    world.configs["t"] = LogConfig(flush_messages=1)
    async with world.running(housekeeping=True) as manager:
        broken = await manager.create("t", 0, ONE)
        good = await manager.create("t", 1, ONE)

        def bug(up_to: int | None = None) -> None:
            raise ZeroDivisionError

        broken.flush = bug  # type: ignore[method-assign]
        for each in (broken, good):
            append(each, "a")
        await clock.settle()
        assert isinstance(broken.failure, ZeroDivisionError)
        assert good.recovery_point == 1
        append(good, "b")
        await clock.settle()
        assert good.recovery_point == 2


async def test_log_that_cannot_be_closed_is_deleted(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        broken = await manager.create("t", 0, ONE)
        await manager.create("t", 1, ONE)

        def bug(clean: bool) -> None:
            raise ZeroDivisionError

        broken.close = bug  # type: ignore[method-assign]
        await manager.delete(TopicPartition("t", 0), TopicPartition("t", 1))
        assert not {"t-0", "t-1"} & {*world.names(A), *world.names(B)}


async def test_config_changes_are_applied_to_logs(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        one, two = await manager.create("t", 0, ONE), await manager.create("u", 0, TWO)
        assert one.config == SMALL
        world.configs["t"] = world.configs["u"] = LogConfig(retention_ms=5)
        manager.update_configs(["t"])
        assert (one.config.retention_ms, two.config) == (5, SMALL)
        manager.update_configs()
        assert two.config.retention_ms == 5


@pytest.mark.parametrize("grows_to", [5, 14], ids=["below the old start", "past it"])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["truncated", "restarted"])
async def test_lowered_log_start_keeps_later_appends(
    world: LogManagerWorld, grows_to: int, is_restarted: bool
) -> None:
    """With the old checkpoint, the next start would delete them."""
    world.paths = (A,)
    manager = world.manager()
    await manager.load()
    log = await manager.create("t", 0, ONE)
    for number in range(12):
        append(log, f"old {number}")
    log.advance_log_start(10, "DeleteRecords")
    log.delete_expired(T0)
    await manager.checkpoint([Checkpoint.LOG_START])
    if is_restarted:
        await manager.truncate_fully(log, EmptyLogStart.at(2))
    else:
        await manager.truncate(log, 2)
    assert (log.log_start_offset, log.end_offset) == (2, 2)
    new = [f"new {number}" for number in range(2, grows_to)]
    for each in new:
        append(log, each, epoch=1)
    log.flush()
    manager.directories.close()
    async with world.killed().running() as manager:
        (log,) = manager.logs()
        assert contents(log) == new


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_failed_checkpoint_of_lowered_log_start_takes_directory_offline(
    world: LogManagerWorld, code: int
) -> None:
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        for number in range(12):
            append(log, f"old {number}")
        log.advance_log_start(10, "DeleteRecords")
        log.delete_expired(T0)
        await manager.checkpoint([Checkpoint.LOG_START])
        world.disk.fail(f"{log.directory.parent}/{STARTS}*", code, {"write", "create", "open"})
        await manager.truncate(log, 2)
        assert manager.offline == (("t", 0),)
        assert log.failure is not None


async def test_checkpoint_of_lowered_log_start_waits_for_file_descriptors(
    world: LogManagerWorld, clock: VirtualClock
) -> None:
    """A start before the next checkpoint would use the old log start offset, and the replica
    would lose records that its leader counts as replicated."""
    world.paths = (A,)
    manager = world.manager()
    await manager.load()
    log = await manager.create("t", 0, ONE)
    for number in range(12):
        append(log, f"old {number}")
    log.advance_log_start(10, "DeleteRecords")
    log.delete_expired(T0)
    await manager.checkpoint([Checkpoint.LOG_START])
    lack = world.disk.fail(f"{A}/{STARTS}*", errno.EMFILE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.truncate, log, 2)
        await clock.run_for(1)
        world.disk.heal(lack)
        await clock.run_for(1)
        assert log.failure is None
    append(log, "new 2", epoch=1)
    log.flush()
    manager.directories.close()
    async with world.killed().running() as manager:
        (log,) = manager.logs()
        assert contents(log) == ["new 2"]


async def test_truncation_writes_recovery_point_first(world: LogManagerWorld) -> None:
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        for at in range(10):
            append(log, str(at))
        log.flush()
        await manager.checkpoint(RECOVERY_POINTS)
        assert "t 0 10" in world.read(A / RECOVERY)
        log.truncate_to(4)
        assert "t 0 4" in world.read(A / RECOVERY)
