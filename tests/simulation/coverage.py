"""Many seeds without an anomaly prove something only where faults met work: how much there has to be."""

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
"""On the average; it is some 35, 23, 4, twice 32 and 5."""


def assert_sound(rows: list[dict[str, Any]], kinds: Set[FaultKind]) -> None:
    """None has an anomaly; each of the kinds of faults met a node that served; clients had their work done."""
    found = [(row["seed"], row["anomalies"]) for row in rows if row["anomalies"]]
    assert found == [], found
    summary = Summary()
    for row in rows:
        summary.add(row)
    idle = missed(summary.coverage, kinds)
    assert not idle, f"these met nobody who serves: {idle}\n{summary.table()}"
    lacking = {
        what: summary.done[what]
        for what, least in DONE_A_RUN.items()
        if summary.done[what] < least * summary.runs
    }
    assert not lacking, f"too little was done in {summary.runs} runs: {lacking}"


def missed(coverage: Coverage, kinds: Set[FaultKind]) -> set[FaultKind]:
    """Those that met no node as a broker or the controller."""
    met = {kind for kind, state in coverage if state.startswith(("broker, ", "controller, "))}
    return {kind for kind in kinds if kind.value not in met}
