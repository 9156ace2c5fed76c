"""Statistics of a topic: sizes, compression, keys and late records; by topic, partition or hour.

The log is read twice up to its end at the job's start. Batches give sizes, codecs and the progress of timestamps:
from their headers, except for the uncompressed size. Records give keys and lateness. With `StatsJob.records` False
the second pass is omitted, and nothing is decompressed.

A record is late if the max timestamp of the log before its block of `BLOCK` offsets is more than `late_after_ms`
later than its own. Timestamps in the future do not count.

Sizes are counted in the hour of a batch's max timestamp, which retention uses; keys and late records in the hour of
the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from odradek.pipeline.data_source import NAME, register
from odradek.pipeline.decoding.schema import BATCH_SPARK_TYPES, BATCHES
from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs.job_progress import JobProgress, report_spark_tasks
from odradek.pipeline.options import OF_ROWS, REPORT, parse_options, without_prefixes
from odradek.pipeline.query import Query
from odradek.protocol.records.compression import NAMES
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BLOCK = 10_000
HOUR_US = 3_600_000_000
BLOCKS_IN_MEMORY_MAX = 5_000_000
"""Maximum number of blocks that are broadcast to each executor."""
TOP_KEYS_MAX = 1000
"""Maximum of `top_keys`; more keys than that are counted."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "topic": ("topic",),
    "partition": ("topic", "partition"),
    "hour": ("topic", "partition", "hour"),
}
NUMBERS = frozenset(("records", "batches", "bytes", "keyless", "distinctKeys", "late"))
"""Columns that are 0 if there are no records."""


@value_class
class StatsJob:
    """Settings of the statistics. `source` are the options of the source (docs/pipeline.md); those for the row format
    are ignored.
    """

    source: Mapping[str, str]
    by: str = "partition"
    records: bool = True
    top_keys: int = 5
    late_after_ms: int = 3_600_000

    def check(self) -> None:
        """Check the job's settings. Raises BadOption."""
        if self.by not in GROUPS:
            raise BadOption(f"statistics are grouped by {', '.join(GROUPS)}, not by {self.by}")
        if not 1 <= self.top_keys <= TOP_KEYS_MAX:
            raise BadOption(
                f"the number of most frequent keys must be 1 to {TOP_KEYS_MAX}, not {self.top_keys}"
            )
        if parse_options(self.source, streaming=False).corrupt_segments == REPORT:
            raise BadOption(
                f"statistics have no rows for gaps: use onCorruptSegment=skip, not {REPORT}"
            )


def stats(
    spark: SparkSession,
    job: StatsJob,
    on_progress: Callable[[JobProgress], None] = lambda progress: None,
) -> DataFrame:
    """Return a row for each topic, partition or hour.

    Columns: `records`, `batches`, `bytes` (as stored), `uncompressedBytes`, `codecs` (bytes by codec), `oldest`,
    `newest`; and from records `keyless`, `distinctKeys` (approximate, to some percent), `topKeys` (approximate),
    `late`. Control batches are counted in `bytes` and `batches`. Empty partitions have rows, except by hour.
    Progress is in tasks. Raises BadOption, PipelineError.
    """
    job.check()
    register(spark)
    job = replace(job, source=_up_to_now(job.source))
    blocks = _blocks(spark, job).persist()
    try:
        with report_spark_tasks(spark, on_progress):
            return _found(spark, job, blocks).localCheckpoint()
    finally:
        blocks.unpersist()


def _found(spark: SparkSession, job: StatsJob, blocks: DataFrame) -> DataFrame:
    groups = list(GROUPS[job.by])
    found = _sizes(blocks, groups)
    if job.records:
        found = found.join(_of_records(spark, job, blocks, groups), groups, "full")
    if job.by != "hour":
        ends: dict[str, dict[str, int]] = json.loads(job.source["endingoffsets"])
        partitions = [(topic, int(each)) for topic, its in ends.items() for each in its]
        there = spark.createDataFrame(partitions, "topic string, partition int")
        there = there.select(*groups).distinct()
        numbers = [name for name in found.columns if name in NUMBERS]
        found = there.join(found, groups, "left").fillna(0, numbers)
    return found.orderBy(groups)


def _up_to_now(source: Mapping[str, str]) -> dict[str, str]:
    """Fix the current partitions and end offsets in the options, so that both passes read the same records. Raises
    BadOption.
    """
    options = parse_options(source, streaming=False)
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), (_, end) in Query(options).ranges().items():
        ends.setdefault(topic, {})[str(partition)] = end
    return {
        **without_prefixes(source, "subscribe", "assign", "ending", *OF_ROWS),
        "assign": json.dumps({topic: list(map(int, its)) for topic, its in ends.items()}),
        "endingoffsets": json.dumps(ends),
    }


