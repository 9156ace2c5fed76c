"""A broker with tiered storage in one piece: a real directory for the store, the topic for the metadata, and
our own client at the listener (E1, E3, E6, E7, E8, T-01, T-04 to T-06, T-36, T-51, T-63)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from odradek.broker.node import CannotStart
from odradek.client import admin
from odradek.client.consumer import Reader, TopicPartition
from odradek.client.log_dir_admin import Replica, alter_replica_log_dirs
from odradek.client.metadata import Cluster, open_cluster
from odradek.client.producer import ProducerOptions, open_producer
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.clock import RealClock
from odradek.seams.entropy import RealEntropy
from odradek.seams.store_directory import MARK
from odradek.seams.tcp import TcpNetwork
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.testing import Broker

QUICK = {
    "remote.log.manager.task.interval.ms": "100",
    "remote.log.manager.task.retry.backoff.ms": "50",
    "remote.log.manager.task.retry.backoff.max.ms": "200",
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "0",
}
TIERED = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "2000",
    "local.retention.bytes": "1",
    "retention.bytes": "-1",
}
VALUES = [b"%04d" % number + b"x" * 500 for number in range(40)]
PATIENCE_SECONDS = 20.0
WHERE = TopicPartition("orders", 0)


class Stage:
    """A broker, its remote store and a client of it."""

    def __init__(self, broker: Broker, cluster: Cluster, tier: Path) -> None:
        self.node = broker.node
        self.cluster_address = broker.bootstrap
        self.cluster = cluster
        self._tier = tier / "kafka-tiered-storage"

    @property
    def log(self) -> PartitionLog:
        partition = self.node.partitions.opened("orders", 0)
        assert partition is not None
        return partition.log

    def remote_segments(self) -> list[int]:
        """Where they start, of all whose log is in the store."""
        return sorted(int(path.name[:20]) for path in self._tier.rglob("*.log"))

    def objects(self) -> list[str]:
        found = [path.name for path in self._tier.rglob("*") if path.is_file()]
        return [name for name in found if name != MARK]

    async def create(self, configs: dict[str, str] | None = None) -> None:
        await self.node.ensure_topic("orders", 1, 1, TIERED if configs is None else configs)

    async def alter(self, configs: dict[str, str], topic: str = "orders") -> None:
        changes = [admin.ConfigChange(admin.ConfigOperation.SET, *each) for each in configs.items()]
        await admin.alter_configs(self.cluster, admin.ResourceType.TOPIC, topic, changes)

    async def produce(self, values: list[bytes]) -> None:
        """Each in a batch of its own."""
        options = ProducerOptions(acks=-1)
        async with open_producer(self.cluster, RealClock(), RealEntropy(), options) as producer:
            for value in values:
                await producer.send("orders", value, partition=0)

    async def read(self, offset: int = 0) -> list[bytes]:
        reader = Reader(self.cluster)
        reader.assign({WHERE: offset})
        found: list[bytes] = []
        while not await reader.at_end() or not found:
            found += [record.value or b"" for record in await reader.poll()]
        return found

    async def until(self, holds: Callable[[], bool]) -> None:
        with trio.move_on_after(PATIENCE_SECONDS):
            while not holds():
                await trio.sleep(0.02)
        assert holds(), (self.log, self.log.highest_copied_offset, self.remote_segments())

    def is_copied(self) -> bool:
        """All that can be, and the disk has no more than the active segment."""
        segments = self.log.segment_list.all
        return len(segments) == 1 and self.log.highest_copied_offset == segments[0].base_offset - 1


@asynccontextmanager
async def stage(tmp_path: Path, **configs: str) -> AsyncIterator[Stage]:
    named = {name.replace("_", "."): text for name, text in configs.items()}
    async with (
        Broker(
            tiered=tmp_path / "tier", data=tmp_path / "data", configs={**QUICK, **named}
        ) as broker,
        open_cluster(TcpNetwork(), broker.bootstrap, timeout_s=10) as cluster,
    ):
        yield Stage(broker, cluster, tmp_path / "tier")


async def test_copied_expired_from_the_disk_and_read_back(tmp_path: Path) -> None:
    """E1, T-32, T-63: and all the same after a restart."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        assert tiered.log.log_start_offset == 0
        assert tiered.log.local_log_start_offset > 30
        remote = tiered.remote_segments()
        assert remote[0] == 0
        assert len(remote) > 5
        assert await tiered.read() == VALUES
        assert await tiered.read(7) == VALUES[7:]
    async with stage(tmp_path) as tiered:
        await tiered.until(lambda: tiered.log.highest_copied_offset >= 0)
        assert tiered.remote_segments() == remote
        assert await tiered.read() == VALUES
        await tiered.produce(VALUES)
        await tiered.until(lambda: len(tiered.remote_segments()) > 2 * len(remote) - 2)
        await tiered.until(tiered.is_copied)
        assert await tiered.read() == 2 * VALUES


async def test_total_retention_and_deleted_records(tmp_path: Path) -> None:
    """E6, E7, T-36, T-37."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        first, second, third = tiered.remote_segments()[:3]
        await admin.delete_records(tiered.cluster, {WHERE: second + 1})
        await tiered.until(lambda: tiered.remote_segments()[0] == second)
        assert tiered.log.log_start_offset == second + 1
        assert await tiered.read(second + 1) == VALUES[second + 1 :]
        await tiered.alter(
            {"retention.ms": "1", "local.retention.ms": "1", "local.retention.bytes": "-2"}
        )
        await tiered.until(lambda: tiered.remote_segments() == [])
        await tiered.until(lambda: tiered.log.log_start_offset == len(VALUES))
        assert third
        assert first == 0


async def test_a_deleted_topic_leaves_nothing(tmp_path: Path) -> None:
    """E8, T-51, T-52: and a new one of that name is another."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        await admin.delete_topics(tiered.cluster, ["orders"])
        await tiered.create()
        await tiered.produce(VALUES[:2])
        await tiered.until(lambda: tiered.objects() == [])
        assert await tiered.read() == VALUES[:2]


