"""Tables of text: a workload's figures, metrics down, peers across."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from odradek.bench.model import Metric
from odradek.bench.results_file import Measured, Results, WorkloadResults
from odradek.bench.summary import figure, number, ranged, titled

GAP = "  "


def workload_lines(results: Results, workload: WorkloadResults) -> Iterator[str]:
    """A workload as lines: its name and title, then a table."""
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
    """A figure with its range and its fraction of the limit, or why there is none."""
    found = figure(results, metric, measured)
    if found is not None:
        fraction = "" if found.fraction is None else f" {found.fraction:.0%}"
        return ranged(found) + fraction
    if measured.skipped is not None:
        return "left out"
    return "FAILED" if measured.failures else "-"


def limit_cell(results: Results, metric: Metric) -> str:
    bound = results.bound_of(metric)
    return "" if bound is None else f"{number(bound)} ({metric.limit_name})"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        yield GAP.join(cells).rstrip()
