"""Seeds run in separate processes: the error of a run that fails, hangs or ends its process names the seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.testing.simulation import parallel_runs
from odradek.testing.simulation.parallel_runs import run_many
from odradek.testing.simulation.plan import SimulationPlan
from odradek.testing.simulation.run import simulate
from odradek.testing.simulation.summary import Summary
from odradek.testing.simulation.workload import Workload

PLANT = """
import os, sys
from odradek.testing.simulation import worker

def simulate(plan, honest=worker.simulate):
    if plan.seed == 1:
        {what}
    return honest(plan)

worker.simulate = simulate
worker.STUCK_CPU_S = 4.0
worker._work(*sys.argv[1:])
"""


def rows_of(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[str]]:
    """The anomalies of seeds 0 to 2, of which the second does that."""
    script = tmp_path / "planted.py"
    script.write_text(PLANT.format(what=what))
    monkeypatch.setattr(parallel_runs, "WORKER", [sys.executable, str(script)])
    rows = list(run_many(range(3), nodes=1, jobs=1, keep=tmp_path / "kept"))
    summary = Summary()
    for row in rows:
        summary.add(row)
    assert summary.runs == 3
    assert summary.failed == [1]
    assert "virtual hours" in summary.figures()
    assert "events a second of CPU" in summary.more_figures()
    return {row["seed"]: row["anomalies"] for row in rows}


def test_killed_worker_reports_its_seed_and_the_other_seeds_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of("os._exit(3)", tmp_path, monkeypatch)
    assert rows == {0: [], 1: ["exception: the process ended with 3"], 2: []}


@pytest.mark.slow
def test_endless_run_is_reported_as_stuck_and_the_other_seeds_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of("while True: pass", tmp_path, monkeypatch)
    assert (rows[0], rows[2]) == ([], [])
    (anomaly,) = rows[1]
    assert anomaly.startswith("stuck: ")
    assert "while True: pass" in anomaly
    kept = json.loads((tmp_path / "kept" / "seed-1.json").read_text())
    assert kept["anomalies"] == [anomaly]


def test_exception_in_a_run_is_an_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def create_topic(work: Workload) -> None:
        raise KeyError("of the simulator's own")

    monkeypatch.setattr(Workload, "create_topic", create_topic)
    run = simulate(SimulationPlan(0, (), nodes=1, writers=1, transactional=0))
    assert [each.kind for each in run.anomalies] == ["exception"]
    assert 'KeyError: "of the simulator\'s own"' in run.anomalies[0].text
    assert run.trace


@pytest.mark.slow
def test_seed_gives_the_same_run_under_any_hash_seed() -> None:
    """What was sent and what the disks hold included: nothing depends on the order of a set."""
    script = (
        "from odradek.testing.simulation.plan import draw_plan\n"
        "from odradek.testing.simulation.run import simulate\n"
        "tiered = [draw_plan(seed, tiered=True) for seed in (1, 2)]\n"
        "print(*(simulate(each).digest for each in (draw_plan(5), *tiered)))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(digests) == 1


def test_three_brokers_start_within_the_limit() -> None:
    """The first world loads modules. A busy machine takes several times what an idle one does."""
    runs = [simulate(SimulationPlan(seed, (), writers=0, transactional=0)) for seed in range(4)]
    assert all(run.is_sound for run in runs)
    assert 0 < min(run.starts_cpu_s for run in runs) < 0.2
