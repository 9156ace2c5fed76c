"""Compares two runs and reports what is worse by more than a tolerance.

The medians of each metric are compared for one peer. If the ranges of the samples overlap, the difference is noise.
Diagnostic metrics (`Metric.diagnostic`) are shown without a verdict. A metric without a value in the new run is a
regression if the workload was run, and is only listed otherwise. A workload with other parameters is only listed.
`other_machine` returns differences of the machines and clients.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from odradek.bench.model import Metric
from odradek.bench.results_file import Measured, Results, WorkloadResults
from odradek.bench.summary import Figure, figure

SAME_MACHINE = ("processor", "cores", "memory", "kernel", "TCP")


class ChangeVerdict(enum.Enum):
    REGRESSION = "WORSE"
    IMPROVEMENT = "better"
    SAME = "same"
    NOISE = "noise"
    """The medians differ, and the ranges overlap."""
    DIAGNOSTIC = "diagnostic"
    """The metric is diagnostic."""
    FAILED = "FAILED"
    """The workload was run again and gave no value."""
    NOT_RUN = "not run"
    OTHER_PARAMETERS = "other parameters"
    """The workload has the same name and other parameters."""

    @property
    def is_regression(self) -> bool:
        return self in (ChangeVerdict.REGRESSION, ChangeVerdict.FAILED)


@dataclass(frozen=True)
class MetricChange:
    """A metric in two runs.

    `worse` is the relative change for the worse (0.1 is 10%; negative is better), or None without a comparison.
    """

    workload: str
    metric: Metric
    old: Figure
    new: Figure | None
    worse: float | None
    verdict: ChangeVerdict


def compare(old: Results, new: Results, *, peer: str, tolerance: float) -> list[MetricChange]:
    """Compare every metric that the old run has for the peer. A `tolerance` of 0.1 is 10%."""
    changes: list[MetricChange] = []
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
) -> Iterator[MetricChange]:
    now = new.workload(workload.name)
    now_measured = None if now is None else now.peers.get(peer)
    for metric in workload.metrics:
        before = figure(old, metric, measured)
        if before is None:
            continue
        metric_now = metric if now is None else now.metric(metric.name) or metric
        after = None if now_measured is None else figure(new, metric_now, now_measured)
        if now is not None and now.parameters != workload.parameters:
            yield MetricChange(
                workload.name, metric, before, after, None, ChangeVerdict.OTHER_PARAMETERS
            )
        elif after is not None:
            worse = worse_by(metric, before.median, after.median)
            verdict = _verdict(worse, tolerance)
            if after.metric.diagnostic or metric.diagnostic:
                verdict = ChangeVerdict.DIAGNOSTIC
            elif verdict is not ChangeVerdict.SAME and _overlap(before, after):
                verdict = ChangeVerdict.NOISE
            yield MetricChange(workload.name, metric, before, after, worse, verdict)
        else:
            tried = now_measured is not None and (
                now_measured.failures or (now_measured.samples and not new.interrupted)
            )
            verdict = ChangeVerdict.FAILED if tried else ChangeVerdict.NOT_RUN
            yield MetricChange(workload.name, metric, before, None, None, verdict)


def worse_by(metric: Metric, before: float, after: float) -> float:
    """Return the relative change for the worse: 0.25 for 100 MB/s to 75 MB/s, or for 4 ms to 5 ms."""
    if before == 0:
        return 0.0 if after == 0 or metric.better == "higher" else float("inf")
    change = (after - before) / before
    return -change if metric.better == "higher" else change


def _verdict(worse: float, tolerance: float) -> ChangeVerdict:
    if worse > tolerance:
        return ChangeVerdict.REGRESSION
    return ChangeVerdict.IMPROVEMENT if worse < -tolerance else ChangeVerdict.SAME


def _overlap(before: Figure, after: Figure) -> bool:
    return before.low <= after.high and after.low <= before.high


def other_machine(old: Results, new: Results) -> list[str]:
    """Return the differences of the machines and clients of two runs."""
    then, now = [
        {
            **{key: each.machine.get(key, "?") for key in SAME_MACHINE},
            "client": each.settings.get("client", "?"),
        }
        for each in (old, new)
    ]
    return [f"{key}: {then[key]} before, {now[key]} now" for key in then if then[key] != now[key]]
