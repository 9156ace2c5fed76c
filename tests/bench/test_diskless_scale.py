"""Costs of diskless topics at scale (KIP-1164, D-21, D-24)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from odradek.bench import diskless_scale
from odradek.bench.diskless_scale import (
    BATCH_SIZES,
    BROKERS,
    SCENARIOS,
    new_cluster,
    page,
    run_day,
    run_scenario,
    scenario_table,
)
from odradek.seams.entropy import SeededEntropy

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("brokers", "kip_bound"), SCENARIOS)
def test_commits_are_within_the_bounds_of_the_kip(brokers: int, kip_bound: str) -> None:
    """D-24: the KIP's scenarios 1 to 6."""
    row = run_scenario(brokers, kip_bound, 108, random.Random(5))
    assert row.largest_commits <= row.bound <= int(kip_bound)
    assert row.bound <= 2
    assert row.mean_commits <= row.mean_anywhere
    assert row.largest_anywhere == min(brokers - 1, 12)


def test_day_follows_from_rates_and_prices() -> None:
    source = random.Random(5)
    cluster = new_cluster(BROKERS, source, partitions=12_000)
    day = run_day(cluster, BATCH_SIZES[0], 108, SeededEntropy(source), source)
    assert day.objects * day.object_bytes == pytest.approx(86_400e9)
    assert day.put_dollars == pytest.approx(day.objects * 5e-6)
    assert day.owners == pytest.approx(1)
    assert 0.85 < day.commits / day.objects < 0.95
    assert day.objects < day.gets_whole < day.gets_coalesced < day.gets_of_members
    assert day.gets_whole < 2.5 * day.objects
    assert diskless_scale.classic_dollars() == pytest.approx(5760)


@pytest.mark.slow
def test_page_is_in_the_documentation() -> None:
    """Numbers of a smaller run differ, but not its text and bounds."""
    written = (DOCS / "diskless-scale.md").read_text()
    small = page(12, 1)
    prose = [line for line in small.splitlines() if not line.startswith(("|", "`python"))]
    assert [line for line in written.splitlines() if not line.startswith(("|", "`python"))] == prose
    for brokers, kip_bound in SCENARIOS[:2]:
        row = scenario_table([run_scenario(brokers, kip_bound, 12, random.Random(1))])[-1]
        assert row.split(" | ")[:5] == next(
            line.split(" | ")[:5]
            for line in written.splitlines()
            if line.startswith(f"| {brokers} ")
        )
