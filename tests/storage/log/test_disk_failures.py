"""Full disks, failing disks and missing file descriptors: errors of the calls, and the state of
the log afterwards."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable

import pytest

from odradek.protocol.records.batch import Batch
from odradek.seams.files import OutOfDescriptors
from odradek.storage.errors import DiskFull, LogFailed, NoDescriptors
from odradek.storage.log.file_names import METADATA
from odradek.storage.log.partition_metadata import read_topic_id
from odradek.storage.log.segment import Segment
from odradek.testing.virtual_disk import VirtualDisk
from tests.support.partition_logs import (
    DIRECTORY,
    FOREVER,
    NOW_MS,
    ROOT,
    TOPIC_ID,
    LogWorld,
    batch,
    check_indexes,
    idempotent,
    offsets_in,
    raises_offline,
    read_batches,
    records_in,
)

CONFIG = dataclasses.replace(FOREVER, internal_segment_bytes=3000, index_interval_bytes=100)


def limited(capacity_bytes: int) -> LogWorld:
    disk = VirtualDisk()
    disk.mount(ROOT, capacity_bytes)
    return LogWorld(CONFIG, disk)


def fill(world: LogWorld) -> None:
    """Append until the disk is full."""
    while True:
        world.append(idempotent(7, world.log.end_offset, size=100))


@pytest.mark.parametrize("room", [*range(10_000, 14_200, 97)])
def test_full_disk_fails_append_and_changes_nothing(room: int) -> None:
    """The space ends in the data, an index, a new segment's files, or a snapshot."""
    world = limited(room)
    with pytest.raises(DiskFull):
        fill(world)
    appended = world.log.end_offset
    assert world.log.failure is None
    assert world.failures == []
    assert offsets_in(world.log) == list(range(appended))
    before = records_in(world.log)
    with pytest.raises(DiskFull):
        fill(world)
    # After space is freed, the retry of the producer succeeds.
    world.disk.mount_of(ROOT).capacity_bytes = 10**6
    end = world.log.end_offset
    assert not world.append(idempotent(7, end, size=100)).duplicate
    assert records_in(world.log)[: len(before)] == before
    assert offsets_in(world.log) == list(range(end + 1))
    check_indexes(world)
    world.flush()
    world.kill()
    assert offsets_in(world.log) == list(range(end + 1))
    check_indexes(world)


def test_partial_write_on_full_disk_does_not_reappear() -> None:
    """The same batch comes from the next leader, and the power fails: no CRC covers the leader
    epoch."""
    for seed in range(200):
        world = limited(10**6)
        world.append(idempotent(7, 0))
        world.flush()
        disk = world.disk.mount_of(ROOT)
        disk.capacity_bytes = disk.used_bytes + 300
        with pytest.raises(DiskFull):
            world.append(idempotent(7, 1, size=1000), epoch=1)
        disk.capacity_bytes = 10**6
        world.kill()
        again = idempotent(7, 1, size=1000)
        Batch(again, 0).stamp(base_offset=1, leader_epoch=2)
        world.log.append_as_follower(again)
        log = world.power_cut(seed)
        assert all(each.leader_epoch == 2 for each in read_batches(log, 1, log.end_offset))


def test_retention_frees_space_on_full_disk() -> None:
    world = limited(20_000)
    with pytest.raises(DiskFull):
        fill(world)
    log = world.log
    log.advance_high_watermark(log.end_offset)
    log.update_config(dataclasses.replace(CONFIG, retention_bytes=3000, file_delete_delay_ms=0))
    assert log.delete_expired(NOW_MS) > 0
    assert log.remove_deleted(NOW_MS) > 0
    world.append(batch(size=100))


