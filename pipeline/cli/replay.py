"""The `odradek pipeline replay` command: arguments and output."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from odradek.pipeline.cli.arguments import (
    add_source_arguments,
    add_spark_arguments,
    session_of,
    source_of,
)
from odradek.pipeline.errors import BadOption

if TYPE_CHECKING:
    from odradek.pipeline.jobs.replay import ReplayJob

SUMMARY = (
    "write a range of a topic to another topic; each record is written exactly once, also after"
    " restarts"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", "-t", required=True, help="topic to replay")
    add_source_arguments(parser)
    parser.add_argument(
        "--to", required=True, metavar="TOPIC", help="target topic, which must exist"
    )
    parser.add_argument(
        "--to-bootstrap",
        metavar="HOST:PORT",
        help="bootstrap servers of the target topic's cluster (default: --bootstrap)",
    )
    _add_range_arguments(parser)
    parser.add_argument(
        "--by",
        default="partition",
        help=(
            "partition: keep the partition of each record; key: choose the partition by key (default:"
            " partition)"
        ),
    )
    parser.add_argument(
        "--job",
        metavar="NAME",
        help="name of the job; with a new name, the range is replayed again",
    )
    _add_write_arguments(parser)
    parser.add_argument(
        "--isolation",
        default="read_committed",
        help="isolation level: read_uncommitted or read_committed (default: read_committed)",
    )
    add_spark_arguments(parser)


def _add_range_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        metavar="TIME",
        help=(
            "start at the first record with this timestamp or a later one; ISO 8601, or ms since"
            " 1970"
        ),
    )
    parser.add_argument(
        "--until",
        metavar="TIME",
        help="end before the first record with this timestamp or a later one",
    )
    parser.add_argument(
        "--offsets",
        action="append",
        default=[],
        metavar="P:FROM:TO",
        help="only the offsets FROM <= offset < TO of partition P; may be repeated",
    )


def _add_write_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--records-per-second",
        type=float,
        metavar="N",
        help="maximum number of records per second of all tasks together",
    )
    parser.add_argument(
        "--bytes-per-second",
        type=float,
        metavar="N",
        help="maximum number of bytes per second of all tasks together, before compression",
    )
    parser.add_argument(
        "--compression", default="lz4", help="compression of the written batches (default: lz4)"
    )


def run(args: argparse.Namespace) -> int:
    from odradek.pipeline.cli.progress_reporter import ProgressReporter
    from odradek.pipeline.jobs.replay import replay

    job, reporter = job_of(args), ProgressReporter("offsets", as_json=args.json)
    job.check()
    with reporter, session_of(args, "odradek-replay") as spark:
        result = replay(spark, job, reporter.progress)
    for each in result.partitions:
        reporter.row(
            {
                "partition": each.partition,
                "records": each.records,
                "bytes": each.size_bytes,
                "transactions": each.transactions,
            }
        )
    reporter.row({"job": result.job, "records": result.records, "bytes": result.size_bytes})
    size = result.size_bytes / 1e6
    reporter.result(
        f"{result.records} records ({size:.1f} MB) written to {args.to}; job {result.job} is"
        " complete"
    )
    return 0


def job_of(args: argparse.Namespace) -> ReplayJob:
    from odradek.pipeline.jobs.replay import ReplayJob

    to = args.to_bootstrap or args.bootstrap
    if to is None:
        raise BadOption("give the brokers of the target topic with --to-bootstrap or --bootstrap")
    return ReplayJob(
        source={"kafka.isolation.level": args.isolation, **source_of(args), **_range(args)},
        topic=args.to,
        bootstrap=to,
        name=args.job,
        by=args.by,
        compression=args.compression,
        records_per_s=args.records_per_second,
        bytes_per_s=args.bytes_per_second,
    )


def _range(args: argparse.Namespace) -> dict[str, str]:
    """Return the source options for the range of offsets or times to replay. Raises BadOption."""
    if not args.offsets:
        times = {
            name: parse_time_ms(text)
            for name, text in (("startingTimestamp", args.since), ("endingTimestamp", args.until))
            if text is not None
        }
        if len(times) == 2 and times["startingTimestamp"] > times["endingTimestamp"]:
            raise BadOption(f"--since {args.since} is later than --until {args.until}")
        return {"subscribe": args.topic, **{name: str(at_ms) for name, at_ms in times.items()}}
    if args.since is not None or args.until is not None:
        raise BadOption("--since and --until cannot be used with --offsets")
    ranges = parse_ranges(args.offsets)
    return {
        "assign": json.dumps({args.topic: sorted(ranges)}),
        "startingOffsets": json.dumps({args.topic: {p: each[0] for p, each in ranges.items()}}),
        "endingOffsets": json.dumps({args.topic: {p: each[1] for p, each in ranges.items()}}),
    }


def parse_time_ms(text: str) -> int:
    """Parse a time: a number of ms since 1970, or ISO 8601, in UTC if it has no zone. Raises BadOption."""
    if text.isdecimal():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"{text} is not a time, such as 2013-02-08T06:00 or 1360303200000"
        ) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_ranges(texts: Sequence[str]) -> dict[int, tuple[int, int]]:
    """Parse P:FROM:TO into offset ranges by partition. Raises BadOption."""
    found = {}
    for text in texts:
        parts = text.split(":")
        if len(parts) != 3 or not all(part.isdecimal() for part in parts):
            raise BadOption(f"{text} is not P:FROM:TO, such as 0:1000:2000")
        partition, low, high = map(int, parts)
        if low > high or partition in found:
            raise BadOption(f"{text}: give one range per partition, with FROM less than TO")
        found[partition] = low, high
    return found
