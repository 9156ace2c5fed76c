"""Clusters under faults, from seeds: `python -m odradek.testing.simulation --seeds 42` for one of them."""

from __future__ import annotations

import json

import pytest

from odradek.testing.simulation.plan import Kind, draw_plan, from_json, to_json
from odradek.testing.simulation.run import simulate


@pytest.mark.parametrize("seed", range(4))
def test_a_lone_node_keeps_what_it_acknowledged(seed: int) -> None:
    run = simulate(draw_plan(seed, nodes=1))
    assert [str(each) for each in run.anomalies] == []
    assert any(" has " in line for line in run.trace)


def test_a_plan_makes_the_same_run_again() -> None:
    plan = draw_plan(5, nodes=1)
    assert simulate(plan).trace == simulate(plan).trace


def test_a_plan_is_written_down_and_read_again() -> None:
    plans = [draw_plan(seed) for seed in range(50)]
    assert [from_json(json.loads(json.dumps(to_json(plan)))) for plan in plans] == plans
    assert {fault.kind for plan in plans for fault in plan.faults} == set(Kind)
