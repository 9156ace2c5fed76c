"""A topic to partitioned Parquet, each offset exactly once, however often the job dies on the way.

The topic is read as a stream up to where it ends now. Spark writes down which offsets a batch has before
it reads the first of them (the checkpoint's offset log), and that it is done after all is written; so a
batch that a crash cut short is made again with the same offsets. Its files lie in directories of their
own, `…/batch=N`, which are replaced as a whole: what the first attempt left is gone, or is overwritten.
When the job has ended, any reader of the directory sees each record once.

    OUT/topic=T/date=D/batch=N/part-….parquet    the records
    OUT/_dead_letters/batch=N/…                  those whose value could not be decoded, as they were
    OUT/_checkpoint                              how far the export is: keep it with the records
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from odradek.pipeline.errors import BadOption, PipelineError, said_by_spark
from odradek.pipeline.source import NAME, register
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

CHECKPOINT = "_checkpoint"
DEAD_LETTERS = "_dead_letters"
OFFSETS_A_BATCH = 10_000_000
PARTITIONINGS = {
    "none": (),
    "date": ("date",),
    "hour": ("date", "hour"),
}
"""By name, the directories between topic and batch."""
VALUES = ("binary", "string", "json")


@value_class
class ExportBatch:
    """One batch that is written. Counts are of records."""

    number: int
    records: int
    dead_letters: int


@value_class
class ExportJob:
    """What is exported and how. `source` are the options of the table (docs/pipeline.md). `value` says
    what values are; of JSON, `schema` (Spark's DDL) says which columns it has."""

    source: Mapping[str, str]
    out: str
    by: str = "date"
    value: str = "binary"
    schema: str | None = None
    offsets_a_batch: int = OFFSETS_A_BATCH


def export(
    spark: SparkSession,
    job: ExportJob,
    on_batch: Callable[[ExportBatch], None] = lambda batch: None,
) -> list[ExportBatch]:
    """Export what there is now, going on where an earlier run of the same job ended; the batches that
    were written. Raises BadOption, or PipelineError with what Spark said."""
    from pyspark.errors import PySparkException

    _check(job)
    register(spark)
    done: list[ExportBatch] = []

    def write(frame: DataFrame, number: int) -> None:
        done.append(_write(frame, number, job))
        on_batch(done[-1])

    options = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(job.offsets_a_batch),
        **job.source,
    }
    try:
        query = (
            spark.readStream.format(NAME)
            .options(**options)
            .load()
            .writeStream.option("checkpointLocation", f"{job.out}/{CHECKPOINT}")
            .foreachBatch(write)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    except PySparkException as error:
        raise PipelineError(f"the export ended: {said_by_spark(error)}") from error
    return done


def _check(job: ExportJob) -> None:
    if job.by not in PARTITIONINGS:
        raise BadOption(f"directories are by {', '.join(PARTITIONINGS)}, not by {job.by}")
    if job.value not in VALUES:
        raise BadOption(f"values are {', '.join(VALUES)}, not {job.value}")
    if (job.value == "json") != (job.schema is not None):
        raise BadOption("a schema goes with values of json, and they with one")


def _write(frame: DataFrame, number: int, job: ExportJob) -> ExportBatch:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    decoded = _decoded(frame, job)
    good, bad = decoded.where("not is_dead").drop("is_dead"), None
    if job.value == "json":
        bad = decoded.where("is_dead").select(*frame.columns)
        good = good.drop("value").select("*", "decoded.*").drop("decoded")
    counted, counted_bad = Observation(), Observation()
    directories = [*PARTITIONINGS[job.by], "batch"]
    good = (
        good.withColumn("date", f.to_date("timestamp"))
        .withColumn("hour", f.hour("timestamp"))
        .withColumn("batch", f.lit(number))
        .drop(*({"date", "hour"} - set(directories)))
        .observe(counted, f.count(f.lit(1)).alias("records"))
    )
    _replace(good, job.out, ["topic", *directories])
    if bad is not None:
        bad = bad.withColumn("batch", f.lit(number)).observe(
            counted_bad, f.count(f.lit(1)).alias("records")
        )
        _replace(bad, f"{job.out}/{DEAD_LETTERS}", ["batch"])
    return ExportBatch(
        number, counted.get["records"], 0 if bad is None else counted_bad.get["records"]
    )


def _decoded(frame: DataFrame, job: ExportJob) -> DataFrame:
    """With `is_dead`, and `decoded` where the value is one of several columns."""
    from pyspark.sql import functions as f

    text: Column = f.col("value").cast("string")
    if job.value == "json":
        assert job.schema is not None
        strict: dict[str, Any] = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_broken"}
        parsed = f.from_json(text, f"{job.schema}, _broken string", strict)
        frame = frame.withColumn("parsed", parsed)
        parsed_type = cast("StructType", frame.schema["parsed"].dataType)
        fields = [name for name in parsed_type.fieldNames() if name != "_broken"]
        columns = f.struct(*[f.col(f"parsed.{name}").alias(name) for name in fields])
        is_dead = f.col("value").isNotNull() & (
            f.col("parsed").isNull() | f.col("parsed._broken").isNotNull()
        )
        return frame.withColumn("is_dead", is_dead).withColumn("decoded", columns).drop("parsed")
    if job.value == "string":
        frame = frame.withColumn("value", text)
    return frame.withColumn("is_dead", f.lit(False))


def _replace(frame: DataFrame, out: str, directories: list[str]) -> None:
    """Write, in place of what is in the same directories."""
    (
        frame.write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy(*directories)
        .parquet(out)
    )
