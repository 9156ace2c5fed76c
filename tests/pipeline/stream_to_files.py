"""Driver program of a stream to Spark's Parquet sink, which tests kill.

    python -m tests.pipeline.stream_to_files BOOTSTRAP TIER DIRECTORY [once]

DIRECTORY gets the stream's checkpoint and its output, `out`. With `once` it ends when all records were read, and
prints the output, one line of JSON per record: partition, offset and value.
"""

from __future__ import annotations

import json
import sys

from odradek.pipeline import register
from odradek.pipeline.spark_session import open_session

OFFSETS_A_BATCH = 100


def main(bootstrap: str, tier: str, directory: str, once: str = "") -> None:
    with open_session("stream", "local[2]") as spark:
        register(spark)
        options = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": "events",
            "tiered.url": tier,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(OFFSETS_A_BATCH),
        }
        writer = (
            spark.readStream.format("odradek")
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .option("path", f"{directory}/out")
        )
        ends = {"availableNow": True} if once else {"processingTime": "0 seconds"}
        writer.trigger(**ends).start().awaitTermination()
        rows = spark.read.parquet(f"{directory}/out")
        for row in rows.select("partition", "offset", rows.value.cast("string")).collect():
            print(json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
