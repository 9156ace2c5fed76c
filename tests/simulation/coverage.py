"""Checks that many seeds have no anomaly, and that their faults had an effect while clients worked."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from odradek.testing.simulation.faults import Coverage
from odradek.testing.simulation.plan import FaultKind
from odradek.testing.simulation.summary import Summary

DONE_A_RUN = {
    "acknowledged records": 20,
    "committed writes": 12,
    "committed transactions": 2,
    "reads along": 20,
    "reads in the end": 20,
    "acknowledged commits of a group": 2,
}
"""Minimum averages of a run; actual averages are about 35, 23, 4, 32, 32 and 5."""


def assert_sound(
    rows: list[dict[str, Any]], kinds: Set[FaultKind], *, transactions: bool = True
) -> None:
    """Check that no run has an anomaly, each kind of fault affected a serving node, and clients made progress, with
    `transactions` also in transactions."""
    found = [(row["seed"], row["anomalies"]) for row in rows if row["anomalies"]]
    assert found == [], found
    summary = Summary()
    for row in rows:
        summary.add(row)
    idle = missed(summary.coverage, kinds)
    assert not idle, f"kinds without an effect on a serving node: {idle}\n{summary.table()}"
    lacking = {
        what: summary.done[what]
        for what, least in DONE_A_RUN.items()
        if summary.done[what] < least * summary.runs
        and (transactions or what != "committed transactions")
    }
    assert not lacking, f"too little was done in {summary.runs} runs: {lacking}"


def missed(coverage: Coverage, kinds: Set[FaultKind]) -> set[FaultKind]:
    """Return the kinds of faults that affected no broker or controller."""
    met = {kind for kind, state in coverage if state.startswith(("broker, ", "controller, "))}
    return {kind for kind in kinds if kind.value not in met}
