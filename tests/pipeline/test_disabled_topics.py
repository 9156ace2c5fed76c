"""Queries of a topic whose tiered storage is disabled with a policy (KIP-950), before, during and after the query."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from odradek.pipeline.data_source import BatchReader
from odradek.pipeline.errors import DataLoss
from odradek.pipeline.options import parse_options
from odradek.pipeline.planning import flatten_ranges
from odradek.pipeline.query import Query
from odradek.pipeline.segment_columns import SegmentSlice
from odradek.replication.controller.image import TieredState
from odradek.testing import Broker
from tests.pipeline.tiering import QUICK, TIERED
from tests.support.librdkafka_clients import produce
from tests.support.spark_reading import by_consumer, by_spark, by_tasks, table
from tests.support.virtual_reading import FULL, rows_of
from tests.support.waiting import deadline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

TIMEOUT_S = 60.0
COUNT = 300


class Topic:
    """A topic with one partition whose records are mostly in the remote tier only."""

    def __init__(self, broker: Broker, tier: Path, name: str) -> None:
        self.broker = broker
        self.name = name
        self.options: dict[str, Any] = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "tiered.url": str(tier),
            "subscribe": name,
        }
        broker.create_topic(name, 1, TIERED)
        self.produce()
        with deadline(TIMEOUT_S, "the remote tier") as check:
            while len(self._log.segments) > 1 or self.start == 0:
                check(0.1)

    @property
    def _log(self) -> Any:
        partition = self.broker.node.partitions.opened(self.name, 0)
        assert partition is not None
        return partition.log

    @property
    def start(self) -> int:
        """Local log start offset."""
        return int(self._log.local_log_start_offset)

    def produce(self) -> None:
        values = [b"%06d" % number + b"x" * 500 for number in range(COUNT)]
        produce(self.broker.bootstrap, self.name, values, config={"batch.num.messages": 5})

    def disable(self, policy: str) -> None:
        """Disable tiered storage with this policy, and wait for the state DISABLED."""
        settings = {"remote.storage.enable": "false", "remote.log.disable.policy": policy}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=entries)
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(TIMEOUT_S)
        image = self.broker.node.metadata
        with deadline(TIMEOUT_S, f"{self.name} to be disabled") as check:
            while image.image.tiering_of(self._log.topic_id).state is not TieredState.DISABLED:
                check(0.05)

    def consumed(self) -> list[Any]:
        return by_consumer(self.broker.bootstrap, self.name, (0,))

    def pieces(self) -> Sequence[Any]:
        query = Query(parse_options(self.given(), streaming=False))
        return list(flatten_ranges(query.plan(query.ranges()).pieces))

    def given(self, **more: str) -> dict[str, str]:
        return {**self.options, **more}


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def broker(tier: Path) -> Iterator[Broker]:
    with Broker(configs=QUICK, tiered=tier) as broker:
        yield broker


def from_zero(name: str) -> str:
    return json.dumps({name: {"0": 0}})


def test_query_reads_remote_segments_from_the_store_after_retain(
    broker: Broker, tier: Path
) -> None:
    topic = Topic(broker, tier, "retained")
    topic.disable("retain")
    topic.produce()
    rows = topic.consumed()
    assert len(rows) == 2 * COUNT
    assert by_tasks(topic.options) == rows
    stored = [each for each in topic.pieces() if isinstance(each, SegmentSlice)]
    assert stored[0].low == 0
    assert stored[-1].high >= topic.start


def test_query_for_deleted_offsets_names_them(broker: Broker, tier: Path) -> None:
    """X-05. A query from the earliest offset reads what is left."""
    topic = Topic(broker, tier, "deleted")
    topic.disable("delete")
    rows = topic.consumed()
    assert rows[0][1] == topic.start
    assert by_tasks(topic.options) == rows
    lost = f"deleted-0 now starts at offset {topic.start}, and the query starts at 0"
    old = topic.given(startingOffsets=from_zero("deleted"))
    with pytest.raises(DataLoss, match=lost):
        by_tasks(old)
    assert by_tasks({**old, "failOnDataLoss": "false"}) == rows


@pytest.mark.parametrize("policy", ["retain", "delete"])
def test_query_planned_before_the_disablement(broker: Broker, tier: Path, policy: str) -> None:
    """After `retain` it reads everything. After `delete` it fails with the lost offsets, or reads what is left."""
    topic = Topic(broker, tier, f"planned-{policy}")
    expected = topic.consumed()
    readers = [
        BatchReader(parse_options(topic.given(failOnDataLoss=fail), streaming=False), FULL)
        for fail in ("true", "false")
    ]
    tasks = [reader.partitions() for reader in readers]
    start = topic.start
    topic.disable(policy)

    def rows(number: int) -> list[Any]:
        found = [row for task in tasks[number] for row in rows_of(readers[number], task)]
        return sorted((*row[:3], *row[4:]) for row in found)

    if policy == "retain":
        assert rows(0) == expected
    else:
        with pytest.raises(DataLoss, match=r"offsets 0 to \d+ of planned-delete-0 were lost"):
            rows(0)
        assert rows(1) == [row for row in expected if row[1] >= start]


@pytest.mark.slow
def test_spark_reads_through_retain_and_names_deleted_offsets(
    spark: SparkSession, broker: Broker, tier: Path, tmp_path: Path
) -> None:
    topic = Topic(broker, tier, "spark")
    stream = (
        spark.readStream.format("odradek")
        .options(**topic.given(maxOffsetsPerTrigger="200", startingOffsets="earliest"))
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "out"))
    )
    running = stream.start()
    try:
        with deadline(TIMEOUT_S, "the first batch of the stream") as check:
            while running.lastProgress is None:
                check(0.1)
        topic.disable("retain")
        topic.produce()
        assert by_spark(spark, topic.options) == topic.consumed()
        running.processAllAvailable()
    finally:
        running.stop()
    streamed = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row.offset for row in streamed.select("offset").collect()) == [*range(2 * COUNT)]
    topic.disable("delete")
    assert by_spark(spark, topic.options) == topic.consumed()
    old = topic.given(startingOffsets=from_zero("spark"))
    lost = f"spark-0 now starts at offset {topic.start}, and the query starts at 0"
    with pytest.raises(Exception, match=lost):
        table(spark, old).collect()
    left = {**old, "failOnDataLoss": "false"}
    assert by_spark(spark, left) == topic.consumed()
