"""`python -m odradek.testing.simulation`: runs seeds, or replays a saved plan."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from odradek.testing.simulation.parallel_runs import HASH_SEED, run_many
from odradek.testing.simulation.plan import NODES
from odradek.testing.simulation.summary import MismatchedRun, Summary, load_progress, save_progress

REPORT_EVERY_RUNS = 100
"""Runs between two progress reports."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m odradek.testing.simulation",
        description="Simulate clusters with faults. Exit code 1: an anomaly was found.",
    )
    parser.add_argument(
        "--seeds", type=_seeds, default="0-99", metavar="N|FIRST-LAST", help="default: 0-99"
    )
    parser.add_argument(
        "--nodes", type=_nodes, default=NODES, help=f"1, or {NODES} and more; default: {NODES}"
    )
    parser.add_argument("--tiered", action="store_true", help="with an object store (KIP-405)")
    parser.add_argument(
        "--disable-tiering",
        action="store_true",
        help="with an object store, and tiered storage is disabled and enabled again (KIP-950)",
    )
    parser.add_argument(
        "--diskless",
        action="store_true",
        help="the topic is diskless, and its records are in an object store (KIP-1164)",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument(
        "--keep", type=Path, default=Path("simulation-failures"), help="directory for failing plans"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="progress file: continue the run that it describes, if the code is unchanged",
    )
    parser.add_argument("--replay", type=Path, help="run a saved plan, and print its trace")
    args = parser.parse_args()
    if args.replay is not None:
        return _replay(args.replay)
    return _run(args.seeds, args)


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
        raise argparse.ArgumentTypeError(f"not a seed or a range of seeds: {text!r}")
    return range(int(first), int(last or first) + 1)


def _nodes(text: str) -> int:
    """Parse the number of nodes: topics of more than one node have three replicas."""
    if not text.isdecimal() or (int(text) != 1 and int(text) < NODES):
        raise argparse.ArgumentTypeError(f"1, or {NODES} and more, not {text!r}")
    return int(text)


def _run(seeds: range, args: argparse.Namespace) -> int:
    world = {
        "tiered": args.tiered,
        "disables_tiering": args.disable_tiering,
        "diskless": args.diskless,
    }
    run = {"seeds": [seeds[0], seeds[-1]], "nodes": args.nodes, **world}
    summary = Summary()
    if args.resume is not None:
        try:
            summary = load_progress(args.resume, **run)
        except MismatchedRun as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    many = run_many(
        seeds[summary.runs :], nodes=args.nodes, jobs=args.jobs, keep=args.keep, **world
    )
    began, before_s = time.perf_counter(), summary.seconds
    is_stopped = False
    try:
        for row in many:
            summary.add(row)
            summary.seconds = before_s + time.perf_counter() - began
            for anomaly in row["anomalies"]:
                print(f"seed {row['seed']}: {anomaly}", flush=True)
            if summary.runs % REPORT_EVERY_RUNS == 0 and summary.runs < len(seeds):
                print(summary.figures(), flush=True)
                if args.resume is not None:
                    save_progress(args.resume, summary, **run)
    except KeyboardInterrupt:
        is_stopped = True
    if args.resume is not None:
        save_progress(args.resume, summary, **run)
    print(summary.table())
    print(summary.more_figures())
    print(summary.figures())
    if is_stopped:
        print(f"stopped: {len(seeds) - summary.runs} of {len(seeds)} seeds are left")
    if summary.failed:
        print(f"saved in {args.keep}: seeds {summary.failed}")
    return 1 if summary.failed else 130 if is_stopped else 0


def _replay(path: Path) -> int:
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
        arguments = [sys.executable, "-m", "odradek.testing.simulation", "--replay", str(path)]
        os.execve(sys.executable, arguments, environment)
    from odradek.testing.simulation.run import simulate  # slow: imports the broker
    from odradek.testing.simulation.worker import load

    try:
        plan = load(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path} is not a plan: {error!r}")
    run = simulate(plan)
    print(*run.trace, *run.anomalies, sep="\n")
    return 0 if run.is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
