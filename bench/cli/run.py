"""`odradek bench run`: the exit code is 1 if a workload failed or a selected peer is not available."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from odradek.bench import machine
from odradek.bench.cli.arguments import UnknownChoice, choose_limits, choose_peers, choose_workloads
from odradek.bench.limits import LIMITS
from odradek.bench.load import LoadUnavailable, librdkafka_version
from odradek.bench.machine import ALL_FREE_BYTES, warm_memory
from odradek.bench.model import Limit, Peer, Workload
from odradek.bench.peers import PEERS
from odradek.bench.peers.running_broker import RunningBroker
from odradek.bench.progress import TerminalProgress
from odradek.bench.results_file import Results, WorkloadResults, check_writable, save
from odradek.bench.runner import Runner, RunPlan
from odradek.bench.summary import remarks
from odradek.bench.workloads import ROUNDS_MOST, WORKLOADS
from odradek.cli.errors import CommandFailed, WrongUsage
from odradek.cli.output import print_lines

INTERRUPTED = 130
ROUNDS = 5


def run(args: argparse.Namespace) -> int:
    peers = _peers(args)
    try:
        workloads = choose_workloads(WORKLOADS, args.workloads)
    except UnknownChoice as reason:
        raise WrongUsage(str(reason)) from None
    if (args.rounds is not None and args.rounds < 1) or args.warm_ups < 0 or args.repeats < 0:
        raise WrongUsage("--rounds must be at least 1, --warm-ups and --repeats at least 0")
    _check_outputs(args)

    found: list[Results] = []
    try:
        _measure(args, peers, workloads, found)
    except BaseException:  # keep the results so far after any error
        _keep(args, found)
        raise
    (results,) = found
    return _end(args, results)


def _measure(
    args: argparse.Namespace,
    peers: Sequence[Peer],
    workloads: Sequence[Workload],
    found: list[Results],
) -> None:
    """Run the plan. Appends the results to `found` before the first measurement."""
    with (
        tempfile.TemporaryDirectory(
            dir=None if args.directory is None else Path(args.directory).resolve(),
            prefix="odradek-bench-",
        ) as directory,
        _like_ctrl_c(signal.SIGTERM),
        _like_ctrl_c(signal.SIGHUP),
        warm_memory(_warm_bytes(args)),
    ):
        plan = RunPlan(
            peers,
            workloads,
            _limits(args, workloads),
            Path(directory),
            rounds=args.rounds or ROUNDS,
            rounds_most=ROUNDS_MOST if args.rounds is None else {},
            warm_ups=args.warm_ups,
            repeats_max=args.repeats,
        )
        results = _empty_results(plan)
        found.append(results)
        results.remarks += _left_out(WORKLOADS, workloads, "workloads")
        if args.bootstrap is None:
            results.remarks += _left_out(list(PEERS.values()), peers, "peers")
        progress = KeptProgress(args, sys.stdout, sys.stderr, plan.run_count())
        Runner(plan, results, progress, machine.Watch, settle=machine.settle).run()
        progress.clear()


class KeptProgress(TerminalProgress):
    """Also writes the results so far to `--out` after each workload, so that a SIGKILL loses at most one."""

    def __init__(self, args: argparse.Namespace, out: TextIO, err: TextIO, runs: int) -> None:
        super().__init__(out, err, runs)
        self._args = args

    def measured(self, workload: WorkloadResults, results: Results) -> None:
        if self._args.out is not None:
            with suppress(OSError):  # `_save` handles it at the end of the run
                save(results, Path(self._args.out))
        super().measured(workload, results)


def _keep(args: argparse.Namespace, found: Sequence[Results]) -> None:
    if args.out is not None:
        for results in found:
            _save(results, Path(args.out))


def _check_outputs(args: argparse.Namespace) -> None:
    """Check before the run that the results can be written."""
    if args.out is not None:
        try:
            check_writable(Path(args.out))
        except OSError as error:
            reason = error.strerror or error
            raise CommandFailed(f"cannot write {args.out}: {reason}") from None
    if args.directory is not None and not Path(args.directory).is_dir():
        raise CommandFailed(f"--directory {args.directory}: no such directory")


def _peers(args: argparse.Namespace) -> Sequence[Peer]:
    if args.bootstrap is not None:
        if args.peers is not None:
            raise WrongUsage(
                "--peers cannot be used with --bootstrap, which measures only the broker at that address"
            )
        if "," in args.bootstrap:
            raise WrongUsage("--bootstrap requires the address of a single broker")
        host, _, port = args.bootstrap.rpartition(":")
        if not host or not port.isdecimal():
            raise WrongUsage(f"--bootstrap requires HOST:PORT, not {args.bootstrap!r}")
        return [RunningBroker(args.bootstrap)]
    try:
        return choose_peers(PEERS, args.peers)
    except UnknownChoice as reason:
        raise WrongUsage(str(reason)) from None


def _warm_bytes(args: argparse.Namespace) -> int:
    """Return how much memory to warm: none if the broker was not started here."""
    if args.bootstrap is not None:
        return 0
    return ALL_FREE_BYTES if args.warm_memory is None else args.warm_memory


def _limits(args: argparse.Namespace, workloads: Sequence[Workload]) -> Sequence[Limit]:
    """Return the limits to measure: none for a broker that was not started here.

    It may run on another machine.
    """
    if args.bootstrap is not None:
        return []
    return LIMITS if args.workloads is None else choose_limits(LIMITS, workloads)


def _empty_results(plan: RunPlan) -> Results:
    results = Results(
        version=version("odradek"),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine.describe(),
        settings={
            "rounds": plan.rounds,
            "warm_ups": plan.warm_ups,
            "repeats_max": plan.repeats_max,
            "others_cores_max": plan.others_cores_max,
        },
    )
    try:
        results.settings = {**results.settings, "client": librdkafka_version()}
    except LoadUnavailable as reason:  # the workloads that need it fail later
        results.remarks.append(str(reason))
    return results


def _left_out(
    known: Sequence[Workload] | Sequence[Peer],
    chosen: Sequence[Workload] | Sequence[Peer],
    what: str,
) -> Iterator[str]:
    """Yield a remark with the default workloads or peers that were not selected."""
    names = {each.name for each in chosen}
    missing = [each.name for each in known if each.default and each.name not in names]
    if missing:
        yield f"{what} not selected: {', '.join(missing)}"


@contextmanager
def _like_ctrl_c(signum: int) -> Iterator[None]:
    """Handle a signal as Ctrl-C: processes are stopped, and the results are written."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signum, interrupt)
    try:
        yield
    finally:
        signal.signal(signum, before)


def _save(results: Results, path: Path) -> None:
    """Write the results. If that fails, write them to a temporary directory and raise CommandFailed."""
    try:
        save(results, path)
    except OSError as error:
        elsewhere = Path(tempfile.mkdtemp(prefix="odradek-bench-results-")) / path.name
        save(results, elsewhere)
        raise CommandFailed(
            f"cannot write {path} ({error.strerror or error}): the results are in {elsewhere}"
        ) from None


def _end(args: argparse.Namespace, results: Results) -> int:
    """Write the results, print the remarks, and return the exit code."""
    _keep(args, [results])
    print_lines(f"! {line}" for line in remarks(results))
    if results.interrupted:
        return INTERRUPTED
    is_explicit = args.peers is not None or args.bootstrap is not None
    gone = [each for each in results.peers if each.unavailable]
    missing = gone and (is_explicit or len(gone) == len(results.peers))
    failed = results.has_failures() or missing or not results.has_figures()
    return 1 if failed else 0
