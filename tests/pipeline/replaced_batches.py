"""What a table has to do with batches that are made again, whatever its format."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from odradek.pipeline.brokers import TopicPartition
from odradek.pipeline.jobs.batch_attempts import BatchKey
from odradek.pipeline.jobs.export_tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[str, int]
"""Topic and offset, of partition 0; the offset is the day, too."""


def has_the_turn() -> None:
    """The driver, all the time."""


def batch_of(export: str, topic: str, number: int) -> BatchKey:
    """Of ten offsets each."""
    offsets = {TopicPartition(topic, 0): (10 * number, 10 * number + 10)}
    return BatchKey(export, number, offsets)


def frame_of(spark: SparkSession, topic: str, *offsets: int) -> DataFrame:
    rows = [(topic, 0, each, datetime(2026, 1, each + 1, tzinfo=UTC)) for each in offsets]
    return spark.createDataFrame(
        rows, "topic string, partition int, offset long, timestamp timestamp"
    )


def records(spark: SparkSession, format: str, out: str) -> list[Row]:
    """After batches of two exports into one table, of which one was made again from other records."""
    table = open_table(spark, format, out, "date", has_the_turn)
    table.write(frame_of(spark, "a", 1, 2), batch_of("one", "a", 0))
    table.write(frame_of(spark, "b", 1, 3), batch_of("two", "b", 0))
    table.replace(frame_of(spark, "a", 2, 4), batch_of("one", "a", 0))
    table.replace(frame_of(spark, "a", 2, 5), batch_of("one", "a", 0))
    table.write(frame_of(spark, "a", 11), batch_of("one", "a", 1))
    return sorted(map(tuple, table.read().select("topic", "offset").collect()))


RECORDS = [("a", 2), ("a", 5), ("a", 11), ("b", 1), ("b", 3)]


def dead_letters(spark: SparkSession, format: str, out: str) -> list[Row]:
    """Of two exports of one topic into one place; one of the batches turns out to have none."""
    table = open_table(spark, format, out, None, has_the_turn)
    table.replace(frame_of(spark, "a"), batch_of("one", "a", 0))
    table.replace(frame_of(spark, "a", 1), batch_of("one", "a", 0))
    table.write(frame_of(spark, "a", 2, 3), batch_of("two", "a", 0))
    table.replace(frame_of(spark, "a"), batch_of("one", "a", 0))
    table.replace(frame_of(spark, "a", 3, 4), batch_of("two", "a", 0))
    table.write(frame_of(spark, "a", 11), batch_of("two", "a", 1))
    return sorted(map(tuple, table.read().select("topic", "offset").collect()))


DEAD_LETTERS = [("a", 3), ("a", 4), ("a", 11)]


def comes_back(spark: SparkSession, out: str) -> list[Row]:
    """Of Delta, after a driver wrote a batch that it had begun, and another one made again meanwhile; and the next one."""
    table = open_table(spark, "delta", out, "date", has_the_turn)
    table.write(frame_of(spark, "a", 1), batch_of("one", "a", 0))
    table.replace(frame_of(spark, "a", 12, 13), batch_of("one", "a", 1))
    table.write(frame_of(spark, "a", 11, 12), batch_of("one", "a", 1))
    table.write(frame_of(spark, "a", 21), batch_of("one", "a", 2))
    return sorted(map(tuple, table.read().select("topic", "offset").collect()))


ONCE = [("a", 1), ("a", 12), ("a", 13), ("a", 21)]


def dead_letters_come_back(spark: SparkSession, out: str) -> list[Row]:
    """The same of dead letters, the first ones of their table, of a batch that has none any more."""
    table = open_table(spark, "delta", out, None, has_the_turn)
    table.replace(frame_of(spark, "a"), batch_of("one", "a", 0))
    table.write(frame_of(spark, "a", 1), batch_of("one", "a", 0))
    return sorted(map(tuple, table.read().select("topic", "offset").collect()))


def widened(spark: SparkSession, format: str, out: str) -> list[tuple[Any, ...]]:
    """Offsets, and what two columns have that came later, the one with a field that came later still."""
    from pyspark.sql import functions as f

    def more(offset: int, **columns: Any) -> DataFrame:
        return frame_of(spark, "a", offset).withColumns(
            {name: f.lit(value) for name, value in columns.items()}
        )

    def with_fields(offset: int, *fields: str) -> DataFrame:
        values = f.struct(*(f.lit(offset).alias(name) for name in fields))
        return more(offset, added="x").withColumn("value", values)

    table = open_table(spark, format, out, "date", has_the_turn)
    table.write(more(1), batch_of("one", "a", 0))
    table.write(more(11, added="x"), batch_of("one", "a", 1))
    table.write(with_fields(21, "m"), batch_of("one", "a", 2))
    table.replace(with_fields(22, "m", "n"), batch_of("one", "a", 2))
    table.replace(with_fields(22, "m", "n"), batch_of("one", "a", 2))
    table.write(more(30), batch_of("one", "a", 3))
    read = spark.read.format(format).option("mergeSchema", "true").load(out)
    return sorted(map(tuple, read.select("offset", "added", "value.m", "value.n").collect()))


WIDENED = [(1, None, None, None), (11, "x", None, None), (22, "x", 22, 22), (30, None, None, None)]
