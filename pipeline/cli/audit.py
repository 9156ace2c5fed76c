"""The `odradek pipeline audit` command: arguments and output."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from odradek.pipeline.cli.arguments import add_spark_arguments, named_values, session_of
from odradek.pipeline.errors import BadOption

if TYPE_CHECKING:
    from odradek.pipeline.jobs.audit import AuditReport, DeletedPartition
    from odradek.storage.tiered.audit import AuditFinding

SUMMARY = (
    "check every remote log segment against its metadata: sizes, CRCs, offsets, epochs, gaps,"
    " orphans"
)
FAILED = 1
_HEAD = ("TOPIC", "PARTITION", "SEGMENTS", "BYTES", "RECORDS", "OFFSETS", "GAPS", "DEAD", "TWICE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_store_arguments(parser)
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        help=(
            "bootstrap servers of the cluster with the metadata of the segments (default: use the"
            " manifests in the object store as metadata)"
        ),
    )
    parser.add_argument(
        "--topic",
        "-t",
        action="append",
        default=[],
        dest="topics",
        help="check only this topic; may be repeated",
    )
    parser.add_argument(
        "--older-than",
        type=float,
        metavar="SECONDS",
        help=(
            "report objects that belong to no segment as orphans if they are at least this old; a younger"
            " object may belong to a copy in progress (default: 3600, or 86400 without --bootstrap)"
        ),
    )
    parser.add_argument(
        "--resume",
        metavar="FILE",
        help=(
            "file for intermediate results; run an interrupted audit again with the same file to"
            " continue it. A complete audit removes the file"
        ),
    )
    add_spark_arguments(parser)


def _add_store_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tiered",
        required=True,
        metavar="DIR|URL",
        help="object store of the remote tier: a directory or a URL",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=(
            "option of the object store: prefix, aws_region, encryption.key.file, …; may be"
            " repeated"
        ),
    )


def run(args: argparse.Namespace) -> int:
    from odradek.pipeline.cli.progress_reporter import ProgressReporter
    from odradek.pipeline.jobs.audit import AuditJob, audit

    job = AuditJob(
        tiered_url=args.tiered,
        bootstrap=args.bootstrap,
        store_options=named_values("--option", args.option),
        topics=args.topics,
        young_ms=None if args.older_than is None else _ms(args.older_than),
        resume=args.resume,
    )
    reporter = ProgressReporter("segments", as_json=args.json)
    with reporter, session_of(args, "odradek-audit") as spark:
        report = audit(spark, job, reporter.progress)
    reporter.row(as_json(report))
    for line in as_text(report):
        reporter.result(line)
    return 0 if report.has_no_problems else FAILED


def _ms(seconds: float) -> int:
    if not 0 <= seconds < math.inf:
        raise BadOption(f"--older-than {seconds}: must be a number of seconds")
    return round(seconds * 1000)


def as_json(report: AuditReport) -> dict[str, Any]:
    from odradek.protocol.uuids import uuid_to_text

    return {
        "ok": report.has_no_problems,
        "bytesRead": report.size_bytes,
        "partitions": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "segments": each.segments,
                "records": report.records.get(each.partition, 0),
                "offsets": each.offsets,
                "gaps": each.gaps,
                "dead": each.dead,
                "overlapping": each.overlapping,
                "problems": each.problems,
            }
            for each in report.partitions
        ],
        "deleted": [
            {
                "topic": each.partition.topic,
                "topicId": uuid_to_text(each.partition.topic_id),
                "partition": each.partition.partition,
                "segments": each.segments,
                "isMarked": each.is_marked,
            }
            for each in report.deleted
        ],
        "problems": report.problems,
        "findings": [
            {"status": each.status.value, "what": _name(each), "lacks": _lacks(each)}
            for each in report.findings
        ],
    }


def as_text(report: AuditReport) -> Iterator[str]:
    from odradek.cli.output import table_lines

    yield from table_lines(_HEAD, _rows(report), thousands=True)
    for each in report.partitions:
        where = f"{each.partition.topic}-{each.partition.partition}"
        for low, high in each.gaps:
            yield f"GAP: the store has no segment with offsets {low} to {high - 1} of {where}"
        for name in each.dead:
            yield f"DEAD: no offset of {name} is read"
        yield from (f"WRONG: {text}" for text in each.problems)
    yield from (f"WRONG: {text}" for text in report.problems)
    yield from (f"deleted: {_deleted_text(each)}" for each in report.deleted)
    for finding in report.findings:
        word = finding.status.value
        is_bad = finding.status.is_loss or finding.status.is_garbage
        lacks = ", ".join(_lacks(finding))
        yield (
            f"{word.upper() if is_bad else word}: {_name(finding)}{lacks and f', missing: {lacks}'}"
        )
    yield "no problems found" if report.has_no_problems else "problems found"


def _deleted_text(deleted: DeletedPartition) -> str:
    from odradek.protocol.uuids import uuid_to_text

    partition, count = deleted.partition, deleted.segments
    text = f"{partition.topic}-{partition.partition} of topic {uuid_to_text(partition.topic_id)}:"
    if deleted.is_marked:
        return f"{text} the cluster is deleting it; {count} of its segments remain"
    now = deleted.followed_by
    why = (
        "the cluster has no such topic"
        if now is None
        else f"the topic with this name now has id {uuid_to_text(now)}"
    )
    return (
        f"{text} {why}; {count} segments are to be deleted. They are orphans if the cluster does"
        " not delete them"
    )


def _rows(report: AuditReport) -> Iterator[Sequence[str]]:
    for each in report.partitions:
        tally = report.usages.get(each.partition)
        yield (
            each.partition.topic,
            str(each.partition.partition),
            str(each.segments),
            str(tally.log_bytes if tally else 0),
            str(report.records.get(each.partition, 0)),
            f"{each.offsets[0]}..{each.offsets[1] - 1}" if each.offsets else "-",
            str(len(each.gaps)),
            str(len(each.dead)),
            str(each.overlapping),
        )


def _name(finding: AuditFinding) -> str:
    from odradek.storage.tiered.object_names import segment_key

    if finding.stray is not None:
        return finding.stray.key
    if finding.metadata is not None:
        return segment_key(finding.metadata, "")
    assert finding.stored is not None
    suffix, found = next(iter(finding.stored.objects.items()))
    return found.key.removesuffix(suffix)


def _lacks(finding: AuditFinding) -> list[str]:
    """Return the suffixes of the missing objects of a segment that has only some of its objects."""
    if not finding.status.is_loss or finding.stored is None:
        return []
    return finding.stored.missing(finding.metadata)
