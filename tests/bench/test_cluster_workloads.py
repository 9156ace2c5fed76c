"""The workloads of clusters, on three brokers of ours: each gives every value it promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.bench.load import LoadUnavailable, load_program
from odradek.bench.model import Target, Workload
from odradek.bench.peers import PEERS
from odradek.bench.peers.odradek import Odradek
from odradek.bench.workloads import clusters

pytestmark = pytest.mark.slow


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    peer = PEERS["odradek"]
    assert isinstance(peer, Odradek)
    with peer.start_cluster(tmp_path) as started:
        yield started


@pytest.mark.parametrize("workload", clusters.WORKLOADS, ids=lambda workload: workload.name)
def test_every_value_is_there(
    workload: Workload, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "SETTLE_S", 0.5)
    monkeypatch.setattr(clusters, "RECORDS", 20_000)
    if isinstance(workload, clusters.ReplicatedProduce):
        try:
            load_program()
        except LoadUnavailable as lacking:
            pytest.skip(str(lacking))
    values = workload.run(target).values
    assert values.keys() == {metric.name for metric in workload.metrics}
    assert all(value >= 0 for value in values.values())
    if isinstance(workload, clusters.FailOver):
        assert values["fail_over_ms"] > 1000, "the leader's session was not over"
