"""Program with a Spark session and Spark's own Kafka connector, which `spark_connector.py` starts.

A request is a line of JSON on stdin, `{"do": …, …}`; the response is a line on stdout, `{"done": …}` or `{"error": …}`.
Bytes are in base64.
"""

from __future__ import annotations

import json
import os
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

TIMEOUT_SECONDS = 120
SENT = (
    "topic string, key binary, value binary, partition int,"
    " headers array<struct<key: string, value: binary>>"
)


def open_session(jars: str) -> SparkSession:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraClassPath", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def rows_of(frame: DataFrame) -> list[list[Any]]:
    headers = "headers" if "headers" in frame.columns else "null headers"
    found = frame.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) ms", "timestampType",
        "key", "value", headers,
    ).collect()  # fmt: skip
    rows = [
        [
            row.topic,
            row.partition,
            row.offset,
            row.ms,
            row.timestampType,
            _text(row.key),
            _text(row.value),
            row.headers and [[header.key, _text(header.value)] for header in row.headers],
        ]
        for row in found
    ]
    return sorted(rows, key=lambda row: row[:3])


def _text(value: bytearray | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(text: str | None) -> bytearray | None:
    return None if text is None else bytearray(b64decode(text))


def sent_frame(spark: SparkSession, rows: Sequence[Sequence[Any]]) -> DataFrame:
    made = [
        (
            topic,
            _bytes(key),
            _bytes(value),
            partition,
            None if headers is None else [(name, _bytes(each)) for name, each in headers],
        )
        for topic, key, value, partition, headers in rows
    ]
    return spark.createDataFrame(made, SENT)


class Program:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def read(self, options: Mapping[str, str]) -> Any:
        """Return all rows."""
        return rows_of(self._spark.read.format("kafka").options(**options).load())

    def where(self, options: Mapping[str, str], condition: str) -> Any:
        """Return the rows that meet a condition."""
        frame = self._spark.read.format("kafka").options(**options).load()
        return rows_of(frame.where(condition))

    def write(self, options: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> Any:
        frame = sent_frame(self._spark, rows)
        frame.repartition(2).write.format("kafka").options(**options).save()

    def stream(self, options: Mapping[str, str], checkpoint: str) -> Any:
        """Return the rows of each non-empty micro-batch up to the end of the topics."""
        batches: list[Any] = []

        def take(frame: DataFrame, number: int) -> None:
            if rows := rows_of(frame):
                batches.append(rows)

        frame = self._spark.readStream.format("kafka").options(**options).load()
        self._await(frame.writeStream.foreachBatch(take), checkpoint)
        return batches

    def pipe(self, options: Mapping[str, str], into: Mapping[str, str], checkpoint: str) -> Any:
        """Stream from a topic into a topic."""
        frame = self._spark.readStream.format("kafka").options(**options).load()
        sink = frame.select("key", "value").writeStream.format("kafka").options(**into)
        self._await(sink, checkpoint)

    def _await(self, writer: Any, checkpoint: str) -> None:
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        if not query.awaitTermination(TIMEOUT_SECONDS):
            query.stop()
            raise TimeoutError(f"the query did not end in {TIMEOUT_SECONDS} s")


def main() -> None:
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of Spark is not a response
    program = Program(open_session(sys.argv[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        act: Callable[..., Any] = getattr(program, asked.pop("do"))
        try:
            response = {"done": act(**asked)}
        except Exception as error:
            response = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(response), file=responses, flush=True)


if __name__ == "__main__":
    main()
