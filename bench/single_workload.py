"""Runs one workload against one peer a few times, for work on the hot path.

    python -m odradek.bench.single_workload produce-1k-p1
    python -m odradek.bench.single_workload consume-1k-p6 --peer kafka --runs 5
    python -m odradek.bench.single_workload --list

It prints the broker's process id, so that a profiler can be attached (`py-spy record -p PID`,
`perf record -g -p PID`). Peers do not alternate and no sample is discarded: for comparisons, use `odradek bench run`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from odradek.bench import machine
from odradek.bench.cli.main import gib
from odradek.bench.machine import warm_memory
from odradek.bench.model import (
    ClusterPeer,
    DisklessPeer,
    Peer,
    PeerFailed,
    PeerUnavailable,
    Stage,
    Target,
    TieredPeer,
    Workload,
    WorkloadFailed,
    reason_to_skip,
)
from odradek.bench.peers import PEERS
from odradek.bench.workloads import WORKLOADS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m odradek.bench.single_workload", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("workload", nargs="?")
    parser.add_argument("--peer", default="odradek", choices=PEERS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where the data goes (default: a new one)")
    parser.add_argument(
        "--warm-memory",
        type=gib,
        default=gib("4"),
        metavar="GIB",
        help="touched before (default: 4)",
    )
    parser.add_argument("--list", action="store_true", help="the workloads' names")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the peer is not left behind
    if args.directory is not None:
        args.directory = args.directory.resolve()  # the peer has a working directory of its own
    workloads = {workload.name: workload for workload in WORKLOADS}
    if args.list:
        print(*(f"{name:32} {workload.title}" for name, workload in workloads.items()), sep="\n")
        return 0
    if args.workload not in workloads:
        parser.error("which workload? --list shows them")
    try:
        return _run(workloads[args.workload], args)
    except (PeerUnavailable, PeerFailed, WorkloadFailed) as failure:
        print(f"{args.peer}: {failure}", file=sys.stderr)
        return 1


def _run(workload: Workload, args: argparse.Namespace) -> int:
    peer = PEERS[args.peer]
    if (reason := reason_to_skip(workload, peer)) is not None:
        raise PeerUnavailable(reason)
    peer.obtain()
    print(f"{workload.title}: {peer.title} {peer.version()}")
    several = workload.stage in (Stage.CLUSTER, Stage.TIERED, Stage.DISKLESS)
    started = partial(_cluster_started, workload.stage) if several else _started
    fresh = several or workload.stage is Stage.FRESH
    with ExitStack() as stack:
        stack.enter_context(warm_memory(args.warm_memory))
        target = None if fresh else stack.enter_context(_started(peer, args.directory))
        for _ in range(args.runs):
            machine.settle()
            if target is not None:
                _measure(workload, target)
            else:
                with started(peer, args.directory) as alone:
                    _measure(workload, alone)
    return 0


@contextmanager
def _started(peer: Peer, parent: Path | None) -> Iterator[Target]:
    with (
        tempfile.TemporaryDirectory(dir=parent, prefix="odradek-bench-") as directory,
        peer.start(Path(directory)) as target,
    ):
        if target.process is not None:
            print(f"process {target.process.pid} at {target.bootstrap}", flush=True)
        yield target


@contextmanager
def _cluster_started(stage: Stage, peer: Peer, parent: Path | None) -> Iterator[Target]:
    with (
        tempfile.TemporaryDirectory(dir=parent, prefix="odradek-bench-") as directory,
        ExitStack() as stack,
    ):
        if stage is Stage.TIERED:
            assert isinstance(peer, TieredPeer), "reason_to_skip checked the kind of the peer"
            target = stack.enter_context(peer.start_tiered(Path(directory)))
        elif stage is Stage.DISKLESS:
            assert isinstance(peer, DisklessPeer), "reason_to_skip checked the kind of the peer"
            target = stack.enter_context(peer.start_diskless(Path(directory)))
        else:
            assert isinstance(peer, ClusterPeer), "reason_to_skip checked the kind of the peer"
            target = stack.enter_context(peer.start_cluster(Path(directory)))
        print(f"cluster at {target.bootstrap}", flush=True)
        yield target


def _measure(workload: Workload, target: Target) -> None:
    watch = machine.Watch()
    outcome = workload.run(target)
    usage = watch.stop()
    values = [
        f"{metric.name} {outcome.values[metric.name]:,.2f} {metric.unit}"
        for metric in workload.metrics
        if metric.name in outcome.values
    ]
    notes = [f"others used {usage.others_cores:.0%} of a core", *outcome.notes]
    print("   ".join(values), f"({'; '.join(notes)})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
