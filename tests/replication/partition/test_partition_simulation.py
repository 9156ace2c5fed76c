"""Simulated partitions with faults, and mutants that the simulation must find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.replication.partition.partition_mutants import MUTANTS
from tests.replication.partition.partition_simulation import simulate
from tests.replication.partition.simulated_partition import Violation


def test_simulated_partition_keeps_invariants_and_recovers() -> None:
    worlds = [simulate(seed) for seed in range(200)]
    assert sum(len(world.committed) for world in worlds) > 3000
    assert sum(world.elections for world in worlds) > 500
    described = "\n".join(line for world in worlds for line in world.lines)
    for way in (
        "truncates to",
        "truncates fully and starts at",
        "OffsetForLeaderEpoch",
        "FENCED_LEADER_EPOCH",
        "from the tier",
    ):
        assert described.count(way) > 10, way
    for refused in ("ineligible_replica", "invalid_update_version", "fenced_leader_epoch"):
        assert described.count(refused) > 0, refused


@pytest.mark.slow
def test_thousand_simulated_partitions_keep_invariants() -> None:
    for seed in range(1000, 2000):
        simulate(seed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_simulation_finds_mutant(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert _found_at(range(1000)) is not None


def _found_at(seeds: range) -> int | None:
    for seed in seeds:
        try:
            simulate(seed)
        except Violation:
            return seed
    return None


def test_simulation_is_deterministic_by_seed() -> None:
    first, second = simulate(7), simulate(7)
    assert first.lines == second.lines
    assert first.describe_replicas() == second.describe_replicas()
