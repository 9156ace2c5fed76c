"""Expected results of repeated batches, for any table format."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from odradek.pipeline.jobs.batch_attempts import BatchKey
from odradek.pipeline.jobs.export_tables import open_table
from odradek.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[str, int]
"""Topic and offset of a record in partition 0. The offset also determines the day of its timestamp."""


def has_the_lease() -> None:
    """Confirm the lease at any time."""


def batch_of(export: str, topic: str, number: int) -> BatchKey:
    """Return the key of a batch with ten offsets."""
    offsets = {TopicPartition(topic, 0): (10 * number, 10 * number + 10)}
    return BatchKey(export, number, offsets)


def frame_of(spark: SparkSession, topic: str, *offsets: int) -> DataFrame:
    rows = [(topic, 0, each, datetime(2026, 1, each + 1, tzinfo=UTC)) for each in offsets]
    return spark.createDataFrame(
        rows, "topic string, partition int, offset long, timestamp timestamp"
    )


def records(spark: SparkSession, format: str, out: str) -> list[Row]:
    """Return the table's records after batches of two exports, one of which was repeated with other records."""
    table = open_table(spark, format, out, "date", has_the_lease)
    table.write(frame_of(spark, "a", 1, 2), batch_of("one", "a", 0))
    table.write(frame_of(spark, "b", 1, 3), batch_of("two", "b", 0))
    table.replace(frame_of(spark, "a", 2, 4), batch_of("one", "a", 0))
    table.replace(frame_of(spark, "a", 2, 5), batch_of("one", "a", 0))
    table.write(frame_of(spark, "a", 11), batch_of("one", "a", 1))
    return sorted(map(tuple, table.read().select("topic", "offset").collect()))


RECORDS = [("a", 2), ("a", 5), ("a", 11), ("b", 1), ("b", 3)]


def dead_letters(spark: SparkSession, format: str, out: str) -> list[Row]:
    """Return the dead letters of two exports in one location; one of the batches turned out to have none."""
    table = open_table(spark, format, out, None, has_the_lease)
    table.replace(frame_of(spark, "a"), batch_of("one", "a", 0))
    table.replace(frame_of(spark, "a", 1), batch_of("one", "a", 0))
    table.write(frame_of(spark, "a", 2, 3), batch_of("two", "a", 0))
    table.replace(frame_of(spark, "a"), batch_of("one", "a", 0))
    table.replace(frame_of(spark, "a", 3, 4), batch_of("two", "a", 0))
    table.write(frame_of(spark, "a", 11), batch_of("two", "a", 1))
    return sorted(map(tuple, table.read().select("topic", "offset").collect()))


DEAD_LETTERS = [("a", 3), ("a", 4), ("a", 11)]


def resumed_driver(spark: SparkSession, out: str) -> list[Row]:
    """Return the records of a Delta table after a driver resumed and wrote a batch that another driver had repeated,
    and the next batch.
    """
    table = open_table(spark, "delta", out, "date", has_the_lease)
    table.write(frame_of(spark, "a", 1), batch_of("one", "a", 0))
    table.replace(frame_of(spark, "a", 12, 13), batch_of("one", "a", 1))
    table.write(frame_of(spark, "a", 11, 12), batch_of("one", "a", 1))
    table.write(frame_of(spark, "a", 21), batch_of("one", "a", 2))
    return sorted(map(tuple, table.read().select("topic", "offset").collect()))


ONCE = [("a", 1), ("a", 12), ("a", 13), ("a", 21)]


def resumed_driver_dead_letters(spark: SparkSession, out: str) -> list[Row]:
    """Return the dead letters after the same, where the repeated batch has none."""
    table = open_table(spark, "delta", out, None, has_the_lease)
    table.replace(frame_of(spark, "a"), batch_of("one", "a", 0))
    table.write(frame_of(spark, "a", 1), batch_of("one", "a", 0))
    return sorted(map(tuple, table.read().select("topic", "offset").collect()))


def widened(spark: SparkSession, format: str, out: str) -> list[tuple[Any, ...]]:
    """Return the offsets with two columns that were added later, one of which got a field later still."""
    from pyspark.sql import functions as f

    def more(offset: int, **columns: Any) -> DataFrame:
        return frame_of(spark, "a", offset).withColumns(
            {name: f.lit(value) for name, value in columns.items()}
        )

    def with_fields(offset: int, *fields: str) -> DataFrame:
        values = f.struct(*(f.lit(offset).alias(name) for name in fields))
        return more(offset, added="x").withColumn("value", values)

    table = open_table(spark, format, out, "date", has_the_lease)
    table.write(more(1), batch_of("one", "a", 0))
    table.write(more(11, added="x"), batch_of("one", "a", 1))
    table.write(with_fields(21, "m"), batch_of("one", "a", 2))
    table.replace(with_fields(22, "m", "n"), batch_of("one", "a", 2))
    table.replace(with_fields(22, "m", "n"), batch_of("one", "a", 2))
    table.write(more(30), batch_of("one", "a", 3))
    read = spark.read.format(format).option("mergeSchema", "true").load(out)
    return sorted(map(tuple, read.select("offset", "added", "value.m", "value.n").collect()))


WIDENED = [(1, None, None, None), (11, "x", None, None), (22, "x", 22, 22), (30, None, None, None)]