@pytest.mark.parametrize("capacity_bytes", range(12_000, 13_000, 67))
def test_delete_records_frees_space_on_full_disk(capacity_bytes: int) -> None:
    """The only segment is the active one, and almost no space is left."""
    world = limited(capacity_bytes)
    log = world.log
    log.update_config(
        dataclasses.replace(CONFIG, internal_segment_bytes=10**6, file_delete_delay_ms=0)
    )
    world.append(idempotent(7, 0))
    with pytest.raises(DiskFull):
        fill(world)
    end = log.end_offset
    log.advance_high_watermark(end)
    log.advance_log_start(end, "DeleteRecords")
    assert log.delete_expired(NOW_MS) == 1
    assert log.remove_deleted(NOW_MS) == 1
    world.append(batch(size=100))
    for again in (world.reopen(), world.kill()):
        assert (again.log_start_offset, again.end_offset) == (end, end + 1)
        assert offsets_in(again, end) == [end]


def test_full_disk_expires_all_but_active_segment() -> None:
    world = limited(20_000)
    with pytest.raises(DiskFull):
        fill(world)
    log = world.log
    log.advance_high_watermark(log.end_offset)
    log.update_config(dataclasses.replace(CONFIG, retention_ms=0))
    mount = world.disk.mount_of(ROOT)
    mount.capacity_bytes = mount.used_bytes
    before = len(log.segments)
    assert log.delete_expired(NOW_MS + 10**6) == before - 1
    mount.capacity_bytes = 20_000
    log.remove_deleted(NOW_MS + 10**9)
    assert log.delete_expired(NOW_MS + 10**6) == 1
    assert log.log_start_offset == log.end_offset


def test_log_is_opened_and_read_on_full_disk() -> None:
    world = limited(20_000)
    with pytest.raises(DiskFull):
        fill(world)
    end = world.log.end_offset
    mount = world.disk.mount_of(ROOT)
    mount.capacity_bytes = mount.used_bytes
    for clean in (False, True):
        world.log.close(clean)
        world.log = world.open(clean=clean)
        assert offsets_in(world.log) == list(range(end))


