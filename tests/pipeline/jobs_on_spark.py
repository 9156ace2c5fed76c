"""Driver program with one read, one stream and all jobs but `export`, on any Spark master.

    python -m tests.pipeline.jobs_on_spark MASTER CONF BOOTSTRAP TIER DIRECTORY

CONF is a JSON object of Spark properties. The topic is "events"; "again" is the target topic of the replay. DIRECTORY
is for the stream. Prints one JSON object with the results.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

from odradek.pipeline import register
from odradek.pipeline.cli.audit import as_json
from odradek.pipeline.jobs.audit import AuditJob, audit
from odradek.pipeline.jobs.replay import ReplayJob, replay
from odradek.pipeline.jobs.stats import StatsJob, stats
from odradek.pipeline.spark_session import open_session


def rows(frame: DataFrame) -> list[list[object]]:
    return sorted(
        [row.partition, row.offset, row.value]
        for row in frame.select("partition", "offset", frame.value.cast("string")).collect()
    )


def streamed(spark: SparkSession, source: dict[str, str], directory: str) -> DataFrame:
    writer = (
        spark.readStream.format("odradek")
        .options(**source, startingOffsets="earliest", maxOffsetsPerTrigger="500")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .option("path", f"{directory}/out")
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    return spark.read.parquet(f"{directory}/out")


def main(master: str, conf: str, bootstrap: str, tier: str, directory: str) -> None:
    with open_session("jobs", master, json.loads(conf)) as spark:
        register(spark)
        source = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": "events",
            "tiered.url": tier,
            "maxBytesPerTask": "30000",
        }
        frame = spark.read.format("odradek").options(**source).load()
        found: dict[str, object] = {
            "read": rows(frame),
            "tasks": frame.rdd.getNumPartitions(),
            "streamed": rows(streamed(spark, source, directory)),
        }
        again = ReplayJob(source, "again", bootstrap)
        found["replayed"] = [replay(spark, again).records, replay(spark, again).records]
        found["audit"] = as_json(audit(spark, AuditJob(tier, bootstrap)))
        found["stats"] = [
            [row.partition, row.records, row.distinctKeys]
            for row in stats(spark, StatsJob(source)).collect()
        ]
        context = spark.sparkContext._jsc.sc()
        found["executors"] = context.getExecutorMemoryStatus().size() - 1
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
