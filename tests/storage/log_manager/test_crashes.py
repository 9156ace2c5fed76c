"""Power failure at every sync of a node's run. One scripted run on two disks creates, writes,
rolls, flushes, checkpoints, truncates, deletes and recreates logs, and closes them. It is
repeated, each time ended one sync later, before or after the sync takes effect, and the next
start runs on several images that the failure may leave."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
import trio

from odradek.protocol.topics import TopicPartition
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.log_manager import LogManager
from odradek.testing.power import NodeCrashed
from odradek.testing.virtual_files import VirtualFiles
from tests.support.log_managers import ONE, SMALL, TWO, A, B, LogManagerWorld, append, contents
from tests.support.replica_moves import CountingPower

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
IMAGES = 3


OLD, NEW = TWO, ONE  # topic ids of "u" before and after its recreation


@dataclass
class ExpectedRecords:
    """What must be in the logs and what may be, by topic; `old u` is the deleted topic."""

    synced: dict[str, list[str]] = field(default_factory=dict)
    """A log begins with these."""
    histories: dict[str, list[list[str]]] = field(default_factory=dict)
    """A log is a prefix of one of these; more than one after a truncation."""
    is_deleted: bool = False
    """Whether the deletion of `old u` is done: it must not come back under its name."""

    def write(self, topic: str, log: PartitionLog, *values: str) -> None:
        """A record whose append did not return may be in the log."""
        history = self.histories.setdefault(topic, [[]])
        history[-1].extend(values)
        append(log, *values)

    def flush(self, topic: str, log: PartitionLog) -> None:
        log.flush()
        self.synced[topic] = list(self.histories[topic][-1])

    def truncate(self, topic: str, log: PartitionLog, offset: int) -> None:
        kept = self.histories[topic][-1][:offset]
        self.synced[topic] = self.synced[topic][:offset]
        self.histories[topic].append(kept)
        log.truncate_to(offset)


async def use_logs(manager: LogManager, expected: ExpectedRecords) -> None:
    """All operations that make changes durable in several steps."""
    checkpoint = manager.checkpoint
    t = await manager.create("t", 0, ONE)
    u = await manager.create("u", 0, OLD)
    for at in range(8):
        expected.write("t", t, f"t{at}" + "x" * 60)
    expected.flush("t", t)
    await checkpoint([Checkpoint.RECOVERY_POINT, Checkpoint.HIGH_WATERMARK])
    expected.write("old u", u, *(f"old {at}" for at in range(5)))
    expected.flush("old u", u)
    await checkpoint([Checkpoint.RECOVERY_POINT])

    del expected.synced["old u"]
    await manager.delete(TopicPartition("u", 0))
    expected.is_deleted = True
    u = await manager.create("u", 0, NEW)
    expected.write("u", u, "new 0")
    expected.flush("u", u)

    expected.truncate("t", t, 5)
    expected.write("t", t, "after the cut")
    expected.flush("t", t)
    t.advance_log_start(2, "asked to")
    await checkpoint([Checkpoint.RECOVERY_POINT, Checkpoint.LOG_START])
    expected.write("u", u, "new 1")


async def run_until_crash(world: LogManagerWorld) -> ExpectedRecords:
    """One run, which ends normally or by the power failure."""
    expected = ExpectedRecords()
    try:
        manager = world.manager()
        await manager.load()
        await use_logs(manager, expected)
        await manager.close()
        manager.directories.close()
    except NodeCrashed:
        pass
    except BaseExceptionGroup as group:
        if group.split(NodeCrashed)[1] is not None:
            raise
    return expected


async def check_next_run(world: LogManagerWorld, expected: ExpectedRecords) -> None:
    marked = [path for path in (A, B) if world.disk.find(path / CLEAN_SHUTDOWN_FILE) is not None]
    async with world.running() as manager:
        assert not any(directory.failed for directory in manager.directories.all)
        assert expected.synced.keys() <= {log.topic for log in manager.logs()} | {"old u"}
        for log in manager.logs():
            check_log(log, expected, whole=log.directory.parent in marked)
            append(log, "later append")
    async with world.running() as manager:
        for log in manager.logs():
            assert contents(log)[-1] == "later append"


def check_log(log: PartitionLog, expected: ExpectedRecords, *, whole: bool) -> None:
    if log.topic_id is None:  # the crash interrupted its creation: no record was acknowledged
        assert log.end_offset == 0
        return
    name = "old u" if log.topic == "u" and log.topic_id == OLD else log.topic
    assert not (name == "old u" and expected.is_deleted)
    found, start = contents(log), log.log_start_offset
    synced = expected.synced.get(name, [])
    assert found[: max(0, len(synced) - start)] == synced[start:]
    histories = expected.histories.get(name, [[]])
    if whole:  # closed cleanly in this run or the previous one: all records
        assert found in (histories[-1][start:], synced[start:])
    else:
        assert any(found == history[start : start + len(found)] for history in histories)


async def syncs_of_a_life() -> int:
    world = LogManagerWorld()
    await run_until_crash(world)
    assert world.files.power.on
    assert world.disk.find(A / CLEAN_SHUTDOWN_FILE) is not None
    return world.files.syncs


@pytest.mark.slow
@pytest.mark.parametrize("when", ["at", "after"])
async def test_power_cut_at_every_sync(when: str) -> None:
    total = await syncs_of_a_life()
    assert total > 40
    for number in range(1, total + 1):
        world = LogManagerWorld()
        if when == "at":
            world.files.cut_power_at(number)
        else:
            world.files.cut_power_after(number)
        expected = await run_until_crash(world)
        assert not world.files.power.on
        for seed in range(IMAGES):
            try:
                await check_next_run(world.crashed(seed), expected)
            except BaseException as error:
                error.add_note(f"power cut {when} sync {number} of {total}, image {seed}")
                raise


async def test_no_byte_changes_after_power_cut() -> None:
    world = LogManagerWorld()
    world.files.cut_power_at(60)
    await run_until_crash(world)
    before = world.disk.fingerprint()
    with pytest.raises(NodeCrashed):
        world.files.write_new(A / "anything", b"")
    assert world.disk.fingerprint() == before


async def test_crash_while_loading_is_unclean_shutdown() -> None:
    """The clean shutdown file is removed durably before the first log is opened."""
    total = await syncs_of_a_life()
    for number in range(1, 8):
        world = LogManagerWorld()
        expected = await run_until_crash(world)
        for topic in ("t", "u"):
            history = expected.histories[topic][-1]
            expected.synced[topic] = list(history)
            history.append("unsynced")
        world.files.cut_power_at(total + number)
        with pytest.raises((NodeCrashed, BaseExceptionGroup)):
            await _load_and_close(world)
        for seed in range(IMAGES):
            await check_next_run(world.crashed(seed), expected)


async def _load_and_close(world: LogManagerWorld) -> None:
    manager = world.manager()
    await manager.load()
    for log in manager.logs():
        append(log, "unsynced")
    await manager.close()


async def start_with_empty_duplicate(power: CountingPower) -> LogManagerWorld:
    """A replica's log, and an empty log of it that a failed creation left in another directory; a
    start removes the empty one, until the power failure."""
    world = LogManagerWorld()
    async with world.running() as manager:
        append(await manager.create("t", 0, ONE), "all there is")
        await manager.create("t", 1, ONE)
    world.files.rename(B / "t-1", B / "t-0")
    world.files = VirtualFiles(world.disk, power)
    with suppress(NodeCrashed, BaseExceptionGroup):
        manager = world.manager()
        await manager.load()
        await manager.close()
        manager.directories.close()
    return world


async def test_empty_duplicate_log_is_removed_completely_despite_kills() -> None:
    power = CountingPower()
    await start_with_empty_duplicate(power)
    assert power.uses > 50
    for at in range(1, power.uses):
        world = await start_with_empty_duplicate(CountingPower(at))
        assert not world.files.power.on
        for next_life in (world.crashed(0), world.crashed(1), world.killed()):
            try:
                async with next_life.running() as manager:
                    (log,) = manager.logs()
                    assert contents(log) == ["all there is"]
                assert "t-0" not in next_life.names(B)
            except BaseException as error:
                error.add_note(f"killed at use {at} of {power.uses}")
                raise


async def with_lost_segment_end() -> tuple[LogManagerWorld, list[int]]:
    """A node that was killed; the end of an inactive segment is lost without an incomplete batch, so
    that the next segment starts too late. Returns the remaining records."""
    world = LogManagerWorld(paths=(A,), configs={"t": replace(SMALL, cleanup_policy=("compact",))})
    manager = world.manager()
    await manager.load()
    log = await manager.create("t", 0, ONE)
    for number in range(9):
        append(log, f"{number}" + "x" * 50, key=b"%d" % number)
    first, second, *_ = log.segments
    size = world.files.file_size(first.path(".log"))
    batch_bytes = size // (second.base_offset - first.base_offset)
    manager.directories.close()  # like a killed process
    world.killed().files.open(first.path(".log"), write=True).truncate(size - batch_bytes)
    last = second.base_offset - 1
    return world, [*range(last), *range(last + 1, 9)]


async def numbers_after_a_kill(world: LogManagerWorld) -> list[int]:
    """Records in the next run, which is killed too."""
    manager = world.manager()
    await manager.load()
    log = manager.get("t", 0)
    assert log is not None
    found = [int(value.rstrip("x")) for value in contents(log)]
    manager.directories.close()
    world.killed()
    return found


async def test_batch_lost_before_a_roll_is_detected() -> None:
    """In a compacted log too: its gaps are below the recovery point."""
    world, left = await with_lost_segment_end()
    before = [number for at, number in enumerate(left) if number == at]
    assert 0 < len(before) < len(left)
    assert await numbers_after_a_kill(world) == before


@pytest.mark.parametrize("damage", ["removed", "damaged", "without it"])
async def test_gap_is_accepted_if_recovery_point_is_lost(damage: str) -> None:
    """It is still accepted after another kill."""
    world, left = await with_lost_segment_end()
    checkpoint = A / Checkpoint.RECOVERY_POINT.value
    text = {"removed": "", "damaged": "0\n2\nt 0 0\n", "without it": "0\n0\n"}[damage]
    world.files.remove(checkpoint)
    if text:
        world.files.write_new(checkpoint, text.encode())
    for _ in range(3):
        assert await numbers_after_a_kill(world) == left


@pytest.mark.parametrize("cleaned_to", [0, 9])
async def test_gaps_below_cleaner_checkpoint_are_accepted(cleaned_to: int) -> None:
    """Kafka's cleaner writes the recovery point later."""
    world, left = await with_lost_segment_end()
    world.files.write_new(A / Checkpoint.CLEANER.value, f"0\n1\nt 0 {cleaned_to}\n".encode())
    assert (await numbers_after_a_kill(world) == left) is (cleaned_to == 9)


