"""Two runs against each other: what got worse by more than a tolerance.

Medians are compared, workload by workload and metric by metric, for one peer (Odradek, unless told
otherwise). Where the runs of then and of now have values in common, that is noise, however far the medians are
apart; and what only helps to understand (`Metric.diagnostic`) is shown, and judged by nobody. A metric that the old run had and the new one failed to give is a regression too; one that
the new run did not try is only named, as is one of a workload that asked for something else then. Where
the machines or the clients differ, so may the figures: that is said.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from odradek.bench.model import Metric
from odradek.bench.results_file import Measured, Results, WorkloadResults
from odradek.bench.summary import Figure, figure

SAME_MACHINE = ("processor", "cores", "memory", "kernel", "TCP")


class Verdict(enum.Enum):
    REGRESSION = "WORSE"
    IMPROVEMENT = "better"
    SAME = "same"
    NOISE = "noise"
    """The medians differ, and the ranges overlap."""
    ASIDE = "aside"
    """It is diagnostic."""
    FAILED = "FAILED"
    """The old run has a figure, the new one tried and has none."""
    NOT_RUN = "not run"
    ANOTHER = "another workload"
    """The name is the same, and the parameters are not."""

    @property
    def is_regression(self) -> bool:
        return self in (Verdict.REGRESSION, Verdict.FAILED)


@dataclass(frozen=True)
class Change:
    """A metric in two runs. `worse` is the part by which it got worse (0.1: by a tenth; negative:
    better), None where there is nothing to compare."""

    workload: str
    metric: Metric
    old: Figure
    new: Figure | None
    worse: float | None
    verdict: Verdict


def compare(old: Results, new: Results, *, peer: str, tolerance: float) -> list[Change]:
    """Every metric that the old run has of the peer; `tolerance` as a part (0.1: a tenth)."""
    changes: list[Change] = []
    for workload in old.workloads:
        measured = workload.peers.get(peer)
        if measured is not None:
            changes += _changes(old, new, workload, measured, peer, tolerance)
    return changes


def _changes(
    old: Results,
    new: Results,
    workload: WorkloadResults,
    measured: Measured,
    peer: str,
    tolerance: float,
) -> Iterator[Change]:
    now = new.workload(workload.name)
    now_measured = None if now is None else now.peers.get(peer)
    for metric in workload.metrics:
        before = figure(old, metric, measured)
        if before is None:
            continue
        metric_now = metric if now is None else now.metric(metric.name) or metric
        after = None if now_measured is None else figure(new, metric_now, now_measured)
        if now is not None and now.parameters != workload.parameters:
            yield Change(workload.name, metric, before, after, None, Verdict.ANOTHER)
        elif after is not None:
            worse = worse_by(metric, before.median, after.median)
            verdict = _verdict(worse, tolerance)
            if after.metric.diagnostic or metric.diagnostic:
                verdict = Verdict.ASIDE
            elif verdict is not Verdict.SAME and _overlap(before, after):
                verdict = Verdict.NOISE
            yield Change(workload.name, metric, before, after, worse, verdict)
        else:
            tried = now_measured is not None and (
                now_measured.failures or (now_measured.samples and not new.interrupted)
            )
            verdict = Verdict.FAILED if tried else Verdict.NOT_RUN
            yield Change(workload.name, metric, before, None, None, verdict)


def worse_by(metric: Metric, before: float, after: float) -> float:
    """The part by which a value got worse: 0.25 for 100 MB/s that became 75, or 4 ms that became 5."""
    if before == 0:
        return 0.0 if after == 0 or metric.better == "higher" else float("inf")
    change = (after - before) / before
    return -change if metric.better == "higher" else change


def _verdict(worse: float, tolerance: float) -> Verdict:
    if worse > tolerance:
        return Verdict.REGRESSION
    return Verdict.IMPROVEMENT if worse < -tolerance else Verdict.SAME


def _overlap(before: Figure, after: Figure) -> bool:
    return before.low <= after.high and after.low <= before.high


def other_machine(old: Results, new: Results) -> list[str]:
    """In what the machines of two runs differ, and the clients on them."""
    then, now = [
        {
            **{key: each.machine.get(key, "?") for key in SAME_MACHINE},
            "client": each.settings.get("client", "?"),
        }
        for each in (old, new)
    ]
    return [f"{key}: {then[key]} then, {now[key]} now" for key in then if then[key] != now[key]]
