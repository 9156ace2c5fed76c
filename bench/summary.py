"""Summarizes samples: medians with their range, fractions of limits, remarks, and tables of text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from odradek.bench.model import Metric
from odradek.bench.results_file import Measured, Results, WorkloadResults


@dataclass(frozen=True)
class Figure:
    """A metric on one peer: median, smallest and largest value, and number of runs.

    `fraction` is the ratio to the physical limit; 1.0 is the limit.
    """

    metric: Metric
    median: float
    low: float
    high: float
    runs: int
    disturbed: bool
    fraction: float | None = None


def figure(results: Results, metric: Metric, measured: Measured) -> Figure | None:
    """Return the figure of a metric; None if no run that counts has a value."""
    values = [each.values[metric.name] for each in measured.counted if metric.name in each.values]
    if not values:
        return None
    median = statistics.median(values)
    return Figure(
        metric,
        median,
        min(values),
        max(values),
        len(values),
        measured.only_disturbed,
        _fraction(results, metric, median),
    )


def _fraction(results: Results, metric: Metric, median: float) -> float | None:
    bound = results.bound_of(metric)
    if bound is None:
        return None
    if metric.better == "higher":
        return median / bound if bound else None
    return bound / median if median else None


def figures(results: Results) -> Iterator[tuple[WorkloadResults, str, Figure]]:
    """Yield every figure, as (workload, peer, figure)."""
    for workload in results.workloads:
        for peer, measured in workload.peers.items():
            for metric in workload.metrics:
                found = figure(results, metric, measured)
                if found is not None:
                    yield workload, peer, found


def titled(results: Results, workload: WorkloadResults) -> str:
    """Return a workload's title, with its number of rounds if that differs from the run's setting."""
    rounds = results.other_rounds(workload)
    if rounds is None:
        return workload.title
    return f"{workload.title} ({rounds} round{'s' * (rounds > 1)})"


def measured_peers(results: Results) -> list[str]:
    return [peer.name for peer in results.peers if peer.unavailable is None]


def number(value: float) -> str:
    """Format a number with three significant digits or more: 12,345; 817; 1.15; 0.0123."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.3g}"


def ranged(found: Figure) -> str:
    """Format a figure as `median (min-max)`, with * if other processes used the machine in every run."""
    mark = "*" if found.disturbed else ""
    if found.runs == 1 or found.low == found.high:
        return number(found.median) + mark
    return f"{number(found.median)}{mark} ({span(found.low, found.high)})"


def span(low: float, high: float) -> str:
    """Format a range of two values."""
    return f"{number(low)}\N{EN DASH}{number(high)}"


def remarks(results: Results) -> list[str]:
    """Return remarks on the figures: missing peers, failures, disturbed runs, limits of the client."""
    report = list(results.remarks)
    if results.interrupted:
        report.append("the run was interrupted: later workloads are missing")
    report += [
        f"{peer.name} is not available: {peer.unavailable}"
        for peer in results.peers
        if peer.unavailable is not None
    ]
    report += [
        f"the limit {limit.name} could not be measured: {limit.failure}"
        for limit in results.limits
        if limit.failure is not None
    ]
    for workload in results.workloads:
        for name, measured in workload.peers.items():
            report += _about(workload.name, name, measured)
    starred = sum(
        measured.only_disturbed
        for workload in results.workloads
        for measured in workload.peers.values()
    )
    if starred:
        report.append(
            f"other processes used the machine in every run of {starred} workloads and peers (*)"
        )
    return report


def _about(workload: str, peer: str, measured: Measured) -> Iterator[str]:
    where = f"{workload} on {peer}"
    if measured.skipped is not None:
        yield f"{where} was skipped: {measured.skipped}"
    for failure in measured.failures:
        yield f"{where} FAILED in round {failure.round}: {failure.reason}"
    tried = {each.round for each in measured.samples if each.round > 0}
    disturbed = len(tried - {each.round for each in measured.counted})
    if disturbed:
        why = "other processes used the machine in each run of that round"
        verb = "does" if disturbed == 1 else "do"
        if disturbed > 1:
            why = "other processes used the machine in each run of those rounds"
        yield f"{where}: {disturbed} of {len(tried)} rounds {verb} not count: {why}"
    bound = [each for each in measured.counted if each.client_bound]
    if bound:
        why = f" ({'; '.join(bound[0].notes)})" if bound[0].notes else ""
        yield f"{where}: the client was at its limit{why}; compare the brokers' CPU instead"


GAP = "  "


def workload_lines(results: Results, workload: WorkloadResults) -> Iterator[str]:
    """Yield the lines of a workload: name and title, then a table of metrics by peer."""
    yield f"{workload.name}: {titled(results, workload)}"
    peers = list(workload.peers)
    rows = [["", "unit", *peers, "limit"]]
    for metric in workload.metrics:
        cells = [cell(results, metric, workload.peers[peer]) for peer in peers]
        rows.append([metric.name, metric.unit, *cells, limit_cell(results, metric)])
    if all(not row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    yield from (f"  {line}" for line in aligned(rows))


def cell(results: Results, metric: Metric, measured: Measured) -> str:
    """Format a figure with its range and its fraction of the limit, or `skipped`, `FAILED` or `-`."""
    found = figure(results, metric, measured)
    if found is not None:
        fraction = "" if found.fraction is None else f" {found.fraction:.0%}"
        return ranged(found) + fraction
    if measured.skipped is not None:
        return "skipped"
    return "FAILED" if measured.failures else "-"


def limit_cell(results: Results, metric: Metric) -> str:
    bound = results.bound_of(metric)
    return "" if bound is None else f"{number(bound)} ({metric.limit_name})"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        yield GAP.join(cells).rstrip()