def test_full_disk_while_saving_epochs_leaves_log_unchanged() -> None:
    world = limited(1 << 20)
    for n in range(20):
        world.append(batch(size=100), epoch=n // 5)
    mount = world.disk.mount_of(ROOT)
    mount.capacity_bytes = mount.used_bytes
    epochs = world.log.epochs.entries
    for call in (world.log.flush, lambda: world.log.truncate_to(7)):
        with pytest.raises(DiskFull):
            call()
        assert world.log.epochs.entries == epochs
        assert offsets_in(world.log) == list(range(20))
    mount.capacity_bytes = 1 << 20
    world.log.flush()
    world.log.truncate_to(7)
    assert offsets_in(world.log) == list(range(7))


def test_full_disk_at_sync_takes_log_offline() -> None:
    """Acknowledged records may be lost."""
    world = LogWorld(CONFIG)
    world.append()
    world.disk.fail("*.log", errno.ENOSPC, {"sync"})
    with pytest.raises(LogFailed):
        world.log.flush()
    assert raises_offline(lambda: world.append())


def filled() -> LogWorld:
    world = LogWorld(dataclasses.replace(CONFIG, internal_segment_bytes=600))
    for n in range(20):
        world.append(idempotent(7, n, size=60), epoch=n // 5)
    world.log.advance_high_watermark(20)
    return world


CALLS: dict[str, Callable[[LogWorld], object]] = {
    "append": lambda world: world.append(),
    "append as follower": lambda world: world.log.append_as_follower(_next(world)),
    "roll": lambda world: world.log.roll(),
    "flush": lambda world: world.log.flush(),
    "truncate": lambda world: world.log.truncate_to(15),
    "start anew": lambda world: world.log.truncate_fully_and_start_at(40),
    "expire": lambda world: world.log.delete_expired(NOW_MS + 10**12),
    "read": lambda world: world.log.read(3, 100, limit=20),
    "find a timestamp": lambda world: world.log.find_timestamp(NOW_MS),
    "rename": lambda world: world.log.rename_directory(ROOT / "t-1"),
}


def _next(world: LogWorld) -> memoryview:
    data = batch()
    data[0:8] = world.log.end_offset.to_bytes(8, "big")
    return data


@pytest.mark.parametrize("name", CALLS)
def test_io_error_takes_log_offline_once(name: str) -> None:
    world = filled()
    world.log.update_config(dataclasses.replace(CONFIG, retention_ms=1))
    world.reopen()  # with nothing in memory
    world.log.advance_high_watermark(20)
    world.append()
    world.log.update_config(dataclasses.replace(CONFIG, retention_ms=1))
    world.disk.fail("/logs/t-0*", errno.EIO)
    with pytest.raises(LogFailed):
        CALLS[name](world)
    assert [error.errno for error in world.failures] == [errno.EIO]
    world.disk.heal()
    assert all(raises_offline(lambda call=call: call(world)) for call in CALLS.values())  # type: ignore[misc]
    assert len(world.failures) == 1
    # A restart finds the acknowledged records.
    world.kill()
    assert world.log.end_offset >= 15 or world.log.log_start_offset > 0


def test_log_on_read_only_disk_is_readable() -> None:
    world = filled()
    world.flush()
    world.disk.make_read_only("*")
    assert offsets_in(world.log) == list(range(20))
    with pytest.raises(LogFailed):
        world.append()


@pytest.mark.parametrize(("code", "told"), [(errno.EIO, LogFailed), (errno.ENOSPC, DiskFull)])
def test_topic_id_is_assigned_after_it_is_durable(code: int, told: type[Exception]) -> None:
    world = LogWorld()
    world.log.topic_id = None
    world.files.remove(DIRECTORY / METADATA)
    fault = world.disk.fail(f"*/{METADATA}*", code)
    with pytest.raises(told):
        world.log.assign_topic_id(TOPIC_ID)
    assert world.log.topic_id is None
    world.disk.heal(fault)
    if told is DiskFull:
        world.log.assign_topic_id(TOPIC_ID)
        assert read_topic_id(world.files, DIRECTORY) == world.log.topic_id == TOPIC_ID
    else:
        assert raises_offline(lambda: world.log.assign_topic_id(TOPIC_ID))


def test_failed_sync_is_not_retried() -> None:
    world = filled()
    fault = world.disk.fail("*00.log", errno.EIO, {"sync"})
    with pytest.raises(LogFailed):
        world.log.flush()
    world.disk.heal(fault)
    syncs = world.files.syncs
    assert raises_offline(world.log.flush)
    with pytest.raises(LogFailed):
        world.append()
    world.log.close(True)
    assert world.files.syncs == syncs
    assert world.log.recovery_point == 0


def test_failed_clean_close_raises() -> None:
    world = filled()
    world.disk.fail("*.snapshot", errno.EIO)
    with pytest.raises(LogFailed):
        world.log.close(True)


def test_missing_file_descriptors_fail_append_without_change() -> None:
    world = filled()
    check = world.disk.check

    def exhausted(operation: str, path: object) -> None:
        raise OutOfDescriptors(errno.EMFILE, "no descriptors", str(path))

    for call in ("append", "read", "flush", "roll", "expire"):
        world.disk.check = exhausted  # type: ignore[method-assign]
        if call == "expire":
            world.log.update_config(dataclasses.replace(CONFIG, retention_ms=1))
        with pytest.raises(NoDescriptors):
            CALLS[call](world)
        world.disk.check = check  # type: ignore[method-assign]
        assert world.log.failure is None
    world.log.update_config(CONFIG)
    assert offsets_in(world.log) == list(range(20))
    assert world.append().first_offset == 20
    world.log.flush()
    assert world.log.recovery_point == 21


def test_pinned_slice_is_readable_after_log_failure() -> None:
    world = filled()
    read = world.log.read(3, 100, limit=20)
    assert read.slice is not None
    before = read.slice.read()
    world.log.delete()
    assert not world.files.exists(DIRECTORY)
    assert read.slice.read() == before


def test_unexpected_error_after_write_takes_log_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is in the file but before the log end, so another one would get its offset too."""

    def broken(segment: Segment, batches: object, position: int) -> None:
        raise RuntimeError("nobody has thought of it")

    world = LogWorld(CONFIG)
    world.append()
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "index_batches", broken)
        with pytest.raises(RuntimeError):
            world.append(batch(size=30))
    with pytest.raises(LogFailed):
        world.append(batch(size=40))
    world.kill()
    assert offsets_in(world.log) == [*range(world.log.end_offset)]
    assert not world.failures  # the directory stays online
