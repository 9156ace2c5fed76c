"""Simulated clusters with faults; `python -m odradek.testing.simulation --seeds 42` repeats one seed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from odradek.replication.raft import metadata_loader
from odradek.replication.raft.metadata_log_writer import Blocking
from odradek.testing.simulation.cluster import SimulatedCluster
from odradek.testing.simulation.history import Anomaly
from odradek.testing.simulation.parallel_runs import run_many
from odradek.testing.simulation.plan import (
    DATA,
    DISKLESS_ONLY,
    NEEDS_TIERED_TOPIC,
    OTHER_DATA,
    RUN_S,
    Fault,
    FaultKind,
    SimulationPlan,
    draw_plan,
    from_json,
    to_json,
)
from odradek.testing.simulation.run import SimulationRun, simulate
from odradek.testing.simulation.trace import Trace
from odradek.testing.simulation.worker import load, save, shrink, to_row
from odradek.testing.virtual_world import VirtualWorld
from tests.simulation.coverage import assert_sound

SEEDS_AT_ONCE = 250
"""Enough for an effect of each kind of fault on a serving node; a hundred are too few."""

WITHOUT_TIERED_TOPIC = (
    set(FaultKind) - NEEDS_TIERED_TOPIC - DISKLESS_ONLY - {FaultKind.TIERING_DISABLED}
)
"""Kinds of faults in plans without an object store."""


@pytest.mark.parametrize("seed", [0, 1, 2, 12])
def test_single_node_keeps_acknowledged_records(seed: int) -> None:
    run = simulate(draw_plan(seed, nodes=1))
    assert [str(each) for each in run.anomalies] == []
    assert any(" has " in line for line in run.trace)


@pytest.mark.parametrize("seed", range(3))
def test_three_nodes_keep_acknowledged_records(seed: int) -> None:
    run = simulate(draw_plan(seed))
    assert [str(each) for each in run.anomalies] == []
    assert any(" has " in line for line in run.trace)


def test_plan_simulated_twice_gives_the_same_run() -> None:
    plan = draw_plan(5)
    once, again = simulate(plan), simulate(plan)
    assert once.trace == again.trace
    assert once.digest == again.digest


def test_clients_do_not_pause_after_the_last_fault() -> None:
    run = simulate(SimulationPlan(0, (), nodes=1, writers=2, transactional=2))
    assert run.is_sound
    assert run.virtual_s < RUN_S


def test_metadata_replay_waits_for_a_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_for: list[object] = []
    honest = metadata_loader._read

    async def read(log: Any, offset: int, up_to: int, blocking: Blocking) -> Any:
        async def waiting(call: Callable[..., Any], *args: Any) -> Any:
            waited_for.append(call)
            return await blocking(call, *args)

        return await honest(log, offset, up_to, waiting)

    monkeypatch.setattr(metadata_loader, "_read", read)
    slow = [Fault(0.5, FaultKind.SLOW_DISK, each, 1, seconds=1.5, amount=0.1) for each in (1, 2, 3)]
    run = simulate(SimulationPlan(0, tuple(slow), writers=1, transactional=0))
    assert run.is_sound
    assert len(waited_for) > 0


def test_fault_without_effect_is_not_counted_as_coverage() -> None:
    """A stopped node cannot be killed, and a reassignment to the current replicas has no effect."""
    faults = (
        Fault(0.5, FaultKind.REASSIGNMENT, 1, 2, 0.1, 0.5),  # the current replicas
        Fault(0.6, FaultKind.STOP, 1, 2, 2.0, 0.5),
        Fault(1.5, FaultKind.KILL, 1, 2, 0.1, 0.5),
        Fault(1.55, FaultKind.CLOCK_JUMP, 1, 2, 0.1, 0.9),
    )
    run = simulate(SimulationPlan(1, faults, transactional=0))
    assert run.is_sound
    assert {kind for kind, _ in run.coverage} == {FaultKind.STOP.value}


@pytest.mark.parametrize(
    ("kind", "how", "ends"),
    [
        (FaultKind.FAILING_DIRECTORY, 0.3, False),
        (FaultKind.FAILING_DIRECTORY, 0.5, False),
        (FaultKind.FAILING_DIRECTORY, 0.9, False),
        (FaultKind.FAILING_DISK, 0.0, True),
        (FaultKind.UNREADABLE_DISK, 0.0, True),
    ],
)
def test_node_survives_failure_of_its_second_log_directory_only(
    kind: FaultKind, how: float, ends: bool
) -> None:
    configs = {"log.dirs": f"{DATA},{OTHER_DATA}"}
    fault = Fault(1.0, kind, 2, 1, seconds=2.0, amount=0.5, variant=how)
    run = simulate(SimulationPlan(1, (fault,), configs=configs))
    assert [str(each) for each in run.anomalies] == []
    assert any("node-2 ended: " in line for line in run.trace) == ends


def test_removed_voters_rejoin_the_quorum() -> None:
    faults = tuple(
        Fault(0.8 * node, FaultKind.VOTER_REMOVED, node, 1, 0.1, 0.5) for node in (1, 2, 3)
    )
    run = simulate(SimulationPlan(1, faults, transactional=0, dynamic_quorum=True))
    assert [str(each) for each in run.anomalies] == []
    states = [state for _, state in run.coverage.elements()]
    assert len(states) == len(faults)
    assert any(state.startswith("controller, ") for state in states)


def test_fault_without_its_precondition_is_not_counted_as_coverage() -> None:
    """The controller cannot be the lagging voter, and without a controller no voter lags."""
    faults = tuple(
        Fault(1.0 + node, FaultKind.LAGGING_VOTER, node, 1, 0.1, 0.5) for node in (1, 2, 3)
    )
    run = simulate(SimulationPlan(1, faults, transactional=0))
    assert run.is_sound
    assert 0 < run.coverage.total() < len(faults)
    assert not any(state.startswith("controller") for _, state in run.coverage)


def test_node_stopped_before_serving_reports_no_lost_storage() -> None:
    """Its disk must not be replaced."""
    world = VirtualWorld()
    world.clock.jumping = True

    async def stop_while_it_waits_for_the_others() -> SimulatedCluster:
        trace = Trace(world.clock.monotonic)
        async with trio.open_nursery() as nursery:
            cluster = SimulatedCluster(world, 3, trace, nursery)
            await cluster.start(1)
            await trio.sleep(1)
            await cluster.stop(1)
        assert trace.lines[-1].endswith("stopped before it could serve")
        return cluster

    cluster = world.run(stop_while_it_waits_for_the_others)
    assert (cluster.failures, cluster.nodes[1].lost) == ([], "")


@pytest.mark.parametrize(
    ("arguments", "expected_error"),
    [
        (["--nodes", "2"], "1, or 3 and more, not '2'"),
        (["--seeds", "5-3"], "not a seed or a range of seeds: '5-3'"),
        (["--seeds", "x"], "not a seed or a range of seeds: 'x'"),
        (["--replay", "nowhere.json"], "nowhere.json is not a plan: "),
    ],
)
def test_invalid_arguments_are_rejected(arguments: list[str], expected_error: str) -> None:
    command = [sys.executable, "-m", "odradek.testing.simulation", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert expected_error in done.stderr
    assert "Traceback" not in done.stderr


def test_plan_survives_a_json_round_trip() -> None:
    plans = [draw_plan(seed) for seed in range(50)]
    assert [from_json(json.loads(json.dumps(to_json(plan)))) for plan in plans] == plans
    assert {fault.kind for plan in plans for fault in plan.faults} == WITHOUT_TIERED_TOPIC


def test_plan_saved_by_an_older_version_is_loaded() -> None:
    fault = {"at_s": 1.0, "kind": "kill", "node": 1, "other": 2, "seconds": 0.5, "amount": 0.1}
    kept = {"seed": 7, "nodes": 3, "writers": 1, "transactional": 0, "tiered": False}
    expected = Fault(1.0, FaultKind.KILL, 1, 2, seconds=0.5, amount=0.1)
    assert from_json({**kept, "faults": [fault]}) == SimulationPlan(7, (expected,), 3, 1, 0)


def test_coverage_without_serving_nodes_is_rejected() -> None:
    row = to_row(simulate(SimulationPlan(0, (), nodes=1, writers=1, transactional=0)))
    with pytest.raises(AssertionError, match="KILL"):
        assert_sound([row], {FaultKind.KILL})
    down = {**row, "coverage": [("kill", "down", 1)]}
    with pytest.raises(AssertionError, match="KILL"):
        assert_sound([down], {FaultKind.KILL})
    with pytest.raises(AssertionError, match="'committed transactions': 0"):
        assert_sound([{**row, "coverage": [("kill", "broker, all in sync", 1)]}], {FaultKind.KILL})


def test_failing_plan_shrinks_to_the_faults_that_it_needs() -> None:
    plan = next(plan for seed in range(100) if len((plan := draw_plan(seed)).faults) > 4)
    needed = plan.faults[2]
    smallest = shrink(plan, lambda each: needed in each.faults)
    assert smallest.faults == (needed,)
    assert (smallest.writers, smallest.transactional) in {(plan.writers, 0), (0, 1), (0, 2)}


def test_failing_plan_is_saved_and_replayed(tmp_path: Path) -> None:
    plan = draw_plan(3)
    path = save(
        SimulationRun(plan, [Anomaly("lost write", "a record")], trace=["0.0 begins"]), tmp_path
    )
    assert load(path) == plan


def test_command_runs_seeds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "odradek.testing.simulation", "--nodes", "1"]
    options = ["--seeds", "0-1", "--jobs", "2", "--keep", str(tmp_path)]
    ended = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 runs, 0 with anomalies" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, SEEDS_AT_ONCE), ids="from_seed{}".format)
def test_thousand_seeds_have_no_anomalies(first: int, tmp_path: Path) -> None:
    """Parametrized, so that `tests.rotation` can divide the seeds."""
    rows = run_many(range(first, first + SEEDS_AT_ONCE), nodes=3, jobs=1, keep=tmp_path)
    assert_sound(list(rows), WITHOUT_TIERED_TOPIC)


def test_recovery_detects_batch_lost_before_a_roll() -> None:
    """Seed 1196, shrunk: the next segment was durable, so recovery finds no torn batch."""
    run = simulate(load(Path(__file__).with_name("seed-1196.json")))
    assert run.anomalies == []
