"""Exports to Delta for `test_export_to_delta`, on the Spark version of Delta, with failures.

    python -m tests.pipeline.exported_delta BOOTSTRAP DIRECTORY JARS

Prints JSON with the number of records that each run of the export wrote, and the contents of the tables.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from odradek.pipeline.errors import BadOption, PipelineError
from odradek.pipeline.jobs.export import ExportBatch, ExportJob, export
from odradek.pipeline.jobs.export_values import ExportValues
from odradek.pipeline.spark_session import open_session
from tests.pipeline.replaced_batches import (
    dead_letters,
    records,
    resumed_driver,
    resumed_driver_dead_letters,
    widened,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CommitFailure(Exception):
    """Raised between the commit of a batch in the table and Spark's commit in the checkpoint."""


def _fail(batch: ExportBatch) -> None:
    raise CommitFailure


def _export(spark: SparkSession, job: ExportJob) -> dict[str, Any]:
    runs: list[list[int]] = []
    for _ in range(2):  # each run repeats the first batch, which the table already has
        try:
            export(spark, job, _fail)
        except PipelineError:
            runs.append([])
    runs.append([batch.records for batch in export(spark, job)])
    runs.append([batch.records for batch in export(spark, job)])
    read = spark.read.format("delta")
    rows = read.load(job.out).select("partition", "offset", "n").collect()
    dead = read.load(job.dead_letters_path).select("partition", "offset", "value", "reason")
    lost = ExportJob(**{**_fields(job), "checkpoint": f"{job.checkpoint_path}-lost"})
    try:
        export(spark, lost)
        broker_error = ""
    except BadOption as error:
        broker_error = str(error)
    return {
        "runs": runs,
        "rows": sorted(list(row) for row in rows),
        "dead": sorted([row[0], row[1], bytes(row[2]).decode(), row[3]] for row in dead.collect()),
        "refused": broker_error,
    }


def _fields(job: ExportJob) -> dict[str, Any]:
    names = ("source", "out", "format", "by", "values", "offsets_a_batch")
    return {name: getattr(job, name) for name in names}


def main(bootstrap: str, directory: str, jars: str) -> None:
    conf = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    source = {"kafka.bootstrap.servers": bootstrap, "subscribe": "events"}
    common: dict[str, Any] = {
        "source": source, "values": ExportValues("json", "n int"), "offsets_a_batch": 40,
    }  # fmt: skip
    with open_session("delta", "local[1]", conf) as spark:
        results = _export(spark, ExportJob(out=f"{directory}/delta", format="delta", **common))
        results["replaced"] = records(spark, "delta", f"{directory}/replaced")
        results["cameBack"] = resumed_driver(spark, f"{directory}/cameBack")
        results["deadCameBack"] = resumed_driver_dead_letters(spark, f"{directory}/deadCameBack")
        results["widened"] = widened(spark, "delta", f"{directory}/widened")
        results["replacedDead"] = dead_letters(spark, "delta", f"{directory}/dead")
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
