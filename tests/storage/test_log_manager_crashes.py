"""The power is cut at every sync of a node's life; the next start finds what the pages promise.

One scripted life on two disks: logs created, written, rolled, flushed, checkpointed, one truncated,
one deleted and created anew, all closed. It is run again and again, each time ended a sync later,
at the sync's beginning or after its end, and each time the next life is started on several images
that such a cut may leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.names import TopicPartition
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager import LogManager
from odradek.testing.power import NodeCrashed
from tests.storage.log_manager_world import ONE, TWO, A, B, World, append, contents

MARK = ".kafka_cleanshutdown"
IMAGES = 3


OLD, NEW = TWO, ONE  # the ids of the two topics that are called "u", one after the other


@dataclass
class Promised:
    """What must be there, and what may be; by topic, the deleted one being called `old u`."""

    synced: dict[str, list[str]] = field(default_factory=dict)
    """A log begins with these."""
    histories: dict[str, list[list[str]]] = field(default_factory=dict)
    """A log is a prefix of one of these; more than one after a truncation."""
    is_deleted: bool = False
    """Whether the deletion of `old u` is done: it must not come back under its name."""

    def write(self, topic: str, log: PartitionLog, *values: str) -> None:
        """What is being appended may be there, whatever the append says."""
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


async def life(manager: LogManager, promised: Promised) -> None:
    """Every operation that makes something durable in more than one step."""
    checkpoint = manager.checkpoint
    t = await manager.create("t", 0, ONE)
    u = await manager.create("u", 0, OLD)
    for at in range(8):
        promised.write("t", t, f"t{at}" + "x" * 60)
    promised.flush("t", t)
    await checkpoint([Checkpoint.RECOVERY_POINT, Checkpoint.HIGH_WATERMARK])
    promised.write("old u", u, *(f"old {at}" for at in range(5)))
    promised.flush("old u", u)
    await checkpoint([Checkpoint.RECOVERY_POINT])

    del promised.synced["old u"]
    await manager.delete(TopicPartition("u", 0))
    promised.is_deleted = True
    u = await manager.create("u", 0, NEW)
    promised.write("u", u, "new 0")
    promised.flush("u", u)

    promised.truncate("t", t, 5)
    promised.write("t", t, "after the cut")
    promised.flush("t", t)
    t.advance_log_start(2, "asked to")
    await checkpoint([Checkpoint.RECOVERY_POINT, Checkpoint.LOG_START])
    promised.write("u", u, "new 1")


async def crashed_life(world: World) -> Promised:
    """One life, which ends in order or by the power cut that was set up."""
    promised = Promised()
    try:
        manager = world.manager()
        await manager.load()
        await life(manager, promised)
        await manager.close()
        manager.directories.close()
    except NodeCrashed:
        pass
    except BaseExceptionGroup as group:
        if group.split(NodeCrashed)[1] is not None:
            raise
    return promised


async def check_next_life(world: World, promised: Promised) -> None:
    marked = [path for path in (A, B) if world.disk.find(path / MARK) is not None]
    async with world.running() as manager:
        assert not any(directory.failed for directory in manager.directories.all)
        assert promised.synced.keys() <= {log.topic for log in manager.logs()} | {"old u"}
        for log in manager.logs():
            check_log(log, promised, whole=log.directory.parent in marked)
            append(log, "life goes on")
    async with world.running() as manager:
        for log in manager.logs():
            assert contents(log)[-1] == "life goes on"


def check_log(log: PartitionLog, promised: Promised, *, whole: bool) -> None:
    if log.topic_id is None:  # the crash came while it was made: nobody has it yet
        assert log.end_offset == 0
        return
    name = "old u" if log.topic == "u" and log.topic_id == OLD else log.topic
    assert not (name == "old u" and promised.is_deleted)
    found, start = contents(log), log.log_start_offset
    synced = promised.synced.get(name, [])
    assert found[: max(0, len(synced) - start)] == synced[start:]
    histories = promised.histories.get(name, [[]])
    if whole:  # closed cleanly, in this life or the one before: all of that
        assert found in (histories[-1][start:], synced[start:])
    else:
        assert any(found == history[start : start + len(found)] for history in histories)


async def syncs_of_a_life() -> int:
    world = World()
    await crashed_life(world)
    assert world.files.power.on
    assert world.disk.find(A / MARK) is not None
    return world.files.syncs


@pytest.mark.parametrize("when", ["at", "after"])
async def test_power_cut_at_every_sync(when: str) -> None:
    total = await syncs_of_a_life()
    assert total > 40
    for number in range(1, total + 1):
        world = World()
        if when == "at":
            world.files.cut_power_at(number)
        else:
            world.files.cut_power_after(number)
        promised = await crashed_life(world)
        assert not world.files.power.on
        for seed in range(IMAGES):
            try:
                await check_next_life(world.crashed(seed), promised)
            except BaseException as error:
                error.add_note(f"power cut {when} sync {number} of {total}, image {seed}")
                raise


async def test_no_byte_changes_after_the_cut() -> None:
    world = World()
    world.files.cut_power_at(60)
    await crashed_life(world)
    before = world.disk.fingerprint()
    with pytest.raises(NodeCrashed):
        world.files.write_new(A / "anything", b"")
    assert world.disk.fingerprint() == before


async def test_a_crash_while_loading_is_unclean() -> None:
    """The mark is gone, durably, before the first log is opened."""
    total = await syncs_of_a_life()
    for number in range(1, 8):
        world = World()
        promised = await crashed_life(world)
        for topic in ("t", "u"):
            history = promised.histories[topic][-1]
            promised.synced[topic] = list(history)
            history.append("unsynced")
        world.files.cut_power_at(total + number)
        with pytest.raises((NodeCrashed, BaseExceptionGroup)):
            await _load_and_close(world)
        for seed in range(IMAGES):
            await check_next_life(world.crashed(seed), promised)


async def _load_and_close(world: World) -> None:
    manager = world.manager()
    await manager.load()
    for log in manager.logs():
        append(log, "unsynced")
    await manager.close()
