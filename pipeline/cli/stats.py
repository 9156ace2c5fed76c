"""The `odradek pipeline stats` command: arguments and output."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from odradek.pipeline.cli.arguments import (
    add_source_arguments,
    add_spark_arguments,
    session_of,
    source_of,
)

if TYPE_CHECKING:
    from odradek.pipeline.jobs.retention import RetentionOutcome, RetentionRule

RULES = ("retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes")
SUMMARY = (
    "bytes, records, compression, keys and late records of topics; effect of other retention"
    " settings"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic", "-t", required=True, metavar="NAME,…", help="topics, separated by commas"
    )
    add_source_arguments(parser)
    parser.add_argument(
        "--by",
        default="partition",
        help="print one row per topic, partition or hour (default: partition)",
    )
    parser.add_argument(
        "--headers-only",
        action="store_true",
        help=(
            "read only batch headers, which takes much less time; keys, late records and the"
            " compression ratio are not computed"
        ),
    )
    parser.add_argument(
        "--top",
        type=int,
        default=5,
        metavar="N",
        help="number of the most frequent keys to print (default: 5)",
    )
    parser.add_argument(
        "--late-after",
        default="1h",
        metavar="DURATION",
        help=(
            "a record is late if an earlier block of 10,000 offsets of its partition has a timestamp"
            " that is later by more than this duration; units: ms, s, m, h, d (default: 1h)"
        ),
    )
    _add_retention_arguments(parser)
    add_spark_arguments(parser)


def _add_retention_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="retention.ms=7d,retention.bytes=10GiB",
        help=(
            "print, for each partition, what these settings would delete and keep (and no"
            " statistics); local.retention.ms and local.retention.bytes apply to the leaders' local"
            " logs (-1: no limit, -2: same as retention)"
        ),
    )
    parser.add_argument(
        "--price",
        type=float,
        metavar="P",
        help="price of a GiB per month, for the bytes that are kept",
    )


def run(args: argparse.Namespace) -> int:
    from odradek.pipeline.cli.progress_reporter import ProgressReporter
    from odradek.pipeline.cli.row_format import rows_of
    from odradek.pipeline.jobs.stats import StatsJob, stats
    from odradek.pipeline.options import duration_ms

    source = {**source_of(args), "subscribe": args.topic}
    rules = [parsed_rule(text) for text in args.what_if]
    _check_price(args.price, rules)
    if rules:
        return _what_if(args, source, rules)
    job = StatsJob(
        source,
        by=args.by,
        records=not args.headers_only,
        top_keys=args.top,
        late_after_ms=_parse_config("--late-after", args.late_after, duration_ms),
    )
    job.check()
    reporter = ProgressReporter("tasks", as_json=args.json)
    with reporter, session_of(args, "odradek-stats") as spark:
        rows = rows_of(stats(spark, job, reporter.progress))
    _print_rows(args.json, rows, lambda: as_text(rows))
    return 0


def _check_price(price: float | None, rules: Sequence[RetentionRule]) -> None:
    """Check that a price is valid and that a what-if rule is given. Raises BadOption."""
    from odradek.pipeline.errors import BadOption

    if price is not None and not rules:
        raise BadOption("--price requires --what-if")
    if price is not None and not 0 <= price < math.inf:
        raise BadOption(f"--price {price}: must be a price of a GiB per month")


def _what_if(
    args: argparse.Namespace, source: Mapping[str, str], rules: Sequence[RetentionRule]
) -> int:
    from odradek.pipeline.cli.progress_reporter import ProgressReporter
    from odradek.pipeline.jobs.job_progress import report_spark_tasks
    from odradek.pipeline.jobs.retention import retention
    from odradek.seams.clock import RealClock

    now_ms = RealClock().wall_ms()
    reporter = ProgressReporter("tasks", as_json=args.json)
    with (
        reporter,
        session_of(args, "odradek-stats") as spark,
        report_spark_tasks(spark, reporter.progress),
    ):
        outcomes = retention(spark, source, rules, now_ms)
    rows = [_outcome(each, args.price) for each in outcomes]
    _print_rows(args.json, rows, lambda: outcomes_as_text(outcomes, args.price))
    return 0


def _print_rows(
    as_json: bool, rows: Sequence[Mapping[str, Any]], lines: Callable[[], Iterator[str]]
) -> None:
    if as_json:
        sys.stdout.writelines(json.dumps(row) + "\n" for row in rows)
    else:
        sys.stdout.writelines(line + "\n" for line in lines())


# Statistics


def as_text(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    from odradek.cli.output import human_bytes, table_lines

    groups = [name for name in ("topic", "partition", "hour") if rows and name in rows[0]]
    has_keys = bool(rows) and "late" in rows[0]
    head = [*groups, "records", "batches", "bytes", "ratio", "codecs", "oldest", "newest"]
    head += ["keys", "top key", "late"] if has_keys else []
    table: list[list[object]] = []
    for row in rows:
        cells = [_minute(row[name]) if name == "hour" else row[name] for name in groups]
        cells += [
            row["records"],
            row["batches"],
            human_bytes(row["bytes"]),
            _ratio(row),
            _codecs(row),
        ]
        cells += [_minute(row["oldest"]), _minute(row["newest"])]
        table.append(cells + ([row["distinctKeys"], _top(row), row["late"]] if has_keys else []))
    yield from table_lines([name.upper() for name in head], table, thousands=True)


def _minute(time: str | None) -> str | None:
    from odradek.pipeline.cli.row_format import short_time

    return None if time is None else short_time(time, "minutes")


def _ratio(row: Mapping[str, Any]) -> float | None:
    whole, size = row["uncompressedBytes"], row["bytes"]
    return whole / size if whole and size else None


def _codecs(row: Mapping[str, Any]) -> str | None:
    codecs = row["codecs"] or {}
    total = sum(codecs.values())
    if not total:
        return None
    ordered = sorted(codecs.items(), key=lambda each: -each[1])
    return " ".join(f"{name} {100 * size / total:.0f}%" for name, size in ordered)


def _top(row: Mapping[str, Any]) -> str | None:
    if not row["topKeys"]:
        return None
    key, records = row["topKeys"][0]["key"], row["topKeys"][0]["records"]
    shown = key if key.isprintable() else f"0x{key.encode().hex()}"
    return f"{shown} {100 * records / row['records']:.0f}%" if row["records"] else shown


# What-if rules for retention


def parsed_rule(text: str) -> RetentionRule:
    """Parse a rule such as `retention.ms=7d,local.retention.bytes=10GiB`. Each of the four configs is optional.
    Raises BadOption.
    """
    from odradek.pipeline.errors import BadOption
    from odradek.pipeline.jobs.retention import RetentionRule
    from odradek.pipeline.options import duration_ms

    given: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        field = name.replace(".", "_")
        if name not in RULES:
            raise BadOption(f"--what-if {text}: the configs are {', '.join(RULES)}")
        if field in given:
            raise BadOption(f"--what-if {text}: {name} is given twice")
        parse = duration_ms if name.endswith(".ms") else _size
        is_special = value in ("-1", "-2")
        given[field] = int(value) if is_special else _parse_config(name, value, parse)
    rule = RetentionRule(**given)
    rule.check()
    return rule


def _parse_config(name: str, value: str, parse: Callable[[str], int]) -> int:
    from odradek.pipeline.errors import BadOption

    try:
        return parse(value)
    except ValueError as error:
        raise BadOption(f"{name}={value}: {error}") from None


def _size(text: str) -> int:
    from odradek.seams.units import UNITS

    number, factor = text, 1
    for power, unit in enumerate(UNITS):
        for name in (unit, unit.replace("iB", "B")):
            if text.endswith(name) and text != name:
                number, factor = text.removesuffix(name), 1024**power
    try:
        size = factor * (int(number) if number.isdecimal() else float(number))
    except ValueError:
        size = -1
    if not size >= 0:
        raise ValueError(f"must be a size in bytes, or with a unit ({', '.join(UNITS)})")
    if size >= 1 << 63:
        raise ValueError("is larger than any log can be")
    return int(size)


def _outcome(each: RetentionOutcome, price: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "topic": each.topic,
        "partition": each.partition,
        "retention.ms": each.rule.retention_ms,
        "retention.bytes": each.rule.retention_bytes,
        "segmentsDeleted": each.segments_deleted,
        "bytesDeleted": each.bytes_deleted,
        "offsetsDeleted": each.offsets_deleted,
        "bytesKept": each.bytes_kept,
        "startOffset": each.start_offset,
    }
    if each.rule.is_local:
        found |= {
            "local.retention.ms": each.rule.local_retention_ms,
            "local.retention.bytes": each.rule.local_retention_bytes,
            "localBytesDeleted": each.local_bytes_deleted,
            "localBytesKept": each.local_bytes_kept,
            "localStartOffset": each.local_start_offset,
        }
    return found if price is None else {**found, "cost": each.cost(price)}


def outcomes_as_text(outcomes: Sequence[RetentionOutcome], price: float | None) -> Iterator[str]:
    """Format one table for each rule, with totals."""
    from odradek.cli.output import human_bytes, table_lines

    for rule in dict.fromkeys(each.rule for each in outcomes):
        rule_outcomes = [each for each in outcomes if each.rule == rule]
        head = ["TOPIC", "PARTITION", "DELETES", "SEGMENTS", "OFFSETS", "KEEPS", "START OFFSET"]
        head += ["LOCAL DELETES", "LOCAL KEEPS", "LOCAL START"] if rule.is_local else []
        head += [] if price is None else ["PER MONTH"]
        rows: list[list[object]] = [
            [
                each.topic,
                each.partition,
                human_bytes(each.bytes_deleted),
                each.segments_deleted,
                each.offsets_deleted,
                human_bytes(each.bytes_kept),
                each.start_offset,
                *(_on_disk([each], each.local_start_offset) if rule.is_local else []),
                *([] if price is None else [each.cost(price)]),
            ]
            for each in rule_outcomes
        ]
        rows.append(
            [
                "all",
                None,
                human_bytes(sum(each.bytes_deleted for each in rule_outcomes)),
                sum(each.segments_deleted for each in rule_outcomes),
                sum(each.offsets_deleted for each in rule_outcomes),
                human_bytes(sum(each.bytes_kept for each in rule_outcomes)),
                None,
                *(_on_disk(rule_outcomes, None) if rule.is_local else []),
                *([] if price is None else [sum(each.cost(price) for each in rule_outcomes)]),
            ]
        )
        yield _rule_text(rule)
        yield from table_lines(head, rows, thousands=True)


def _on_disk(outcomes: Sequence[RetentionOutcome], start: int | None) -> list[object]:
    from odradek.cli.output import human_bytes

    known = [each for each in outcomes if each.local_bytes_kept is not None]
    deleted = sum(each.local_bytes_deleted or 0 for each in known)
    kept = sum(each.local_bytes_kept or 0 for each in known)
    return [human_bytes(deleted), human_bytes(kept), start] if known else [None, None, start]


def _rule_text(rule: RetentionRule) -> str:
    values = {name: getattr(rule, name.replace(".", "_")) for name in RULES}
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
