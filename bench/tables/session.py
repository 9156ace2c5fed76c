"""A Spark application that runs queries: the process that is measured.

    python -m odradek.bench.tables.session {"master": …, "jars": …}

It reads requests from its stdin, one JSON object per line, and writes the duration and the result of each query to
its stdout. The file also runs under the Spark release of the connector, which is another one, so it needs only
PySpark, and this project only for queries of its source.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

ODRADEK, CONNECTOR = "odradek", "kafka"
"""The Spark formats of the two sources."""
OFFSETS_A_BATCH = 10_000_000
QueryResult = dict[str, int]


def count(reader: DataFrameReader, request: Mapping[str, Any]) -> QueryResult:
    """Count the records; Odradek's source reads two columns only, which are never null."""
    if request["format"] == ODRADEK:
        reader = reader.schema("partition int NOT NULL, offset long NOT NULL")
    return {"rows": reader.load().count()}


def count_by_batches(reader: DataFrameReader, request: Mapping[str, Any]) -> QueryResult:
    """Count the records; with Odradek's source from batch headers, one Spark row per batch."""
    from pyspark.sql import functions as f

    if request["format"] != ODRADEK:
        return count(reader, request)
    batches = reader.option("rows", "batches").schema("records int, isControl boolean").load()
    (row,) = batches.where(~f.col("isControl")).agg(f.sum("records").alias("rows")).collect()
    return {"rows": row.rows}


def full(reader: DataFrameReader, request: Mapping[str, Any]) -> QueryResult:
    """Read all columns of all records into Spark's `noop` sink."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    frame = reader.load().observe(seen, f.count(f.lit(1)).alias("rows"))
    frame.write.format("noop").mode("overwrite").save()
    return dict(seen.get)


ORDER = "carrier string, amount long"


def aggregate(reader: DataFrameReader, request: Mapping[str, Any]) -> QueryResult:
    """Count the orders and sum their amounts by carrier, from JSON values."""
    from pyspark.sql import functions as f

    return _sums(
        reader.load().select(f.from_json(f.col("value").cast("string"), ORDER).alias("order"))
    )


def aggregate_columns(reader: DataFrameReader, request: Mapping[str, Any]) -> QueryResult:
    """Aggregate like `aggregate`; with Odradek's source the tasks decode the JSON into columns."""
    from pyspark.sql import functions as f

    if request["format"] != ODRADEK:
        return aggregate(reader, request)
    reader = reader.option("valueFormat", "json").schema(f"value struct<{ORDER}>")
    return _sums(reader.load().select(f.col("value").alias("order")))


def _sums(orders: DataFrame) -> QueryResult:
    from pyspark.sql import functions as f

    rows = (
        orders.groupBy("order.carrier")
        .agg(f.count(f.lit(1)).alias("orders"), f.sum("order.amount").alias("amount"))
        .collect()
    )
    return {"rows": sum(row.orders for row in rows), "amount": sum(row.amount for row in rows)}


def between(reader: DataFrameReader, request: Mapping[str, Any]) -> QueryResult:
    """Count the records of an hour by a filter on `timestamp`.

    Odradek's source pushes the filter down, and assumes that records are in order.
    """
    from pyspark.sql import functions as f

    if request["format"] == ODRADEK:
        reader = reader.option("pushFilters", "true").option("maxLateness", "0")
    since, until = (f.timestamp_millis(f.lit(at)) for at in request["between_ms"])
    (row,) = (
        reader.load()
        .where((f.col("timestamp") >= since) & (f.col("timestamp") < until))
        .agg(f.count(f.lit(1)).alias("rows"), f.sum(f.length("value")).alias("bytes"))
        .collect()
    )
    return {"rows": row.rows}


def between_options(reader: DataFrameReader, request: Mapping[str, Any]) -> QueryResult:
    """Count the records of an hour by the timestamp options that both sources have."""
    since, until = request["between_ms"]
    reader = reader.option("startingTimestamp", since).option("endingTimestamp", until)
    return between(reader, request)


def export(spark: SparkSession, request: Mapping[str, Any]) -> QueryResult:
    """Export to Parquet by date.

    With Odradek's source this is the export job. With the connector it is a stream to the current end of the
    topic, in batches of the same size, each into separate directories.
    """
    if request["format"] == ODRADEK:
        from odradek.pipeline.jobs.export import ExportJob
        from odradek.pipeline.jobs.export import export as job

        done = job(
            spark,
            ExportJob(request["options"], request["out"], offsets_a_batch=OFFSETS_A_BATCH),
        )
        return {"rows": sum(each.records for each in done)}
    return _export_by_connector(spark, request)


def _export_by_connector(spark: SparkSession, request: Mapping[str, Any]) -> QueryResult:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    out, counts = request["out"], []

    def write(frame: DataFrame, number: int) -> None:
        seen = Observation()
        (
            frame.withColumn("date", f.to_date("timestamp"))
            .withColumn("batch", f.lit(number))
            .observe(seen, f.count(f.lit(1)).alias("rows"))
            .write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy("topic", "date", "batch")
            .parquet(out)
        )
        counts.append(seen.get["rows"])

    reader = spark.readStream.format(CONNECTOR).options(**request["options"])
    reader = reader.option("startingOffsets", "earliest")
    (
        reader.option("maxOffsetsPerTrigger", OFFSETS_A_BATCH)
        .load()
        .writeStream.option("checkpointLocation", f"{out}/_checkpoint")
        .foreachBatch(write)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    return {"rows": sum(counts)}


QUERIES: Mapping[str, Callable[[DataFrameReader, Mapping[str, Any]], QueryResult]] = {
    "count": count,
    "count-by-batches": count_by_batches,
    "full": full,
    "aggregate": aggregate,
    "aggregate-columns": aggregate_columns,
    "between": between,
    "between-options": between_options,
}


def respond(spark: SparkSession, request: Mapping[str, Any]) -> dict[str, Any]:
    """`query`, `format` and `options` of the table; `between_ms` or `out` if the query needs it."""
    began = time.monotonic()
    if request["query"] == "export":
        found = export(spark, request)
    else:
        reader = spark.read.format(request["format"]).options(**request["options"])
        found = QUERIES[request["query"]](reader, request)
    return {"seconds": time.monotonic() - began, "found": found}


def open_spark(settings: Mapping[str, Any]) -> SparkSession:
    """The arguments: `master`, and the `jars` to load."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(settings["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", settings["directory"])
    )
    if settings["format"] == ODRADEK:
        from odradek.pipeline.spark_session import TO_WORKERS

        for key, value in TO_WORKERS.items():
            builder = builder.config(key, value)
    if settings["jars"]:
        builder = builder.config("spark.jars", ",".join(settings["jars"]))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if settings["format"] == ODRADEK:
        from odradek.pipeline import register, speed_up_workers

        speed_up_workers(spark)
        register(spark)
    return spark


def main() -> None:
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Spark prints to stdout, too
    spark = open_spark(json.loads(sys.argv[1]))

    def send(what: Mapping[str, Any]) -> None:
        responses.write(json.dumps(what) + "\n")
        responses.flush()

    send({"version": spark.version})
    for line in sys.stdin:
        try:
            send(respond(spark, json.loads(line)))
        except Exception as error:
            send({"failed": f"{type(error).__name__}: {error}"})
    spark.stop()


if __name__ == "__main__":
    main()
