"""Simulated quorums of three to five nodes with faults, and mutants that the simulation must find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek.replication.raft.messages import FetchResponse
from tests.replication.raft.quorum_invariants import Caller, Violation
from tests.replication.raft.quorum_mutants import FOUND_OFTEN, FOUND_SELDOM, FOUND_WITH_LOSSES
from tests.replication.raft.quorum_simulation import (
    FaultRates,
    Simulation,
    simulate,
    simulate_losses,
)

STORM = FaultRates(loss=0.1, refusal=0.01, crash_at_disk=0.2, slow_flush=0.1, batch=1, pause_ms=30)


@pytest.mark.parametrize("hundred", range(3))
def test_quorum_keeps_invariants_and_recovers(hundred: int) -> None:
    progress = [simulate(seed) for seed in range(100 * hundred, 100 * hundred + 100)]
    assert sum(len(run.history.committed) for run in progress) > 1000
    assert sum(len(run.history.leaders) for run in progress) > 300


@pytest.mark.slow
def test_thousand_simulated_quorums_keep_invariants() -> None:
    for seed in range(1000, 2000):
        simulate(seed)


def test_committed_records_survive_a_voter_that_loses_flushed_records() -> None:
    progress = [simulate_losses(seed) for seed in range(100)]
    assert sum(run.losses for run in progress) > 200
    assert sum(len(run.history.committed) for run in progress) > 1000


def _is_found(seeds: range, run: Callable[[int, FaultRates | None], Simulation] = simulate) -> bool:
    for seed in seeds:
        try:
            run(seed, STORM)
        except Violation:
            return True
    return False


@pytest.mark.parametrize("mutant", FOUND_OFTEN, ids=lambda each: each.__name__)
def test_simulation_finds_mutant(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert _is_found(range(200))


@pytest.mark.parametrize("mutant", FOUND_WITH_LOSSES, ids=lambda each: each.__name__)
def test_simulation_of_losses_finds_mutant(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert _is_found(range(200), simulate_losses)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", FOUND_SELDOM, ids=lambda each: each.__name__)
def test_simulation_finds_rare_mutant(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert _is_found(range(10_000))


def test_same_seed_repeats_the_run() -> None:
    first, second = simulate(7), simulate(7)
    assert first.now == second.now
    for reported in ("leaders", "votes", "committed"):
        assert getattr(first.history, reported) == getattr(second.history, reported)


def test_response_to_request_before_restart_is_dropped() -> None:
    run = Simulation(0)
    run.reliable = True
    node = run.nodes[1]
    asked_before = Caller(node.id, node.run_number, number=1)
    run._crash(node)
    run._restart(node)
    assert node.quorum is not None
    news = FetchResponse(epoch=9)
    run._deliver_response(asked_before, news)
    assert node.quorum.epoch == 0
    run._deliver_response(asked_before._replace(run_number=node.run_number), news)
    assert node.quorum.epoch == 9