async def test_tiered_later(tmp_path: Path) -> None:
    """E3: enabled on a topic that has records, while the broker runs."""
    async with stage(tmp_path) as tiered:
        await tiered.create({"internal.segment.bytes": "2000"})
        await tiered.produce(VALUES)
        assert tiered.objects() == []
        await tiered.alter(TIERED)
        await tiered.until(tiered.is_copied)
        assert await tiered.read() == VALUES


async def test_a_broker_without_it_refuses_tiered_topics(tmp_path: Path) -> None:
    """T-01: it would lose where they begin; Kafka refuses as well."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
    logged = "topic orders has remote.storage.enable=true.*: start it with that and a remote store"
    with pytest.raises(CannotStart, match=logged):
        async with Broker(data=tmp_path / "data"):
            pass


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"remote_log_storage_manager_class_name": "com.example.Mine"}, "plug-ins in Java"),
        ({"remote_log_metadata_manager_class_name": "com.example.Mine"}, "can only be"),
        ({"rlmm_config_remote_log_metadata_topic_num_partitions": "x"}, "num.partitions"),
    ],
)
async def test_configs_that_make_no_sense(
    tmp_path: Path, configs: dict[str, str], reason: str
) -> None:
    """T-02 to T-05: logged in a word at start."""
    with pytest.raises(CannotStart, match=reason):
        async with stage(tmp_path, **configs):
            pass


async def test_a_replica_moves_while_it_is_copied(tmp_path: Path) -> None:
    """E4, T-57: to another log directory of this broker, and goes on from there."""
    data = f"{tmp_path}/data,{tmp_path}/other"
    async with stage(tmp_path, log_dirs=data) as tiered:
        await tiered.create()
        await tiered.produce(VALUES[:20])
        here = str(tiered.log.directory.parent)
        there = next(each for each in data.split(",") if each != here)
        replica = Replica(tiered.node.node_id, "orders", 0)
        codes = await alter_replica_log_dirs(tiered.cluster, {replica: there})
        assert set(codes.values()) == {ErrorCode.none}
        await tiered.produce(VALUES[20:])
        await tiered.until(lambda: str(tiered.log.directory.parent) == there)
        await tiered.until(tiered.is_copied)
        assert len(set(tiered.remote_segments())) == len(tiered.remote_segments())
        assert await tiered.read() == VALUES


REFUSED = {
    "local.retention.ms": [
        {"retention.ms": "200", "local.retention.ms": "250"},
        {"retention.ms": "200", "local.retention.ms": "-1"},
    ],
    "local.retention.bytes": [{"retention.bytes": "200", "local.retention.bytes": "250"}],
    "cleanup.policy": [{"cleanup.policy": "compact"}, {"cleanup.policy": "compact,delete"}],
}


async def test_topics_that_cannot_be_tiered(tmp_path: Path) -> None:
    """E17, T-15, T-16: refused at creation, and when they are altered."""
    async with stage(tmp_path) as tiered:
        await tiered.node.ensure_topic("taken", 1, 1, TIERED)
        for reason, cases in REFUSED.items():
            for configs in cases:
                with pytest.raises(KafkaError, match=re.escape(reason)) as refusal:
                    await tiered.create({"remote.storage.enable": "true", **configs})
                assert refusal.value.code is ErrorCode.invalid_config
                with pytest.raises(KafkaError, match=re.escape(reason)) as refusal:
                    await tiered.alter(configs, "taken")
                assert refusal.value.code is ErrorCode.invalid_config


async def test_it_is_not_turned_off_without_a_word_on_the_data(tmp_path: Path) -> None:
    """E17, T-14: and with one, the remote tier is emptied and the log starts where the disk does."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)
        start = tiered.log.local_log_start_offset
        with pytest.raises(KafkaError, match=r"remote\.log\.delete\.on\.disable"):
            await tiered.alter({"remote.storage.enable": "false"})
        await tiered.alter(
            {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        )
        await tiered.until(lambda: tiered.objects() == [])
        assert await tiered.read(start) == VALUES[start:]
        assert tiered.log.log_start_offset == start


async def test_topics_are_not_tiered_where_nothing_is(tmp_path: Path) -> None:
    """E17, T-01."""
    async with Broker(data=tmp_path / "data") as broker:
        with pytest.raises(KafkaError, match=r"remote\.log\.storage\.system\.enable") as refusal:
            await broker.node.ensure_topic("orders", 1, 1, TIERED)
        assert refusal.value.code is ErrorCode.invalid_config
        assert broker.node.services.tiered_storage is None


async def test_a_metadata_topic_of_another_size_cannot_be_used(tmp_path: Path) -> None:
    """T-08: where everything is found goes by the number of its partitions; the broker ends, as Kafka's
    does, and says why."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.until(lambda: METADATA_TOPIC in tiered.node.metadata.image.topics_by_name)
    other = {"rlmm_config_remote_log_metadata_topic_num_partitions": "7"}
    with pytest.raises(ExceptionGroup) as ended:
        async with stage(tmp_path, **other) as tiered:
            await tiered.node.stopped.wait()
    assert ended.group_contains(
        CannotStart, match="tiered storage: topic __remote_log_metadata has 5"
    )
