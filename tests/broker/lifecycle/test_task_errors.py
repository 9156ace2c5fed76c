"""An unexpected error in the work of one partition, group or task does not end the node, which serves clients."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from importlib import import_module

import pytest
import trio

from odradek.broker.groups.coordinator_shard import OffsetCommit, OffsetToCommit
from odradek.client.consumer import Reader
from odradek.client.metadata import open_cluster
from odradek.client.producer import ProducerOptions, open_producer
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.clock import RealClock
from odradek.seams.entropy import RealEntropy
from odradek.seams.tcp import TcpNetwork
from odradek.testing import Broker
from tests.support.tiered_topic_broker import TIERED

TIMEOUT_SECONDS = 4.0
QUICK = {
    "log.initial.task.delay.ms": "10",
    "log.retention.check.interval.ms": "30",
    "log.flush.scheduler.interval.ms": "30",
    "log.flush.offset.checkpoint.interval.ms": "30",
    "log.cleaner.backoff.ms": "30",
    "producer.id.expiration.check.interval.ms": "30",
    "offsets.retention.check.interval.ms": "30",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "30",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "30",
    "remote.log.manager.task.interval.ms": "30",
}
Action = Callable[[Broker], Awaitable[object]]


async def nothing(broker: Broker) -> None:
    """The task is periodic."""


async def commit_offset(broker: Broker) -> None:
    groups = broker.node.services.coordinators.groups
    await broker.node.ensure_topic("__consumer_offsets", 2, 1)
    request = OffsetCommit("g", "", None, -1, (OffsetToCommit("orders", None, 0, 1, -1, ""),))
    with trio.move_on_after(TIMEOUT_SECONDS):
        while True:
            try:
                await groups.commit(request)
                return
            except KafkaError:
                await trio.sleep(0.02)


async def start_transaction(broker: Broker) -> None:
    transactions = broker.node.services.coordinators.transactions
    await broker.node.ensure_topic("__transaction_state", 2, 1)
    with trio.move_on_after(TIMEOUT_SECONDS):
        while True:
            try:
                found = await transactions.init_producer_id("t", 60_000)
                if found.error is ErrorCode.none:
                    return
            except KafkaError:
                pass
            await trio.sleep(0.02)


async def create_topic(broker: Broker) -> None:
    await broker.node.ensure_topic("another", 2, 1)


async def fill_compacted_topic(broker: Broker) -> None:
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "internal.segment.bytes": "400",
    }
    await broker.node.ensure_topic("compacted", 1, 1, configs)
    await produce(broker, "compacted", 10)


async def tier_topic(broker: Broker) -> None:
    await broker.node.ensure_topic("tiered", 1, 1, TIERED)
    await produce(broker, "tiered", 10)


async def wait_for_records(broker: Broker) -> None:
    """A fetch that waits for records until its timeout."""
    async with open_cluster(TcpNetwork(), broker.bootstrap, timeout_s=5) as cluster:
        reader = Reader(cluster)
        reader.assign({TopicPartition("orders", 0): 0})
        with trio.move_on_after(1):
            await reader.poll(0.1)


LOGS, GROUPS = (
    "storage.log.partition_log:PartitionLog",
    "broker.groups.coordinator_shard:GroupCoordinatorShard",
)
TRANSACTIONS = "broker.transactions.coordinator_shard:TransactionCoordinatorShard"
TIER = "replication.tiered"
TASKS: dict[str, tuple[str, Action]] = {
    "retention": (f"{LOGS}.delete_expired", nothing),
    "producer id expiry": (f"{LOGS}.expire_producers", nothing),
    "flusher": ("storage.log_manager.background_tasks:FlushQueues.round", nothing),
    "checkpoints": ("storage.log_registry.directory_logs:DirectoryLogs.write_checkpoints", wait_for_records),
    "directory probe": ("storage.directories.log_directory:LogDirectory.probe", nothing),
    "log cleaner, dirty ranges": (
        "storage.compaction.dirty_range:find_dirty_range", fill_compacted_topic
    ),
    "log cleaner, passes": (
        "storage.compaction.compaction_pass:CompactionPass.run", fill_compacted_topic
    ),
    "offsets expiry": (f"{GROUPS}.expire", commit_offset),
    "transaction timeouts": (f"{TRANSACTIONS}.abort_if_timed_out", start_transaction),
    "transactional id expiry": (f"{TRANSACTIONS}.expire", start_transaction),
    "metadata listeners": (
        "broker.coordination.coordinators:Coordinators.metadata_changed", create_topic
    ),
    "metadata of a partition": (
        "broker.replicas.partition_table:PartitionTable._partition_changed", create_topic
    ),
    "delayed fetches": ("broker.fetch.purgatory:_DelayedFetchBase.expire", wait_for_records),
    "copy task": ("broker.tiered.copy_task:CopyTask.run_once", tier_topic),
    "remote expiration": ("broker.tiered.expiration_task:ExpirationTask.run_once", tier_topic),
    "start of remote log tasks": (
        "broker.tiered.remote_log_manager:RemoteLogManager._prepare", tier_topic
    ),
    "remote storage check": (
        "broker.tiered.remote_storage_check:RemoteStorageCheck._check_access", tier_topic
    ),
    "remote log metadata": (
        f"{TIER}.topic_metadata_manager:TopicBasedRemoteLogMetadataManager._handle_record", tier_topic
    ),
    "readers of remote log metadata": (
        f"{TIER}.metadata_topic_consumer:MetadataTopicConsumer._read_from", tier_topic
    ),
    "removal of remote partitions": (
        f"{TIER}.partition_remover:RemotePartitionRemover._look", tier_topic
    ),
}  # fmt: skip
FAILING = ("orders", "compacted", "tiered")
"""Topics whose logs fail."""
EARLY = frozenset({"delayed fetches", "remote storage check"})
"""Work that a node refers to from its start."""


async def produce(broker: Broker, topic: str, count: int = 1) -> None:
    async with (
        open_cluster(TcpNetwork(), broker.bootstrap, timeout_s=5) as cluster,
        open_producer(cluster, RealClock(), RealEntropy(), ProducerOptions()) as producer,
    ):
        for number in range(count):
            await producer.send(topic, b"x" * 150, key=b"%d" % (number % 2), partition=0)


async def check_served(broker: Broker) -> None:
    """Produce and read records of another partition."""
    await produce(broker, "served", 3)
    async with open_cluster(TcpNetwork(), broker.bootstrap, timeout_s=5) as cluster:
        reader = Reader(cluster)
        reader.assign({TopicPartition("served", 0): 0})
        found = []
        with trio.fail_after(TIMEOUT_SECONDS):
            while len(found) < 3:
                found += await reader.poll()


@pytest.mark.parametrize("task", TASKS)
async def test_unexpected_error_in_a_task_does_not_end_the_node(
    task: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, act = TASKS[task]
    module_name, _, attribute = place.partition(":")
    owner = import_module(f"odradek.{module_name}")
    *parents, name = attribute.split(".")
    for each in parents:
        owner = getattr(owner, each)
    assert hasattr(owner, name)
    runs = 0

    def planted(*args: object, **named: object) -> None:
        nonlocal runs
        if args and getattr(args[0], "topic", "orders") not in FAILING:
            return  # other partitions are not affected
        runs += 1
        raise RuntimeError("planted")

    caplog.set_level(logging.ERROR)
    if act is nothing or task in EARLY:
        monkeypatch.setattr(owner, name, planted)
    async with Broker(
        topics=("orders", "served"), configs=QUICK, tiered="tier" in place.lower()
    ) as broker:
        monkeypatch.setattr(owner, name, planted)
        await act(broker)
        with trio.move_on_after(TIMEOUT_SECONDS):
            while not runs or "RuntimeError: planted" not in caplog.text:
                await trio.sleep(0.02)
        assert runs
        monkeypatch.undo()
        assert "RuntimeError: planted" in caplog.text
        await check_served(broker)
