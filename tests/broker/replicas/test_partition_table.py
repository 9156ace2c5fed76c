"""Tests of the partition table: how and when it applies the metadata image."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio

from odradek.broker.replicas.partition_table import (
    OPENED_AT_ONCE,
    RETRY_SECONDS,
    SETTLE_SECONDS,
    SETTLE_SECONDS_MAX,
    PartitionTable,
)
from odradek.protocol.topics import TopicPartition
from odradek.replication.errors import NotLeader, UnknownPartition
from odradek.storage.errors import DiskFull, LogFailed, NoDescriptors
from odradek.storage.log.partition_log import PartitionLog
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.replicas.running_table import NODE, Cluster, running
from tests.support.log_managers import ONE, TWO, UUID, LogManagerWorld


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


async def test_opening_waits_for_pause_up_to_limit(clock: VirtualClock) -> None:
    async with running(clock) as (cluster, logs):
        began = trio.current_time()
        number = 0
        while not logs.logs():
            number += 1
            cluster.create(f"t{number}", UUID(int=number))
            await clock.run_for(SETTLE_SECONDS / 2)
            assert trio.current_time() - began < 2 * SETTLE_SECONDS_MAX
        assert number > 10
        await clock.run_for(SETTLE_SECONDS_MAX)
        assert len(logs.logs()) == number


async def test_settle_waits_for_partitions_to_open(
    clock: VirtualClock,
) -> None:
    """They are opened only by the background task."""
    for _ in range(10):  # the first of the two
        async with running(clock) as (cluster, logs):
            for number in range(OPENED_AT_ONCE):
                cluster.create(f"t{number}", UUID(int=1 + number))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cluster.table._open_some)
                await trio.lowlevel.checkpoint()
                await cluster.table.settle()
                assert len(logs.logs()) == OPENED_AT_ONCE


async def test_topic_deleted_during_opening_is_removed(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed in the background, even if a request opened it before."""
    try_to_open = PartitionTable._try_to_open
    async with running(clock) as (cluster, logs):

        async def deleted_before(table: PartitionTable, key: tuple[str, int]) -> None:
            if ONE in cluster.image.topics_by_id:
                cluster.delete(ONE)
            await try_to_open(table, key)

        monkeypatch.setattr(PartitionTable, "_try_to_open", deleted_before)
        cluster.create("t", ONE)
        await cluster.table.get("t", None, 0)
        await clock.run_for(2 * SETTLE_SECONDS)
        assert ONE not in cluster.image.topics_by_id
        assert logs.logs() == ()
        cluster.create("t", TWO)
        assert (await cluster.table.get("t", None, 0)).topic_id == TWO


async def test_opened_leader_begins_its_epoch(clock: VirtualClock) -> None:
    async with running(clock) as (cluster, _):
        cluster.create("t", ONE)
        partition = await cluster.table.get("t", None, 0)
        assert partition.log.epochs.latest == 3


async def test_replica_reassigned_during_opening_is_deleted(clock: VirtualClock) -> None:
    async with running(clock) as (cluster, logs):
        create = logs.create

        async def created_meanwhile(*names: Any, **more: Any) -> PartitionLog:
            made = await create(*names, **more)
            cluster.give_to_another(ONE)
            return made

        logs.create = created_meanwhile  # type: ignore[method-assign]
        cluster.create("t", ONE)
        with pytest.raises(NotLeader):
            await cluster.table.get("t", None, 0)
        assert list(cluster.table) == []
        assert not logs.logs()


async def test_waiting_request_gets_error_of_removed_replica(
    clock: VirtualClock,
) -> None:
    """As in Kafka: the client looks for the leader of a partition that other brokers have."""
    async with running(clock) as (cluster, _):
        for topic, id in (("t", ONE), ("u", TWO)):
            cluster.create(topic, id)
        given, deleted = [await cluster.table.get(topic, None, 0) for topic in ("t", "u")]
        cluster.give_to_another(ONE)
        cluster.delete(TWO)
        with pytest.raises(NotLeader):
            given.check_leader()
        with pytest.raises(UnknownPartition):
            deleted.check_leader()


