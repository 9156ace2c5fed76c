"""Simulated clusters that disable tiered storage (KIP-950): `python -m odradek.testing.simulation --disable-tiering`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odradek.testing.simulation.group_history import GroupHistory, MemberAssignment
from odradek.testing.simulation.history import (
    ClientHistory,
    ClientTransaction,
    ReadRecord,
    SentRecord,
    TransactionOutcome,
    find_anomalies,
)
from odradek.testing.simulation.parallel_runs import run_many
from odradek.testing.simulation.plan import FaultKind, draw_plan, from_json, to_json
from odradek.testing.simulation.run import simulate
from odradek.testing.simulation.tiering_disablement import DisableForm, draw_disablement
from tests.simulation.coverage import assert_sound

KIND = FaultKind.TIERING_DISABLED
DELETING_SEEDS = [1, 81]
"""In the second one, a broker is killed during a copy and does not lead the partition any more."""


def test_plans_with_disablements_keep_the_other_faults_of_their_seed() -> None:
    for seed in range(50):
        plan = draw_plan(seed, disables_tiering=True)
        assert set(draw_plan(seed, tiered=True).faults) <= set(plan.faults)
        assert plan.tiered
        assert from_json(json.loads(json.dumps(to_json(plan)))) == plan
        assert any(fault.kind is KIND for fault in plan.faults)
        assert not any(fault.kind is KIND for fault in draw_plan(seed, tiered=True).faults)


def test_drawn_disablements_have_every_form_and_companion() -> None:
    drawn = [
        draw_disablement(fault)
        for seed in range(100)
        for fault in draw_plan(seed, disables_tiering=True).faults
        if fault.kind is KIND
    ]
    assert {each.form for each in drawn} == set(DisableForm)
    for values in (
        {each.deletes_topic for each in drawn},
        {each.failover_s is not None for each in drawn},
        {each.waits for each in drawn},
        {each.enables for each in drawn},
    ):
        assert values == {True, False}


def deleted_below(start: int) -> ClientHistory:
    """Return a history of two records at offsets 0 and 2, of which the first is deleted."""
    committed = TransactionOutcome.COMMITTED
    return ClientHistory(
        transactions=[
            ClientTransaction("a", 0, [SentRecord(0, b"a0", 0)], None, committed),
            ClientTransaction("a", 1, [SentRecord(0, b"a1", 2)], None, committed),
        ],
        polled={"early": [ReadRecord(0, 0, b"a0"), ReadRecord(0, 2, b"a1")]},
        final=[ReadRecord(0, 2, b"a1")],
        log_starts={0: start},
    )


def test_records_below_the_log_start_offset_may_be_missing() -> None:
    assert find_anomalies(deleted_below(1)) == []
    assert {each.kind for each in find_anomalies(deleted_below(0))} == {
        "lost write",
        "aborted read",
    }


def test_records_above_the_log_start_offset_may_not_be_skipped() -> None:
    history = deleted_below(1)
    history.polled["late"] = []
    assert {each.kind for each in find_anomalies(history)} == {"unread"}


def test_group_need_not_read_records_below_the_log_start_offset() -> None:
    seen = [ReadRecord(0, 2, b"a1")]
    history = GroupHistory(assignments=[MemberAssignment("m", 1, {0}, 0.0, 1.0, seen)])
    final = [ReadRecord(0, 0, b"a0"), *seen]
    assert {each.kind for each in history.anomalies(final, {})} == {"unread"}
    assert list(history.anomalies(final, {}, {0: 1})) == []


@pytest.mark.parametrize("seed", DELETING_SEEDS)
def test_disablement_with_delete_and_faults_has_no_anomalies(seed: int) -> None:
    run = simulate(draw_plan(seed, disables_tiering=True))
    assert [str(each) for each in run.anomalies] == []
    assert any("is disabled (delete)" in line for line in run.trace)
    assert any("TieredState.DISABLED" in line for line in run.trace)


@pytest.mark.slow
def test_disabling_seeds_have_no_anomalies(tmp_path: Path) -> None:
    rows = run_many(range(50), nodes=3, jobs=1, keep=tmp_path, disables_tiering=True)
    assert_sound(list(rows), {KIND})
