"""`odradek bench run`: exit code 1 where a workload failed or a peer that was asked for is missing."""

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
from odradek.bench.cli.arguments import NotKnown, choose_limits, choose_peers, choose_workloads
from odradek.bench.limits import LIMITS
from odradek.bench.load import LoadUnavailable, librdkafka_version
from odradek.bench.machine import ALL_FREE_BYTES, warm_memory
from odradek.bench.model import Limit, Peer, Workload
from odradek.bench.peers import PEERS
from odradek.bench.peers.given import GivenAddress
from odradek.bench.progress import TerminalProgress
from odradek.bench.results_file import Results, WorkloadResults, check_writable, save
from odradek.bench.runner import Plan, Runner
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
    except NotKnown as reason:
        raise WrongUsage(str(reason)) from None
    if (args.rounds is not None and args.rounds < 1) or args.warm_ups < 0 or args.repeats < 0:
        raise WrongUsage("--rounds is 1 or more, --warm-ups and --repeats 0 or more")
    _check_outputs(args)

    found: list[Results] = []
    try:
        _measure(args, peers, workloads, found)
    except BaseException:  # whatever it was: what was measured is not lost by it
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
    """Puts the results into `found` before there is anything in them."""
    with (
        tempfile.TemporaryDirectory(
            dir=None if args.directory is None else Path(args.directory).resolve(),
            prefix="odradek-bench-",
        ) as directory,
        _like_ctrl_c(signal.SIGTERM),
        _like_ctrl_c(signal.SIGHUP),
        warm_memory(_warm_bytes(args)),
    ):
        plan = Plan(
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
    """With what is measured so far in the file that is asked for: whoever kills us loses one workload."""

    def __init__(self, args: argparse.Namespace, out: TextIO, err: TextIO, runs: int) -> None:
        super().__init__(out, err, runs)
        self._args = args

    def measured(self, workload: WorkloadResults, results: Results) -> None:
        if self._args.out is not None:
            with suppress(OSError):  # it is said in the end, and they are put elsewhere
                save(results, Path(self._args.out))
        super().measured(workload, results)


def _keep(args: argparse.Namespace, found: Sequence[Results]) -> None:
    if args.out is not None:
        for results in found:
            _save(results, Path(args.out))


def _check_outputs(args: argparse.Namespace) -> None:
    """What stands in the way of the results is said now, not in an hour."""
    if args.out is not None:
        try:
            check_writable(Path(args.out))
        except OSError as error:
            reason = error.strerror or error
            raise CommandFailed(f"cannot write {args.out}: {reason}") from None
    if args.directory is not None and not Path(args.directory).is_dir():
        raise CommandFailed(f"--directory {args.directory}: there is no such directory")


def _peers(args: argparse.Namespace) -> Sequence[Peer]:
    if args.bootstrap is not None:
        if args.peers is not None:
            raise WrongUsage("--bootstrap measures what runs there: no --peers beside it")
        if "," in args.bootstrap:
            raise WrongUsage(
                "--bootstrap takes one broker: the bench asks no others of its cluster"
            )
        host, _, port = args.bootstrap.rpartition(":")
        if not host or not port.isdecimal():
            raise WrongUsage(f"--bootstrap takes HOST:PORT, not {args.bootstrap!r}")
        return [GivenAddress(args.bootstrap)]
    try:
        return choose_peers(PEERS, args.peers)
    except NotKnown as reason:
        raise WrongUsage(str(reason)) from None


def _warm_bytes(args: argparse.Namespace) -> int:
    """Memory matters only to what we start ourselves."""
    if args.bootstrap is not None:
        return 0
    return ALL_FREE_BYTES if args.warm_memory is None else args.warm_memory


def _limits(args: argparse.Namespace, workloads: Sequence[Workload]) -> Sequence[Limit]:
    """A broker that we did not start may be on another machine: this one's limits say nothing."""
    if args.bootstrap is not None:
        return []
    return LIMITS if args.workloads is None else choose_limits(LIMITS, workloads)


def _empty_results(plan: Plan) -> Results:
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
    except LoadUnavailable as reason:  # the workloads that need it will fail, by name
        results.remarks.append(str(reason))
    return results


def _left_out(
    known: Sequence[Workload] | Sequence[Peer],
    chosen: Sequence[Workload] | Sequence[Peer],
    what: str,
) -> Iterator[str]:
    """What a run without a choice would have had."""
    names = {each.name for each in chosen}
    missing = [each.name for each in known if each.default and each.name not in names]
    if missing:
        yield f"{what} left out by choice: {', '.join(missing)}"


@contextmanager
def _like_ctrl_c(signum: int) -> Iterator[None]:
    """What was started is ended and what was measured is written, also when we are told to go."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signum, interrupt)
    try:
        yield
    finally:
        signal.signal(signum, before)


def _save(results: Results, path: Path) -> None:
    """Results of hours are not lost to a disk that has become full: they are put elsewhere then."""
    try:
        save(results, path)
    except OSError as error:
        elsewhere = Path(tempfile.mkdtemp(prefix="odradek-bench-results-")) / path.name
        save(results, elsewhere)
        raise CommandFailed(
            f"{path} can't be written ({error.strerror or error}): the results are in {elsewhere}"
        ) from None


def _end(args: argparse.Namespace, results: Results) -> int:
    """Write what was asked for, then say what there is to know; the exit code."""
    _keep(args, [results])
    print_lines(f"! {line}" for line in remarks(results))
    if results.interrupted:
        return INTERRUPTED
    asked = args.peers is not None or args.bootstrap is not None
    gone = [each for each in results.peers if each.unavailable]
    missing = gone and (asked or len(gone) == len(results.peers))
    failed = results.has_failures() or missing or not results.has_figures()
    return 1 if failed else 0
