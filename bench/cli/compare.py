"""`odradek bench compare OLD.json NEW.json`: the exit code is 1 if a figure is worse."""

from __future__ import annotations

import argparse
import math
import sys

from odradek.bench.cli.arguments import load_results
from odradek.bench.compare import ChangeVerdict, MetricChange, compare, other_machine
from odradek.bench.summary import number, ranged
from odradek.cli.errors import WrongUsage
from odradek.cli.output import print_json, print_lines, print_table


def run(args: argparse.Namespace) -> int:
    old, new = load_results(args.old), load_results(args.new)
    if not 0 <= args.tolerance < math.inf:
        raise WrongUsage("--tolerance is a percentage of 0 or more")
    changes = compare(old, new, peer=args.peer, tolerance=args.tolerance / 100)
    if not changes:
        raise WrongUsage(f"{args.old} has no figures of {args.peer}")
    regressions = [each for each in changes if each.verdict.is_regression]
    if args.json:
        print_json([_row(each) for each in changes])
        return 1 if regressions else 0
    for difference in other_machine(old, new):
        print_lines([f"warning: different machines: {difference}"])
    print_table(
        ["WORKLOAD", "METRIC", "UNIT", "OLD", "NEW", "CHANGE", "VERDICT"],
        [_cells(each) for each in changes],
    )
    print_lines(["", _summary(changes, args.tolerance)])
    if regressions:
        sys.stderr.write(f"odradek: {len(regressions)} of {len(changes)} figures got worse\n")
    return 1 if regressions else 0


def _cells(change: MetricChange) -> list[str]:
    return [
        change.workload,
        change.metric.name,
        change.metric.unit,
        ranged(change.old),
        "" if change.new is None else ranged(change.new),
        "" if change.worse is None else _signed(change),
        change.verdict.value,
    ]


def _signed(change: MetricChange) -> str:
    """Format the change of the value: +12 % is an increase, even if lower is better."""
    assert change.new is not None
    before, after = change.old.median, change.new.median
    return f"{(after - before) / before:+.1%}" if before else f"+{number(after)}"


def _summary(changes: list[MetricChange], tolerance: float) -> str:
    counts = dict.fromkeys(ChangeVerdict, 0)
    for change in changes:
        counts[change.verdict] += 1
    return (
        f"{len(changes)} figures: {counts[ChangeVerdict.REGRESSION]} worse by more than {tolerance:g} %, "
        f"{counts[ChangeVerdict.FAILED]} failed, {counts[ChangeVerdict.IMPROVEMENT]} better, "
        f"{counts[ChangeVerdict.SAME]} the same, {counts[ChangeVerdict.NOISE]} within the range of their samples, "
        f"{counts[ChangeVerdict.DIAGNOSTIC]} diagnostic, {counts[ChangeVerdict.NOT_RUN]} not run, "
        f"{counts[ChangeVerdict.OTHER_PARAMETERS]} with other parameters"
    )


def _row(change: MetricChange) -> dict[str, object]:
    return {
        "workload": change.workload,
        "metric": change.metric.name,
        "unit": change.metric.unit,
        "old": change.old.median,
        "new": None if change.new is None else change.new.median,
        "worse": change.worse,
        "verdict": change.verdict.value,
    }