def _blocks(spark: SparkSession, job: StatsJob) -> DataFrame:
    """Aggregate batches by block of offsets and hour."""
    from pyspark.sql import functions as f

    names = ["topic", "partition", "offset", "timestamp", "records", "bytes", "codec", "isControl"]
    if job.records:
        names += ["baseOffset", "uncompressedBytes"]
    columns = ", ".join(f"{name} {BATCH_SPARK_TYPES[name]}" for name in names)
    batches = spark.read.format(NAME).options(**job.source, rows=BATCHES).schema(columns).load()
    of_data = ~f.col("isControl")
    has_time = of_data & (f.col("timestamp") >= f.timestamp_millis(f.lit(0)))
    in_time = has_time & (f.col("timestamp") <= f.current_timestamp())
    total, begins = f.lit(None).cast("bigint"), f.lit(None).cast("bigint")
    if job.records:
        total, begins = f.sum("uncompressedBytes"), f.min(_block("baseOffset"))
    return batches.groupBy("topic", "partition", _block(), _hour()).agg(
        f.sum(f.when(of_data, f.col("records")).otherwise(0)).alias("records"),
        f.count(f.lit(1)).alias("batches"),
        f.sum("bytes").alias("bytes"),
        total.alias("uncompressedBytes"),
        *(
            f.sum(f.when((f.col("codec") == name) & of_data, f.col("bytes"))).alias(f"codec_{name}")
            for name in NAMES
        ),
        f.min(f.when(has_time, f.col("timestamp"))).alias("oldest"),
        f.max(f.when(has_time, f.col("timestamp"))).alias("newest"),
        f.max(f.when(in_time, f.col("timestamp"))).alias("reached"),
        begins.alias("begins"),
    )


def _block(offset: str = "offset") -> Column:
    """Return the block in which a batch ends."""
    from pyspark.sql import functions as f

    return f.floor(f.col(offset) / BLOCK).alias("block")


def _hour() -> Column:
    """Return the start of the hour in UTC, independent of the session's time zone, since hours of some zones start
    at half past.
    """
    from pyspark.sql import functions as f

    us = f.unix_micros("timestamp")
    return f.timestamp_micros(us - f.pmod(us, f.lit(HOUR_US))).alias("hour")


def _sizes(blocks: DataFrame, groups: list[str]) -> DataFrame:
    from pyspark.sql import functions as f

    sums = ["records", "batches", "bytes", "uncompressedBytes"]
    codecs = [f.struct(f.lit(name), f.sum(f"codec_{name}")) for name in NAMES]
    return blocks.groupBy(*groups).agg(
        *(f.sum(name).alias(name) for name in sums),
        f.map_filter(f.map_from_entries(f.array(*codecs)), lambda _, size: size.isNotNull()).alias(
            "codecs"
        ),
        f.min("oldest").alias("oldest"),
        f.max("newest").alias("newest"),
    )


def _of_records(
    spark: SparkSession, job: StatsJob, blocks: DataFrame, groups: list[str]
) -> DataFrame:
    from pyspark.sql import functions as f

    columns = "key binary, topic string, partition int, offset bigint, timestamp timestamp"
    records = spark.read.format(NAME).options(**job.source).schema(columns).load()
    before = _reached_before(blocks)
    if before.count() <= BLOCKS_IN_MEMORY_MAX:
        before = f.broadcast(before)
    placed = records.withColumn("block", _block()).join(
        before, ["topic", "partition", "block"], "left"
    )
    lateness_ms = f.unix_millis("reached") - f.unix_millis("timestamp")
    most = f.expr(f"approx_top_k(hex(key), {int(job.top_keys)}) filter (where key is not null)")
    return (
        placed.withColumn("hour", _hour())
        .groupBy(*groups)
        .agg(
            f.count_if(f.col("key").isNull()).alias("keyless"),
            f.approx_count_distinct("key").alias("distinctKeys"),
            f.transform(
                most,
                lambda each: f.struct(
                    f.unhex(each.getField("item")).alias("key"),
                    each.getField("count").alias("records"),
                ),
            ).alias("topKeys"),
            f.count_if(lateness_ms > job.late_after_ms).alias("late"),
        )
    )


def _reached_before(blocks: DataFrame) -> DataFrame:
    """Return the max timestamp before each block, also for blocks in which no batch ends but a batch of a later
    block has records.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    in_order = Window.partitionBy("topic", "partition").orderBy("block")
    earlier = in_order.rowsBetween(Window.unboundedPreceding, -1)
    each = blocks.groupBy("topic", "partition", "block").agg(
        f.max("reached").alias("reached"), f.min("begins").alias("begins")
    )
    behind_former = f.lag("block").over(in_order) + 1
    return each.select(
        "topic",
        "partition",
        f.max("reached").over(earlier).alias("reached"),
        f.sequence(f.greatest("begins", behind_former), "block").alias("blocks"),
    ).select("topic", "partition", "reached", f.explode("blocks").alias("block"))
