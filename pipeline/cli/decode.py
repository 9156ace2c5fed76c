"""The `odradek pipeline decode` command: arguments and output."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from odradek.pipeline.cli.arguments import (
    add_source_arguments,
    add_spark_arguments,
    session_of,
    source_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odradek.pipeline.jobs.decode import Decoding
    from odradek.pipeline.schemas.value_decoder import ValueDecoder

LIMIT_MAX = (1 << 31) - 1
"""Spark's maximum for a limit."""
SUMMARY = "decode Avro, Protobuf or JSON values with a schema registry, and print typed columns"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic", "-t", required=True, help="topic to decode; several are separated by commas"
    )
    add_source_arguments(parser)
    add_registry_arguments(parser)
    parser.add_argument(
        "--where",
        metavar="SQL",
        help="SQL condition on the records, such as partition = 0 and value.carrier = 'AA'",
    )
    parser.add_argument(
        "--limit", type=int, default=20, metavar="N", help="maximum number of records (default: 20)"
    )
    parser.add_argument(
        "--fail", action="store_true", help="fail at the first value that cannot be decoded"
    )
    parser.add_argument(
        "--columns",
        action="store_true",
        help="print the names and types of the columns, and no records",
    )
    add_spark_arguments(parser)


def add_registry_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--registry",
        metavar="URL|DIR",
        help=(
            "schema registry, http://user:password@host:port, or a directory with ID.avsc,"
            " ID.proto and ID.json"
        ),
    )
    parser.add_argument(
        "--subject",
        action="append",
        default=[],
        help="subject of the registry; all its versions are read (default: TOPIC-value); may be repeated",
    )
    parser.add_argument(
        "--id",
        action="append",
        default=[],
        type=int,
        dest="ids",
        help="id of an additional schema; may be repeated",
    )
    parser.add_argument(
        "--reader", type=int, metavar="ID", help="id of the schema with which all values are read"
    )
    parser.add_argument(
        "--message",
        action="append",
        default=[],
        help="Protobuf message type, instead of the first one of a schema; may be repeated",
    )


def decoding_of(args: argparse.Namespace) -> Decoding:
    """Return the decoding that the registry's arguments describe. Raises BadOption."""
    from odradek.pipeline.errors import BadOption
    from odradek.pipeline.jobs.decode import Decoding

    if args.registry is None:
        raise BadOption(
            "--registry is required: the URL of a schema registry, or a directory with schemas"
        )
    topics = [each for each in args.topic.split(",") if each.strip()]
    return Decoding(
        registry=args.registry,
        subjects=tuple(args.subject or [f"{each.strip()}-value" for each in topics]),
        ids=tuple(args.ids),
        reader=args.reader,
        messages=tuple(args.message),
    )


def run(args: argparse.Namespace) -> int:
    from odradek.pipeline.cli.progress_reporter import ProgressReporter
    from odradek.pipeline.cli.row_format import rows_of
    from odradek.pipeline.errors import BadOption
    from odradek.pipeline.jobs.job_progress import report_spark_tasks

    if not 0 <= args.limit <= LIMIT_MAX:
        raise BadOption(f"--limit {args.limit}: must be a number of records, at most {LIMIT_MAX}")
    decoding = decoding_of(args)
    decoder = decoding.decoder()  # reports its errors before Spark starts
    if args.columns:
        sys.stdout.writelines(_columns(decoder, as_json=args.json))
        return 0
    reporter = ProgressReporter("tasks", as_json=args.json)
    with (
        reporter,
        session_of(args, "odradek-decode") as spark,
        report_spark_tasks(spark, reporter.progress),
    ):
        rows = rows_of(_frame(spark, args, decoding))
    for row in rows:
        sys.stdout.write(_line(row, as_json=args.json) + "\n")
    return 0


def _columns(decoder: ValueDecoder, *, as_json: bool) -> Iterator[str]:
    for field in decoder.kind:
        name, kind = field.name, str(field.type)
        yield (json.dumps({"column": name, "type": kind}) if as_json else f"{name} {kind}") + "\n"


def _frame(spark: SparkSession, args: argparse.Namespace, decoding: Decoding) -> DataFrame:
    from pyspark.errors import AnalysisException

    from odradek.pipeline.data_source import NAME, register
    from odradek.pipeline.errors import BadOption
    from odradek.pipeline.jobs.decode import DECODED, decoded

    # Analyze the frame once, so that its filter can be pushed down to the source (docs/pipeline.md).
    source = {"pushFilters": "true", **source_of(args), "subscribe": args.topic}
    register(spark)
    frame = spark.read.format(NAME).options(**source).load()
    frame = decoded(frame, decoding, fail=args.fail)
    frame = frame.withColumn("value", frame[DECODED]).drop(DECODED)
    if args.where is not None:
        try:
            frame = frame.where(args.where)
        except AnalysisException as error:  # also raised for text that is not valid SQL
            raise BadOption(f"--where {args.where}: {(error.getMessage() or '').strip()}") from None
    return frame.limit(args.limit)


def _line(row: dict[str, Any], *, as_json: bool) -> str:
    from odradek.pipeline.cli.row_format import short_time
    from odradek.pipeline.jobs.decode import ERROR

    if as_json:
        return json.dumps(row, ensure_ascii=False)
    at = short_time(row["timestamp"], "seconds")
    where = f"{row['topic']}-{row['partition']} {row['offset']} {at}"
    if row[ERROR] is not None:
        return f"{where}  NOT DECODED: {row[ERROR]}"
    return f"{where}  {json.dumps(row['value'], ensure_ascii=False)}"
