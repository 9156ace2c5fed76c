"""Broker with a remote storage in a directory, and one tiered topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from odradek.client import admin
from odradek.client.consumer import Reader
from odradek.client.metadata import Cluster, open_cluster
from odradek.client.producer import ProducerOptions, open_producer
from odradek.protocol.topics import TopicPartition
from odradek.seams.clock import RealClock
from odradek.seams.entropy import RealEntropy
from odradek.seams.store_directory import MARKER_FILE
from odradek.seams.tcp import TcpNetwork
from odradek.storage.log.partition_log import PartitionLog
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


TIMEOUT_SECONDS = 20.0


WHERE = TopicPartition("orders", 0)


class TieredBroker:
    """A broker, its remote storage, and a client."""

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
        """Start offsets of the segments in the remote storage."""
        return sorted(int(path.name[:20]) for path in self._tier.rglob("*.log"))

    def objects(self) -> list[str]:
        found = [path.name for path in self._tier.rglob("*") if path.is_file()]
        return [name for name in found if name != MARKER_FILE]

    async def create(self, configs: dict[str, str] | None = None) -> None:
        await self.node.ensure_topic("orders", 1, 1, TIERED if configs is None else configs)

    async def alter(self, configs: dict[str, str], topic: str = "orders") -> None:
        changes = [admin.ConfigChange(admin.ConfigOperation.SET, *each) for each in configs.items()]
        await admin.alter_configs(self.cluster, admin.ResourceType.TOPIC, topic, changes)

    async def produce(self, values: list[bytes], topic: str = "orders", partition: int = 0) -> None:
        """Produce each value in a batch of its own."""
        options = ProducerOptions(acks=-1)
        async with open_producer(self.cluster, RealClock(), RealEntropy(), options) as producer:
            for value in values:
                await producer.send(topic, value, partition=partition)

    async def read(self, offset: int = 0) -> list[bytes]:
        reader = Reader(self.cluster)
        reader.assign({WHERE: offset})
        found: list[bytes] = []
        while not await reader.at_end() or not found:
            found += [record.value or b"" for record in await reader.poll()]
        return found

    async def until(self, holds: Callable[[], bool]) -> None:
        with trio.move_on_after(TIMEOUT_SECONDS):
            while not holds():
                await trio.sleep(0.02)
        assert holds(), (self.log, self.log.highest_copied_offset, self.remote_segments())

    def is_copied(self) -> bool:
        """Whether all segments except the active one are only in the remote tier."""
        segments = self.log.segment_list.all
        return len(segments) == 1 and self.log.highest_copied_offset == segments[0].base_offset - 1


@asynccontextmanager
async def stage(tmp_path: Path, **configs: str) -> AsyncIterator[TieredBroker]:
    named = {name.replace("_", "."): text for name, text in configs.items()}
    async with (
        Broker(
            tiered=tmp_path / "tier", data=tmp_path / "data", configs={**QUICK, **named}
        ) as broker,
        open_cluster(TcpNetwork(), broker.bootstrap, timeout_s=10) as cluster,
    ):
        yield TieredBroker(broker, cluster, tmp_path / "tier")


AWAY = ("the object store is unavailable", "is not the directory that it was")


LACKING = ("the object store has no object of",)


async def copy_segments(tmp_path: Path) -> None:
    """Run a broker until it has copied its segments."""
    async with stage(tmp_path) as tiered:
        await tiered.create()
        await tiered.produce(VALUES)
        await tiered.until(tiered.is_copied)


def is_logged(caplog: pytest.LogCaptureFixture, *texts: str) -> Callable[[], bool]:
    return lambda: all(text in caplog.text for text in texts)