async def test_failure_of_one_partition_does_not_affect_others(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(clock) as (cluster, logs):
        delete, create = logs.delete, logs.create

        async def broken(*names: object, **more: object) -> None:
            raise ZeroDivisionError

        cluster.create("t", ONE)
        await cluster.table.get("t", None, 0)
        logs.delete = broken  # type: ignore[method-assign]
        cluster.delete(ONE)
        await clock.run_for(1)
        assert "t-0 could not be deleted" in caplog.text
        logs.delete, logs.create = delete, broken  # type: ignore[method-assign, assignment]
        cluster.create("u", TWO)
        await clock.run_for(1)
        assert "Unexpected error in opening the log (u-0)" in caplog.text
        logs.create = create  # type: ignore[method-assign]
        cluster.create("v", UUID(int=9))
        await clock.run_for(1)
        assert TopicPartition("v", 0) in [
            TopicPartition(each.topic, each.partition) for each in logs.logs()
        ]


@pytest.mark.parametrize("error", [DiskFull("full"), NoDescriptors("none")])
async def test_replica_on_full_disk_is_created_later(clock: VirtualClock, error: Exception) -> None:
    """Requests do not open the log of a follower, and the directory is not reported as failed."""
    async with running(clock) as (cluster, logs):
        create, fails = logs.create, True

        async def failing(*names: Any, **more: Any) -> PartitionLog:
            if fails:
                raise error
            return await create(*names, **more)

        logs.create = failing  # type: ignore[method-assign]
        cluster.create("t", ONE)
        await clock.run_for(2 * RETRY_SECONDS)
        assert not logs.logs()
        fails = False
        await clock.run_for(2 * RETRY_SECONDS)
        assert [each.topic_id for each in logs.logs()] == [ONE]


async def test_returning_replica_is_created_despite_failed_directory(
    clock: VirtualClock,
) -> None:
    """The replica existed at the start and was deleted since, so it has no log in the offline directory."""
    world = LogManagerWorld(clock=clock)
    async with world.running() as logs:
        await logs.create("t", 0, ONE, directory_id=logs.online_directories()[0].directory.id)
    async with world.killed().running() as logs, trio.open_nursery() as nursery:
        cluster = Cluster(logs)
        cluster.create("t", ONE)
        cluster.table = PartitionTable(logs, lambda: cluster.image, NODE)
        await nursery.start(cluster.table.run)
        await cluster.table.open_all()
        logs.online_directories()[1].directory.fail(OSError(errno.EIO, "gone"))
        cluster.give_to_another(ONE)
        await clock.run_for(1)
        assert not logs.logs()
        cluster.give_back(ONE)
        assert (await cluster.table.get("t", None, 0)).topic_id == ONE
        nursery.cancel_scope.cancel()


async def test_replica_deleted_with_failing_one_can_return(
    clock: VirtualClock,
) -> None:
    """All replicas are removed from a broker with a failed directory, and assigned again. A replica of the
    other directory has no log in the offline directory."""
    world = LogManagerWorld(clock=clock)
    async with world.running() as logs:
        for topic, id, directory_logs in zip(
            "tu", (ONE, TWO), logs.online_directories(), strict=True
        ):
            await logs.create(topic, 0, id, directory_id=directory_logs.directory.id)
    async with world.killed().running() as logs, trio.open_nursery() as nursery:
        cluster = Cluster(logs)
        cluster.create("t", ONE)
        cluster.create("u", TWO)
        cluster.table = PartitionTable(logs, lambda: cluster.image, NODE)
        await cluster.table.open_all()
        logs.online_directories()[1].directory.fail(OSError(errno.EIO, "gone"))
        for id in (ONE, TWO):
            cluster.give_to_another(id)
        await nursery.start(cluster.table.run)
        await clock.run_for(1)
        for id in (ONE, TWO):
            cluster.give_back(id)
        assert (await cluster.table.get("t", None, 0)).topic_id == ONE
        with pytest.raises(LogFailed):
            await cluster.table.get("u", None, 0)
        nursery.cancel_scope.cancel()


async def test_log_failed_before_opening_is_reported_lost(
    clock: VirtualClock,
) -> None:
    lost: list[str] = []
    async with running(clock) as (cluster, logs):
        cluster.table = PartitionTable(
            logs,
            lambda: cluster.image,
            NODE,
            on_log_offline=lambda topic, index: lost.append(topic.name),
        )
        (await logs.create("t", 0, ONE)).take_log_offline(OSError(errno.EMFILE, "done by half"))
        cluster.create("t", ONE)
        with pytest.raises(LogFailed):
            await cluster.table.get("t", None, 0)
        assert lost == ["t"]


async def test_log_of_unopened_replica_is_deleted(clock: VirtualClock) -> None:
    async with running(clock) as (cluster, logs):
        for topic, id in (("t", ONE), ("u", TWO)):
            await logs.create(topic, 0, id)
            cluster.create(topic, id)
        cluster.delete(ONE)
        cluster.give_to_another(TWO)
        await clock.run_for(1)
        assert not logs.logs()
