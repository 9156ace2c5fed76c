"""The `odradek pipeline export` command. It imports Spark when it runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from odradek.pipeline.cli.arguments import (
    add_source_arguments,
    add_spark_arguments,
    session_of,
    source_of,
)
from odradek.pipeline.cli.decode import add_registry_arguments, decoding_of
from odradek.pipeline.cli.progress_reporter import ProgressReporter

if TYPE_CHECKING:
    from odradek.pipeline.jobs.export import ExportBatch, ExportJob

SUMMARY = (
    "export a topic to Parquet or Delta; each record is written exactly once, also after restarts"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--topic", "-t", required=True, help="topic to export")
    add("--out", required=True, metavar="DIR|URL", help="directory or URL of the table")
    add("--format", default="parquet", help="table format: parquet or delta (default: parquet)")
    add_source_arguments(parser, bootstrap_required=True)
    add(
        "--by",
        default="date",
        help="partition columns of the table after the topic: none, date or hour (default: date)",
    )
    add(
        "--value",
        default="binary",
        help="value format: binary, string, json or registry (default: binary)",
    )
    add("--schema", metavar="DDL", help="columns of JSON values")
    add_registry_arguments(parser)
    add("--headers", action="store_true", help="add a column headers with the record headers")
    add(
        "--isolation",
        default="read_uncommitted",
        help="isolation level: read_uncommitted or read_committed (default: read_uncommitted)",
    )
    add(
        "--unreadable",
        default="fail",
        metavar="WHAT",
        help=(
            "what to do with offsets that are corrupt or missing in the object store: fail, or"
            " dead-letters (default: fail)"
        ),
    )
    add(
        "--checkpoint",
        metavar="DIR|URL",
        help="location of the checkpoint (default: OUT/_checkpoint)",
    )
    add(
        "--dead-letters",
        metavar="DIR|URL",
        help="location of the dead letters (default: OUT/_dead_letters)",
    )
    add("--offsets-a-batch", type=int, metavar="N", help="maximum number of offsets per batch")
    add_spark_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from odradek.pipeline.jobs.export import export

    job = _job(args)
    job.check()
    reporter = ProgressReporter("offsets", as_json=args.json)
    with reporter, session_of(args, "odradek-export") as spark:
        batches = export(
            spark, job, lambda batch: _report_batch(reporter, batch), reporter.progress
        )
    records = sum(batch.records for batch in batches)
    dead = sum(batch.dead_letters for batch in batches)
    gaps = sum(batch.gaps for batch in batches)
    reporter.row({"records": records, "deadLetters": dead, "gaps": gaps, "batches": len(batches)})
    lost = f" and {gaps} ranges of unreadable offsets" if gaps else ""
    to = f" to {job.dead_letters_path}" if dead or gaps else ""
    reporter.result(f"{records} records to {job.out}, {dead} dead letters{lost}{to}")
    return 0


def _job(args: argparse.Namespace) -> ExportJob:
    from odradek.pipeline.jobs.export import OFFSETS_A_BATCH, ExportJob
    from odradek.pipeline.jobs.export_values import ExportValues

    source = {
        "subscribe": args.topic,
        "kafka.isolation.level": args.isolation,
        "includeHeaders": str(args.headers).lower(),
        **source_of(args),
    }
    return ExportJob(
        source=source,
        out=args.out,
        format=args.format,
        by=args.by,
        values=ExportValues(
            args.value, args.schema, None if args.registry is None else decoding_of(args)
        ),
        offsets_a_batch=OFFSETS_A_BATCH if args.offsets_a_batch is None else args.offsets_a_batch,
        unreadable=args.unreadable,
        checkpoint=args.checkpoint,
        dead_letters=args.dead_letters,
    )


def _report_batch(reporter: ProgressReporter, batch: ExportBatch) -> None:
    reporter.row(
        {
            "batch": batch.number,
            "records": batch.records,
            "deadLetters": batch.dead_letters,
            "gaps": batch.gaps,
            "offsets": batch.offsets,
        }
    )
    also = f", {batch.dead_letters} dead letters" if batch.dead_letters else ""
    lost = f", {batch.gaps} unreadable ranges" if batch.gaps else ""
    reporter.line(f"batch {batch.number}: {batch.records} records{also}{lost}")
