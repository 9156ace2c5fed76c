"""Workloads of diskless topics, on three brokers: each returns a value for every metric."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.bench.model import DisklessPeer, Target, Workload
from odradek.bench.peers import PEERS
from odradek.bench.workloads import diskless


@pytest.fixture
def target(load_program_is_there: None, tmp_path: Path) -> Iterator[Target]:
    peer = PEERS["odradek"]
    assert isinstance(peer, DisklessPeer)
    peer.obtain()
    with peer.start_diskless(tmp_path) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("workload", diskless.WORKLOADS, ids=lambda each: each.name)
def test_diskless_workload_returns_all_metrics(
    target: Target, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diskless, "WARM_UP_S", 0.5)
    monkeypatch.setattr(diskless, "LATENCY_S", 2.0)
    monkeypatch.setattr(diskless, "RATE", 200)
    monkeypatch.setattr(diskless, "RECORDS", 2000)
    monkeypatch.setattr(diskless, "COMMITS_S", 1.0)
    values = dict(workload.run(target).values)
    assert values.keys() == {metric.name for metric in workload.metrics}
    assert values.pop("excess_ms", 0.0) >= 0
    assert all(value > 0 for value in values.values())