async def test_checkpoints_of_failed_directory_are_not_changed() -> None:
    """Its logs are not served, so they would be missing in a new checkpoint."""
    world = LogManagerWorld(paths=(A, B))
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        append(log, "value")
        log.flush()
        directory_logs = manager.directory_logs_of(log)
        directory_logs.write_checkpoints()
        path = directory_logs.directory.path / Checkpoint.RECOVERY_POINT.value
        before = world.read(path)
        directory_logs.directory.fail(OSError(errno.EIO, "bad sector"))
        assert not directory_logs.logs
        with pytest.raises(OSError, match="recovery-point"):
            directory_logs.write_checkpoints()
        assert world.read(path) == before


async def test_new_log_ignores_checkpoints_of_offline_log_of_same_name() -> None:
    world = LogManagerWorld(paths=(A,))
    async with world.running() as manager:
        log = await manager.create("t", 0, ONE)
        for number in range(5):
            append(log, f"{number}")
        log.advance_log_start(3, "asked to")
    async with world.running() as manager:
        (directory_logs,) = manager.online_directories()
        await manager.delete(TopicPartition("t", 0))
        directory_logs.keep_offline(TopicPartition("t", 0), "t-0")
        directory_logs.write_checkpoints()
        assert world.read(A / Checkpoint.LOG_START.value) == "0\n1\nt 0 3\n"
        await manager.create("t", 0, TWO)
        directory_logs.write_checkpoints()
        assert world.read(A / Checkpoint.LOG_START.value) == "0\n0\n"


async def test_new_log_ignores_checkpoints_of_cancelled_swap_after_kill() -> None:
    """A log directory has checkpoint entries of a future replica that was about to become the log
    there."""
    world = LogManagerWorld(paths=(A, B))
    async with trio.open_nursery() as nursery:
        manager = world.manager()
        await manager.load()
        await nursery.start(manager.run)
        a, b = manager.online_directories()
        old = await manager.create("t", 0, ONE, directory_id=a.directory.id)
        for number in range(5):
            append(old, f"{number}")
        old.flush()
        old.advance_log_start(3, "asked to")
        b.incoming_logs[TopicPartition("t", 0)] = old
        b.write_checkpoints()
        del b.incoming_logs[TopicPartition("t", 0)]
        await manager.delete(TopicPartition("t", 0))
        new = await manager.create("t", 0, TWO, directory_id=b.directory.id)
        append(new, "new")
        new.flush()
        nursery.cancel_scope.cancel()
    async with world.crashed(1).running() as manager:
        (found,) = manager.logs()
        assert (found.topic_id, contents(found)) == (TWO, ["new"])
