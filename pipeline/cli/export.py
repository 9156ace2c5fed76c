"""`odradek pipeline export`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from odradek.pipeline.jobs.export import OFFSETS_A_BATCH, ExportBatch, ExportJob, export
from odradek.pipeline.session import open_session

if TYPE_CHECKING:
    from collections.abc import Callable


def run(args: argparse.Namespace) -> int:
    source = {
        "kafka.bootstrap.servers": args.bootstrap,
        "subscribe": args.topic,
        "kafka.isolation.level": args.isolation,
    }
    if args.tiered is not None:
        source["tiered.url"] = args.tiered
    job = ExportJob(
        source=source,
        out=args.out,
        by=args.by,
        value=args.value,
        schema=args.schema,
        offsets_a_batch=args.offsets_a_batch or OFFSETS_A_BATCH,
    )
    with open_session("odradek-export", args.master) as spark:
        batches = export(spark, job, _told(args.json))
    records = sum(batch.records for batch in batches)
    dead = sum(batch.dead_letters for batch in batches)
    if not args.json:
        sys.stdout.write(f"{records} records and {dead} dead letters to {args.out}\n")
    return 0


def _told(as_json: bool) -> Callable[[ExportBatch], None]:
    def tell(batch: ExportBatch) -> None:
        if as_json:
            row = {
                "batch": batch.number,
                "records": batch.records,
                "deadLetters": batch.dead_letters,
            }
            sys.stdout.write(json.dumps(row) + "\n")
        else:
            sys.stderr.write(f"batch {batch.number}: {batch.records} records\n")
        sys.stdout.flush()

    return tell
