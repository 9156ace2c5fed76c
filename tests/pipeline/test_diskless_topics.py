"""Spark queries of diskless topics: brokers serve all rows, as of a topic without tiered storage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.testing import Broker
from tests.support.random_records import PARTITIONS, produce_varied
from tests.support.spark_reading import by_consumer, by_spark, by_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    configs = {"diskless.append.commit.interval.ms": "20"}
    with Broker(diskless=True, configs=configs) as broker:
        broker.create_topic("events", 3, {"diskless.enable": "true"})
        for codec in ("none", "gzip", "zstd"):
            produce_varied(
                broker.bootstrap,
                "events",
                range(400),
                "",
                **{"linger.ms": 2, "compression.type": codec},
            )
        yield broker


def options(broker: Broker, **more: Any) -> dict[str, Any]:
    return {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "events", **more}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("split", [{}, {"maxRecordsPerPartition": 97}], ids=str)
def test_rows_of_a_diskless_topic_equal_those_of_a_consumer(
    broker: Broker, isolation: str, split: dict[str, int]
) -> None:
    expected = by_consumer(broker.bootstrap, "events", PARTITIONS, isolation=isolation)
    assert len(expected) == 1200
    found = by_tasks(options(broker, **split, **{"kafka.isolation.level": isolation}))
    assert found == expected


def test_spark_reads_a_diskless_topic_after_records_were_deleted(
    spark: SparkSession, broker: Broker
) -> None:
    """D-08: the query starts at the log start offsets."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([TopicPartition("events", 0, 50)]).values():
        assert future.result(30).low_watermark == 50
    expected = by_consumer(broker.bootstrap, "events", PARTITIONS, isolation="read_committed")
    assert len(expected) == 1150
    assert by_spark(spark, options(broker)) == expected
