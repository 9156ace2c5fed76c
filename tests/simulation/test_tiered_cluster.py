"""Simulated clusters with an object store: `python -m odradek.testing.simulation --tiered`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odradek.testing.simulation.parallel_runs import run_many
from odradek.testing.simulation.plan import (
    DISKLESS_ONLY,
    NEEDS_TIERED_TOPIC,
    FaultKind,
    draw_plan,
    from_json,
    to_json,
)
from odradek.testing.simulation.run import simulate
from tests.simulation.coverage import assert_sound


@pytest.mark.parametrize("seed", range(2))
def test_single_node_with_a_store_keeps_acknowledged_records(seed: int) -> None:
    run = simulate(draw_plan(seed, nodes=1, tiered=True))
    assert [str(each) for each in run.anomalies] == []
    assert any("remote segments" in line for line in run.trace)


@pytest.mark.parametrize("seed", range(2))
def test_three_nodes_with_a_store_keep_acknowledged_records(seed: int) -> None:
    run = simulate(draw_plan(seed, tiered=True))
    assert [str(each) for each in run.anomalies] == []
    assert any("remote segments" in line for line in run.trace)


def test_tiered_plan_simulated_twice_gives_the_same_run() -> None:
    plan = draw_plan(7, tiered=True)
    assert simulate(plan).trace == simulate(plan).trace


def test_tiered_plan_survives_a_json_round_trip() -> None:
    plans = [draw_plan(seed, tiered=True) for seed in range(50)]
    assert [from_json(json.loads(json.dumps(to_json(plan)))) for plan in plans] == plans
    assert {fault.kind for plan in plans for fault in plan.faults} >= NEEDS_TIERED_TOPIC
    assert not any(
        fault.kind in NEEDS_TIERED_TOPIC for seed in range(50) for fault in draw_plan(seed).faults
    )


@pytest.mark.slow
def test_tiered_seeds_have_no_anomalies(tmp_path: Path) -> None:
    rows = run_many(range(150), nodes=3, jobs=1, keep=tmp_path, tiered=True)
    assert_sound(list(rows), set(FaultKind) - DISKLESS_ONLY - {FaultKind.TIERING_DISABLED})
