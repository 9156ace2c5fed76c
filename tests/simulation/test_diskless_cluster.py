"""Simulated clusters with a diskless topic: `python -m odradek.testing.simulation --diskless`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from odradek.testing.power import NodeCrashed, Power
from odradek.testing.simulation.parallel_runs import run_many
from odradek.testing.simulation.plan import (
    IMPOSSIBLE_IN_DISKLESS,
    STORE_FAULTS,
    FaultKind,
    draw_plan,
    from_json,
    to_json,
)
from odradek.testing.simulation.run import simulate
from odradek.testing.virtual_databases import CrashedDatabase, VirtualDatabases
from tests.simulation.coverage import assert_sound

KINDS = set(FaultKind) - IMPOSSIBLE_IN_DISKLESS - {FaultKind.TIERING_DISABLED}


@pytest.mark.parametrize(("seed", "nodes"), [(0, 1), (1, 3), (3, 3)])
def test_diskless_topic_keeps_acknowledged_records(seed: int, nodes: int) -> None:
    run = simulate(draw_plan(seed, nodes=nodes, diskless=True))
    assert [str(each) for each in run.anomalies] == []
    assert run.done["acknowledged records"] > 10


def test_diskless_plan_simulated_twice_gives_the_same_run() -> None:
    plan = draw_plan(7, diskless=True)
    assert simulate(plan).digest == simulate(plan).digest


def test_diskless_plans_have_the_possible_faults_and_no_transactions() -> None:
    plans = [draw_plan(seed, diskless=True) for seed in range(100)]
    assert [from_json(json.loads(json.dumps(to_json(plan)))) for plan in plans] == plans
    assert all(plan.diskless and not plan.tiered and plan.writers for plan in plans)
    assert not any(plan.transactional for plan in plans)
    kinds = {fault.kind for plan in plans for fault in plan.faults}
    assert kinds >= STORE_FAULTS - IMPOSSIBLE_IN_DISKLESS
    assert not kinds & IMPOSSIBLE_IN_DISKLESS
    for plan in plans:
        tiered = set(draw_plan(plan.seed, tiered=True).faults)
        assert {each for each in tiered if each.kind not in IMPOSSIBLE_IN_DISKLESS} <= set(
            plan.faults
        )


def test_crashed_databases_are_kept_lost_or_older_copies() -> None:
    seen = set()
    for seed in range(30):
        databases, power = VirtualDatabases(), Power()
        database = databases.of_node(power)
        for content in (b"1", b"2", b"3"):
            database.store("/a", content)
        power.cut()
        with pytest.raises(NodeCrashed):
            database.load("/a")
        outcome = databases.crash(random.Random(seed))["/a"]
        found = databases.load("/a")
        seen.add((outcome, found))
        if outcome is CrashedDatabase.OLDER_COPY:
            assert found in (b"1", b"2")
    assert {CrashedDatabase.KEPT, CrashedDatabase.LOST} == {
        outcome for outcome, found in seen if found in (None, b"3")
    }


@pytest.mark.slow
def test_diskless_seeds_have_no_anomalies(tmp_path: Path) -> None:
    rows = run_many(range(75), nodes=3, jobs=1, keep=tmp_path, diskless=True)
    assert_sound(list(rows), KINDS, transactions=False)
