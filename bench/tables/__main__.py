"""Topics as Spark tables, compared with Spark's Kafka connector.

    python -m odradek.bench.tables DIRECTORY [--gb 10] [--rounds 3] [--out RESULTS.json]

DIRECTORY keeps the brokers' data: the next run over as much finds them there. It takes three times what the
topics take (two brokers and a store), and what an export writes: 3 GB of disk for a GB of --gb. Before each run memory
is warm, and what is to be read is in the page cache: 10 GB want some 12 GiB of memory. With --out the
results are a file that `odradek bench report RESULTS.json --with FILE --markdown docs/performance.md` puts on the
page. The exit code is 1 where something failed or found something else than there is.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from odradek.bench import machine
from odradek.bench.cli.arguments import UnknownChoice, choose_peers, choose_workloads
from odradek.bench.cli.main import gib
from odradek.bench.machine import ALL_FREE_BYTES, warm_memory
from odradek.bench.model import PeerFailed, PeerUnavailable, Workload, WorkloadFailed
from odradek.bench.progress import TerminalProgress
from odradek.bench.results_file import Results, check_writable, save
from odradek.bench.runner import Runner, RunPlan
from odradek.bench.summary import remarks
from odradek.bench.tables.brokers import running_brokers, segment_bytes
from odradek.bench.tables.records import (
    BATCH_BYTES,
    DAYS,
    ORDERS,
    PARTITIONS,
    SMALL,
    WARM_UP,
    TopicContent,
    content,
)
from odradek.bench.tables.sources import readers
from odradek.bench.tables.workloads import WORKLOADS

SMALL_SHARE = 0.4
"""The ratio of bytes in 100-byte records to bytes in JSON records."""
WARM_UP_BYTES = 20_000_000
WARM_UP_S = 30.0


def contents(gb: float) -> list[TopicContent]:
    """Return the topics for the given GB of JSON."""
    return [
        content(ORDERS, int(gb * 1e9)),
        content(SMALL, int(gb * 1e9 * SMALL_SHARE)),
        content(WARM_UP, WARM_UP_BYTES),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurement; returns the exit code."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the brokers and applications
    try:
        workloads = choose_workloads(WORKLOADS, chosen.workloads)
    except UnknownChoice as unknown:
        parser.error(str(unknown))
    if chosen.out is not None:
        check_writable(chosen.out)
    chosen.directory.mkdir(parents=True, exist_ok=True)
    try:
        results = _measure(chosen, workloads)
    except UnknownChoice as unknown:
        parser.error(str(unknown))
    except (PeerUnavailable, PeerFailed, WorkloadFailed) as failure:
        print(failure, file=sys.stderr)
        return 1
    for line in remarks(results):
        print(f"! {line}")
    if chosen.out is not None:
        save(results, chosen.out)
    return 1 if results.has_failures() or results.interrupted else 0


def _measure(chosen: argparse.Namespace, workloads: Sequence[Workload]) -> Results:
    """Start the brokers and run the plan. Raises UnknownChoice, PeerUnavailable, PeerFailed and WorkloadFailed."""
    made = contents(chosen.gb)
    with (
        warm_memory(chosen.warm_memory),
        running_brokers(chosen.directory.resolve(), made) as brokers,
        tempfile.TemporaryDirectory(dir=chosen.directory, prefix="run-") as directory,
    ):
        peers = {each.name: each for each in readers(brokers)}
        plan = RunPlan(
            choose_peers(peers, chosen.readers),
            workloads,
            [],
            Path(directory).resolve(),
            rounds=chosen.rounds,
            warm_up_s=chosen.warm_up,
            repeats_max=chosen.repeats,
        )
        results = _empty_results(plan, made)
        progress = TerminalProgress(sys.stdout, sys.stderr, plan.run_count())
        Runner(plan, results, progress, machine.Watch, settle=machine.settle).run()
        progress.clear()
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m odradek.bench.tables", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("directory", type=Path, help="where the brokers' data are kept")
    parser.add_argument("--gb", type=float, default=10, help="of JSON records (10)")
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="runs of each, in turns, after those that are not counted (3)",
    )
    parser.add_argument(
        "--warm-up",
        type=float,
        default=WARM_UP_S,
        metavar="SECONDS",
        help=f"of runs of each that are not counted, one at least ({WARM_UP_S:.0f})",
    )
    parser.add_argument(
        "--repeats", type=int, default=1, help="of a run that others disturbed, at most (1)"
    )
    parser.add_argument(
        "--warm-memory",
        type=gib,
        default=ALL_FREE_BYTES,
        metavar="GIB",
        help="touched before (all but one)",
    )
    parser.add_argument("--workloads", nargs="+", metavar="PATTERN", help="of these names alone")
    parser.add_argument("--readers", nargs="+", metavar="NAME", help="these alone")
    parser.add_argument("--out", type=Path, metavar="FILE", help="results as JSON")
    return parser


def _empty_results(plan: RunPlan, made: Sequence[TopicContent]) -> Results:
    settings: dict[str, str | int | float | bool] = {
        "rounds": plan.rounds,
        "warm_up_s": plan.warm_up_s,
        "partitions": PARTITIONS,
        "batch_bytes": BATCH_BYTES,
        "days": DAYS,
        "others_cores_max": plan.others_cores_max,
    }
    for each in made[:-1]:
        name = each.topic.name
        settings[f"{name}_gb"] = round(each.record_bytes / 1e9, 2)
        settings[f"{name}_records"] = each.records
        settings[f"{name}_segment_mib"] = round(segment_bytes(each) / 2**20)
    return Results(
        version=version("odradek"),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine.describe(),
        settings=settings,
    )


if __name__ == "__main__":
    machine.adopt_orphans()  # an application's JVM ends after its driver
    sys.exit(main())
