"""A run as one page of HTML, whole in itself: plots as inline SVG, tables, every remark.

Nothing is loaded from anywhere. A metric's plot has a bar a peer: the median, with a line from the
smallest to the largest run and a dot for each; the dashed line is the physical limit. Histograms are
drawn as percentiles up to the last that the count of values bears.
"""

from __future__ import annotations

import html
import io
import statistics
from collections.abc import Iterable, Iterator, Sequence

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import StrMethodFormatter

from odradek.bench.model import Histogram, Metric
from odradek.bench.results_file import Measured, Results, WorkloadResults
from odradek.bench.summary import figure, measured_peers, number, remarks, span, titled
from odradek.bench.table import cell, limit_cell

COLOURS = ("#1f6f8b", "#c8553d", "#7a9e7e", "#d9a441", "#6d597a", "#8d99ae")
INK, PALE = "#22303c", "#8a96a3"

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #22303c; margin: 2rem auto; max-width: 70rem;
       padding: 0 1rem; background: #fdfdfc; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .2rem; }
h2 code { font-size: .85rem; color: #8a96a3; font-weight: normal; }
table { border-collapse: collapse; margin: .6rem 0; font-size: .88rem; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #e4e7ea;
         font-variant-numeric: tabular-nums; vertical-align: top; }
th { color: #66727e; font-weight: 600; }
.plots { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; }
.plots svg { max-width: 100%; height: auto; }
.remarks { background: #fdf4e3; border-left: 4px solid #d9a441; padding: .4rem 1rem; }
.remarks li { margin: .1rem 0; white-space: pre-line; }
.legend span { display: inline-block; margin-right: 1.2rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem;
            border-radius: 2px; vertical-align: -1px; }
.quiet { color: #66727e; }
"""


def page(results: Results) -> str:
    """The whole document."""
    rcParams["svg.hashsalt"] = "odradek"  # the same results, the same page
    rcParams["svg.fonttype"] = "none"
    title = f"Odradek {results.version}, measured {results.started[:10]}"
    body = "\n".join(
        [
            f"<h1>{html.escape(title)}</h1>",
            _legend(results),
            _about(results),
            _remarks(remarks(results)),
            *(_workload(results, each) for each in results.workloads),
            _limits(results),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _colours(results: Results) -> dict[str, str]:
    peers = [peer.name for peer in results.peers]
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(peers)}


def _legend(results: Results) -> str:
    colours = _colours(results)
    spans = (
        f'<span><i style="background:{colours[name]}"></i>{html.escape(name)}</span>'
        for name in measured_peers(results)
    )
    return f'<p class="legend">{"".join(spans)}</p>'


def _about(results: Results) -> str:
    machine = ", ".join(f"{key} {value}" for key, value in results.machine.items())
    settings = ", ".join(f"{key} {value}" for key, value in results.settings.items())
    lines = [
        f'<p class="quiet">{html.escape(machine)}<br>{html.escape(settings)}, '
        f"{results.seconds / 60:.0f} minutes in all. Figures are medians (smallest to largest run), "
        "percentages are of the physical limit.</p>"
    ]
    rows = [
        [peer.name, peer.title, peer.version or "-", ", ".join(_pairs(peer.settings.items()))]
        for peer in results.peers
    ]
    rows += [
        [peer.name, f"{peer.title}: {stage}", peer.version or "-", ", ".join(_pairs(each.items()))]
        for peer in results.peers
        for stage, each in peer.clusters.items()
    ]
    return lines[0] + _table(["peer", "", "version", "settings other than its defaults"], rows)


def _pairs(items: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"{key}={value}" for key, value in items)


def _remarks(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'<div class="remarks"><ul>{items}</ul></div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in cells)}</tr>"

    return f"<table>{row(head, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


def _workload(results: Results, workload: WorkloadResults) -> str:
    peers = list(workload.peers)
    rows = [
        [
            metric.name,
            metric.unit,
            *(cell(results, metric, workload.peers[peer]) for peer in peers),
            limit_cell(results, metric),
        ]
        for metric in workload.metrics
    ]
    plots = [_bars(results, workload, metric) for metric in workload.metrics]
    plots.append(_percentiles(results, workload))
    parameters = ", ".join(f"{key} {value}" for key, value in workload.parameters.items())
    title = html.escape(titled(results, workload))
    return (
        f"<h2>{title} <code>{html.escape(workload.name)}</code></h2>"
        f'<div class="quiet">{html.escape(parameters)}</div>'
        f"{_table(['', 'unit', *peers, 'limit'], rows)}"
        f'<div class="plots">{"".join(plots)}</div>'
    )


def _limits(results: Results) -> str:
    if not results.limits:
        return ""
    rows = []
    for limit in results.limits:
        values = [value for value, _ in limit.samples]
        text = limit.failure or "-"
        if values:
            text = f"{number(statistics.median(values))} ({span(min(values), max(values))})"
        rows.append([limit.title, limit.name, text, limit.metric.unit])
    return (
        f"<h2>Physical limits, with no broker in between</h2>{_table(['', '', '', 'unit'], rows)}"
    )


# Plots


def _bars(results: Results, workload: WorkloadResults, metric: Metric) -> str:
    """A metric on every peer that has it; nothing where no peer has."""
    found = [(name, figure(results, metric, measured)) for name, measured in workload.peers.items()]
    shown = [(name, each) for name, each in found if each is not None]
    if not shown:
        return ""
    drawing, axes = _drawing(4.6, 0.55 + 0.32 * len(shown))
    colours = _colours(results)
    for row, (name, each) in enumerate(shown):
        axes.barh(row, each.median, height=0.62, color=colours[name])
        axes.plot([each.low, each.high], [row, row], color=INK, linewidth=1)
        values = [
            s.values[metric.name] for s in workload.peers[name].counted if metric.name in s.values
        ]
        axes.plot(values, [row] * len(values), "o", color=INK, markersize=2.5, alpha=0.7)
        axes.annotate(
            number(each.median),
            (each.high, row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    bound = results.bound_of(metric)
    if bound is not None:
        axes.axvline(bound, color=PALE, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(shown)), [name for name, _ in shown])
    axes.invert_yaxis()
    axes.set_xlim(left=0, right=axes.get_xlim()[1] * 1.12)
    axes.set_title(
        f"{metric.name}, {metric.unit} ({metric.better} is better)", loc="left", fontsize=9
    )
    return _svg(drawing)


def _percentiles(results: Results, workload: WorkloadResults) -> str:
    """All runs' histograms of each peer together, on the axis that HDR histograms are shown on."""
    merged = {
        name: histogram
        for name, measured in workload.peers.items()
        if (histogram := merge(measured)) is not None
    }
    if not merged:
        return ""
    drawing, axes = _drawing(9.6, 2.6)
    colours = _colours(results)
    for name, histogram in merged.items():
        xs, ys = percentile_line(histogram)
        axes.plot(xs, ys, color=colours[name], linewidth=1.4, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000]
    names = ["0", "90", "99", "99.9", "99.99", "99.999", "99.9999"]
    axes.set_xticks(ticks, names)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.minorticks_off()
    axes.set_xlim(1, max(max(percentile_line(each)[0]) for each in merged.values()))
    unit = next(iter(merged.values())).unit
    axes.set_title(f"percentiles, {unit}, all counted runs together", loc="left", fontsize=9)
    axes.grid(True, color="#e4e7ea", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False)
    return _svg(drawing)


def merge(measured: Measured) -> Histogram | None:
    """The histograms of all runs that count, as one."""
    counts: dict[float, int] = {}
    unit = None
    for sample in measured.counted:
        if sample.histogram is not None:
            unit = sample.histogram.unit
            for bound, count in sample.histogram.buckets:
                counts[bound] = counts.get(bound, 0) + count
    return None if unit is None else Histogram(unit, tuple(sorted(counts.items())))


def percentile_line(histogram: Histogram) -> tuple[list[float], list[float]]:
    """Points (1 / (1 - quantile), value): 10 is the 90th percentile, 1,000 the 99.9th."""
    total = sum(count for _, count in histogram.buckets)
    xs, ys, below = [1.0], [histogram.buckets[0][0]], 0
    for bound, count in histogram.buckets:
        below += count
        xs.append(total / max(total - below, 0.5))
        ys.append(bound)
    return xs, ys


def _drawing(width: float, height: float) -> tuple[Drawing, Axes]:
    drawing = Drawing(figsize=(width, height + 0.3), layout="constrained")
    axes = drawing.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(PALE)
    axes.tick_params(colors=INK, labelsize=8, color=PALE)
    drawing.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    return drawing, axes


def _svg(drawing: Drawing) -> str:
    """The drawing as an <svg> element, without a date in it, so that equal results make equal pages."""
    out = io.StringIO()
    drawing.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue().partition("<svg")[1] + out.getvalue().partition("<svg")[2]
