"""The workloads of tiered storage, on three brokers: each gives every value it promises.

`ODRADEK_INTEROP_BROKER=kafka` runs them on Apache Kafka's, as the interop tests are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.bench.model import Target, TieredPeer
from odradek.bench.peers import PEERS
from odradek.bench.workloads import rebuild, tiering

KINDS = [name.strip() for name in os.environ.get("ODRADEK_INTEROP_BROKER", "odradek").split(",")]
MB = 1 << 20


@pytest.fixture(params=KINDS)
def target(
    request: pytest.FixtureRequest, load_program_is_there: None, tmp_path: Path
) -> Iterator[Target]:
    peer = PEERS[request.param]
    assert isinstance(peer, TieredPeer)
    peer.obtain()
    with peer.start_tiered(tmp_path) as started:
        yield started


def test_topic_kinds_alternate_on_each_peer() -> None:
    turns = [tiering.order(peer) for _ in range(2) for peer in ("one", "other")]
    assert turns == [("off", "on")] * 2 + [("on", "off")] * 2


@pytest.mark.slow
def test_produce_while_tiering_returns_all_metrics(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiering, "SECONDS", 2.0)
    monkeypatch.setattr(tiering, "WARM_UP_S", 0.5)
    monkeypatch.setattr(tiering, "SEGMENT_BYTES", 2 * MB)
    monkeypatch.setattr(tiering, "LOCAL_BYTES", 4 * MB)
    monkeypatch.setattr(tiering, "HISTORY_MB", 20)
    monkeypatch.setattr(tiering, "RATE", 1000)
    workload = tiering.ProduceWhileTiering("1")
    values = workload.run(target).values
    assert values.keys() == {metric.name for metric in workload.metrics}
    assert all(value > 0 for value in values.values())


@pytest.mark.slow
def test_rebuild_workload_returns_all_metrics(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "MB_PER_GIB", 60)
    monkeypatch.setattr(rebuild, "SEGMENT_BYTES", 2 * MB)
    monkeypatch.setattr(rebuild, "LOCAL_BYTES", 4 * MB)
    monkeypatch.setattr(rebuild, "BEFORE_S", 1.0)
    monkeypatch.setattr(rebuild, "RATE", 200)
    workload = rebuild.Rebuild(1)
    values = workload.run(target).values
    assert values.keys() == {metric.name for metric in workload.metrics}
    assert all(value > 0 for value in values.values())
