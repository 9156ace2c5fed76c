"""Tests of a broker with a remote tier on an S3 server, which becomes unavailable, with chunks and encryption."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from odradek.client import admin
from odradek.client.consumer import Reader
from odradek.client.metadata import Cluster, open_cluster
from odradek.client.producer import ProducerOptions, open_producer
from odradek.protocol.topics import TopicPartition
from odradek.seams.clock import RealClock
from odradek.seams.entropy import RealEntropy
from odradek.seams.object_store import open_objects
from odradek.seams.objects import Objects
from odradek.seams.tcp import TcpNetwork
from odradek.storage.tiered.object_names import parse_key
from odradek.testing import Broker
from tests.support.tiered_topic_broker import QUICK, TIERED
from tests.support.waiting import wait_until_async

if TYPE_CHECKING:
    from odradek.bench.s3_server import S3Server

VALUES = [b"%04d" % number + b"x" * 500 for number in range(60)]
TIMEOUT_SECONDS = 40.0
SHORT_TIMEOUTS = {
    "rsm.config.retries": "0",
    "rsm.config.connect.timeout.ms": "1000",
    "rsm.config.request.timeout.ms": "5000",
}
FORMS = {
    "as it is": {},
    "zstd, encrypted": {"rsm.config.compression": "zstd", "rsm.config.encryption.enabled": "true"},
}


class Tiered:
    def __init__(self, broker: Broker, cluster: Cluster, objects: Objects) -> None:
        self.node = broker.node
        self.cluster = cluster
        self.objects = objects

    async def produce(self, values: list[bytes]) -> None:
        options = ProducerOptions(acks=-1)
        async with open_producer(self.cluster, RealClock(), RealEntropy(), options) as producer:
            for value in values:
                await producer.send("orders", value, partition=0)

    async def read(self) -> list[bytes]:
        reader = Reader(self.cluster)
        reader.assign({TopicPartition("orders", 0): 0})
        found: list[bytes] = []
        with trio.fail_after(TIMEOUT_SECONDS):
            while not await reader.at_end() or not found:
                found += [record.value or b"" for record in await reader.poll()]
        return found

    def is_copied(self) -> bool:
        """Whether all segments except the active one are only in the remote tier."""
        partition = self.node.partitions.opened("orders", 0)
        assert partition is not None
        segments = partition.log.segment_list.all
        copied = partition.log.highest_copied_offset
        return len(segments) == 1 and copied == segments[0].base_offset - 1

    def local_start(self) -> int:
        partition = self.node.partitions.opened("orders", 0)
        assert partition is not None
        return partition.log.local_log_start_offset

    def object_keys(self) -> list[str]:
        """Keys of the objects of the topic."""
        names = [(info.key, parse_key(info.key)) for info in self.objects.list("")]
        return [key for key, name in names if name and name.id.partition.topic == "orders"]


@asynccontextmanager
async def tiered_broker(
    tmp_path: Path, server: S3Server, url: str, form: dict[str, str], **other: str
) -> AsyncIterator[Tiered]:
    """Broker with `other` options in addition to those of the server."""
    keys = tmp_path / "keys"
    keys.write_text("k1 " + "A" * 43 + "=\n")
    options = {f"rsm.config.{name}": value for name, value in {**server.options, **other}.items()}
    configs = {
        **QUICK,
        **SHORT_TIMEOUTS,
        **options,
        **form,
        "rsm.config.encryption.key.file": str(keys),
    }
    async with (
        Broker(tiered=url, data=tmp_path / "data", configs=configs) as broker,
        open_cluster(TcpNetwork(), broker.bootstrap, timeout_s=10) as cluster,
    ):
        yield Tiered(broker, cluster, open_objects(url, server.options))


@pytest.mark.parametrize("form", FORMS)
async def test_segments_are_copied_read_and_deleted(
    tmp_path: Path, s3_server: S3Server, form: str
) -> None:
    url = s3_server.new_store()
    async with tiered_broker(tmp_path, s3_server, url, FORMS[form]) as tiered:
        await tiered.node.ensure_topic("orders", 1, 1, TIERED)
        await tiered.produce(VALUES)
        await wait_until_async(tiered.is_copied)
        assert await tiered.read() == VALUES
    async with tiered_broker(tmp_path, s3_server, url, FORMS["as it is"]) as tiered:
        assert await tiered.read() == VALUES  # the format of new copies does not matter
        assert len(tiered.object_keys()) > 60
        await admin.delete_topics(tiered.cluster, ["orders"])
        await wait_until_async(lambda: not tiered.object_keys())


async def test_copies_continue_after_storage_was_unavailable(
    tmp_path: Path, s3_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    """T-30: segments that are not copied stay on the disk, and the failure is logged."""
    caplog.set_level("INFO")
    url = s3_server.new_store()
    async with tiered_broker(tmp_path, s3_server, url, {}) as tiered:
        await tiered.node.ensure_topic("orders", 1, 1, TIERED)
        await tiered.produce(VALUES)
        await wait_until_async(tiered.is_copied)
        start = tiered.local_start()
        s3_server.kill()
        try:
            await tiered.produce(VALUES)
            await wait_until_async(
                lambda: "segments cannot be copied to the object store" in caplog.text
            )
            assert tiered.local_start() == start
        finally:
            s3_server.start()
        await wait_until_async(tiered.is_copied)
        assert tiered.local_start() > start
        assert "segments are copied to the object store again" in caplog.text
        assert await tiered.read() == VALUES + VALUES


@pytest.mark.parametrize(
    ("url", "options", "line"),
    [
        (None, {"aws_secret_access_key": "wrong"}, "denies access (.*SignatureDoesNotMatch"),
        (None, {"aws_access_key_id": "nobody"}, "denies access (.*InvalidAccessKeyId"),
        ("s3://no-such-bucket/1", {}, "is unavailable (.*NoSuchBucket"),
    ],
)
async def test_invalid_storage_configs_are_logged_at_start(
    tmp_path: Path,
    s3_server: S3Server,
    caplog: pytest.LogCaptureFixture,
    url: str | None,
    options: dict[str, str],
    line: str,
) -> None:
    """They are logged before the first copy, and the broker serves."""
    logged = re.compile(rf"the object store {line.replace('(', '[(]', 1)}")
    url = url or s3_server.new_store()
    async with tiered_broker(tmp_path, s3_server, url, {}, **options) as tiered:
        await wait_until_async(lambda: logged.search(caplog.text) is not None)
        await tiered.node.ensure_topic("orders", 1, 1, {})
        await tiered.produce(VALUES[:1])
        assert await tiered.read() == VALUES[:1]
