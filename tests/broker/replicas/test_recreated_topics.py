"""Tests of recreated topics: a replica has no records of an earlier topic with the same name."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio
import trio.testing

from odradek.protocol.topics import TopicPartition
from odradek.replication.errors import UnknownPartition, UnknownTopicId
from odradek.seams.files import Path
from odradek.storage.errors import LogFailed
from odradek.storage.log.partition_log import PartitionLog
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.replicas.running_table import running
from tests.support.log_managers import ONE, THREE, TWO, A, B, LogManagerWorld, append, contents


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


async def test_log_of_deleted_topic_is_not_used_by_recreated_topic(
    clock: VirtualClock,
) -> None:
    async with running(clock) as (cluster, logs):
        left = await logs.create("t", 0, ONE, is_new=True)
        cluster.create("t", TWO)
        partition = await cluster.table.get("t", None, 0)
        assert partition.log.topic_id == partition.topic_id == TWO
        assert partition.log is not left
        assert logs.logs() == (partition.log,)


async def test_log_without_topic_id_gets_id_of_topic_that_opens_it(
    clock: VirtualClock,
) -> None:
    """A crash between the creation of the directory and of partition.metadata leaves such a log. Its records
    are not used by the next topic of that name."""
    world = LogManagerWorld(clock=clock)
    world.files.make_directory(A / "t-0")
    async with running(clock, world) as (cluster, logs):
        assert [each.topic_id for each in logs.logs()] == [None]
        cluster.create("t", ONE)
        partition = await cluster.table.get("t", None, 0)
        assert partition.log.topic_id == ONE
        append(partition.log, "old")
    async with running(clock, world.killed()) as (cluster, _):
        cluster.create("t", ONE)
        assert contents((await cluster.table.get("t", None, 0)).log) == ["old"]
    async with running(clock, world.killed()) as (cluster, _):
        cluster.create("t", TWO)
        partition = await cluster.table.get("t", None, 0)
        assert (partition.log.topic_id, contents(partition.log)) == (TWO, [])


async def test_log_that_gets_topic_id_during_move_is_not_used_by_recreated_topic(
    clock: VirtualClock,
) -> None:
    world = LogManagerWorld(clock=clock)
    world.files.make_directory(A / "t-0")
    async with world.running(housekeeping=True) as logs:
        (log,) = logs.logs()
        await logs.mover.move(TopicPartition("t", 0), B)
        await logs.assign_topic_id(log, ONE)
        append(log, "old")
        while logs.mover.moves():
            await clock.run_for(1)
        assert log.directory == B / "t-0"
    async with running(clock, world.killed()) as (cluster, _):
        cluster.create("t", TWO)
        partition = await cluster.table.get("t", None, 0)
        assert (partition.log.topic_id, contents(partition.log)) == (TWO, [])


@pytest.mark.parametrize("known", [THREE, ONE, TWO], ids=["neither", "old topic", "new topic"])
@pytest.mark.parametrize("away", [0, 1])
async def test_returning_directory_with_deleted_topic_has_a_stray_log(
    clock: VirtualClock, away: int, known: Any
) -> None:
    """The order of the directories does not matter. There are two stray logs if the topic was recreated again."""
    world = LogManagerWorld(clock=clock)
    async with world.running() as logs:
        log = await logs.create(
            "t", 0, ONE, directory_id=logs.online_directories()[away].directory.id
        )
        append(log, "old")
    world.paths = ((B, A)[away],)
    async with running(clock, world) as (cluster, logs):
        cluster.create("t", TWO)
        append((await cluster.table.get("t", None, 0)).log, "new")
    world.paths = (A, B)
    logs = world.manager()
    await logs.load(lambda name, topic_id: topic_id != known)
    assert len(logs.logs()) == 1
    await logs.rename_stray_logs(lambda name, topic_id: topic_id != known)
    served = {ONE: [["old"]], TWO: [["new"]], THREE: []}[known]
    assert [contents(each) for each in logs.logs()] == served
    strays = [name for path in (A, B) for name in world.names(path) if name.endswith("-stray")]
    assert len(strays) == 2 - len(served)
    assert (await logs.create("t", 0, known)).topic_id == known
    await logs.close()
    logs.directories.close()


async def test_topic_recreated_after_directory_failure_uses_another_directory(
    clock: VirtualClock,
) -> None:
    async with running(clock) as (cluster, logs):
        cluster.create("t", ONE)
        partition = await cluster.table.get("t", None, 0)
        logs.directory_of(partition.log).fail(OSError(errno.EIO, "gone"))
        cluster.table.logs_failed([partition.log])
        cluster.delete(ONE)
        await clock.run_for(1)
        cluster.create("t", TWO)
        assert (await cluster.table.get("t", None, 0)).topic_id == TWO


@pytest.mark.parametrize("copy", ["t-0", "t-0.move"])
async def test_failed_log_of_deleted_topic_does_not_block_recreated_topic(
    clock: VirtualClock, copy: str
) -> None:
    """The old replica is in two directories, or only its future replica exists while a directory is offline."""
    world = LogManagerWorld(clock=clock, paths=(Path("/m"), A, B))
    async with world.running() as logs:
        log = await logs.create("t", 0, ONE, directory_id=logs.online_directories()[1].directory.id)
        append(log, "old")
    world.killed().files.make_directory(B / copy)
    for name in world.names(A / "t-0"):
        world.files.write_new(B / copy / name, world.files.read(A / "t-0" / name))
    if copy != "t-0":
        world.disk.fail(f"{A}/*")
    async with running(clock, world) as (cluster, logs):
        cluster.create("t", ONE)
        with pytest.raises(LogFailed):
            await cluster.table.get("t", None, 0)
        cluster.delete(ONE)
        await clock.run_for(1)
        cluster.create("t", TWO)
        partition = await cluster.table.get("t", None, 0)
        assert (partition.log.topic_id, contents(partition.log)) == (TWO, [])
    assert [name for name in world.names(B) if name.endswith("-stray")]
    assert copy == "t-0.move" or [name for name in world.names(A) if name.endswith("-stray")]


async def test_damaged_partition_metadata_fails_recreated_topic(
    clock: VirtualClock,
) -> None:
    world = LogManagerWorld(clock=clock)
    async with world.running() as logs:
        where = (await logs.create("t", 0, ONE)).directory
    world.files.write_new(where / "partition.metadata", b"rubbish")
    async with running(clock, world.killed()) as (cluster, _):
        cluster.create("t", TWO)
        with pytest.raises(LogFailed, match="is malformed"):
            await cluster.table.get("t", None, 0)


async def test_lookup_by_topic_id_does_not_return_recreated_topic(
    clock: VirtualClock,
) -> None:
    """Also if it waited for another request that opened the partition."""
    async with running(clock) as (cluster, logs):
        create, may_continue, errors = logs.create, trio.Event(), []

        async def slow(*names: Any, **more: Any) -> PartitionLog:
            made = await create(*names, **more)
            await may_continue.wait()
            return made

        async def ask() -> None:
            with pytest.raises((UnknownTopicId, UnknownPartition)) as refusal:
                await cluster.table.get(None, ONE, 0)
            errors.append(refusal.type)

        logs.create = slow  # type: ignore[method-assign]
        cluster.create("t", ONE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            cluster.delete(ONE)
            cluster.create("t", TWO)
            may_continue.set()
        assert errors == [UnknownPartition, UnknownTopicId]
        assert (await cluster.table.get(None, TWO, 0)).topic_id == TWO
