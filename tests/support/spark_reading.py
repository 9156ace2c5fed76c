"""Rows of a topic from Spark, from the source's tasks without Spark, and from a consumer, in the same form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition

from odradek.pipeline.data_source import BatchReader
from odradek.pipeline.options import parse_options
from tests.support.virtual_reading import FULL, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Partition, offset, timestamp in ms, key, value, headers."""


def table(spark: SparkSession, options: Mapping[str, Any]) -> DataFrame:
    return spark.read.format("odradek").options(**options).load()


def by_spark(spark: SparkSession, options: Mapping[str, Any]) -> list[Row]:
    """Return all rows of a topic that Spark reads, sorted by partition and offset."""
    frame = table(spark, {"includeHeaders": "true", **options})
    rows = frame.selectExpr(
        "partition", "offset", "unix_millis(timestamp) ms", "key", "value", "headers"
    ).collect()
    return sorted(
        (
            each.partition,
            each.offset,
            each.ms,
            _bytes(each.key),
            _bytes(each.value),
            tuple((header.key, _bytes(header.value)) for header in each.headers or ()),
        )
        for each in rows
    )


def by_tasks(options: Mapping[str, Any]) -> list[Row]:
    """Return the same rows, planned and read in this process without Spark, which takes tens of milliseconds."""
    given = {name: str(value) for name, value in options.items()}
    reader = BatchReader(parse_options(given, streaming=False), FULL)
    rows = [row for task in reader.partitions() for row in rows_of(reader, task)]
    return sorted((*row[:3], *row[4:]) for row in rows)


def by_consumer(
    bootstrap: str, topic: str, partitions: Sequence[int], *, isolation: str = "read_uncommitted"
) -> list[Row]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "the-same-rows",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
    found: list[Row] = []
    ended: set[int] = set()
    while len(ended) < len(partitions):
        for message in consumer.consume(10_000, timeout=1):
            if message.error() is not None:
                ended.add(message.partition())
                continue
            found.append(
                (
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                )
            )
    consumer.close()
    return sorted(found)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
