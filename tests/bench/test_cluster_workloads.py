"""Workloads of clusters, on three brokers of Odradek, return all of their metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from odradek.bench.model import Target, Workload
from odradek.bench.peers import PEERS
from odradek.bench.peers.clusters import OF_A_NODE, TimedSoftware
from odradek.bench.peers.odradek import Odradek
from odradek.bench.workloads import clusters
from odradek.broker.local_cluster.plan import ClusterPlan, ListenerAddress, NodePlan, make_plan
from odradek.seams.network import Address


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    peer = PEERS["odradek"]
    assert isinstance(peer, Odradek)
    with peer.start_cluster(tmp_path) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("workload", clusters.WORKLOADS, ids=lambda workload: workload.name)
def test_cluster_workloads_return_all_metrics(
    workload: Workload,
    target: Target,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clusters, "SETTLE_S", 0.5)
    monkeypatch.setattr(clusters, "RECORDS", 20_000)
    monkeypatch.setattr(clusters, "WARM_UP_S", 0.5)
    if isinstance(workload, clusters.ReplicatedProduce):
        request.getfixturevalue("load_program_is_there")
    assert target.settings["offsets.topic.replication.factor"] == "3"
    assert not set(target.settings) & OF_A_NODE
    values = workload.run(target).values
    assert values.keys() == {metric.name for metric in workload.metrics}
    assert all(value >= 0 for value in values.values())
    if isinstance(workload, clusters.FailOver):
        assert values["fail_over_ms"] > 1000, "the leader's session was not over"


class SlowToFormat:
    """Formatting is the last thing that it does."""

    def __init__(self) -> None:
        self.formatted_at = 0.0

    async def format(self, plan: ClusterPlan) -> None:
        self.formatted_at = time.monotonic()

    def command(self, node: NodePlan) -> Sequence[str]:
        return ["true", str(node.node_id)]


async def test_start_time_of_a_cluster_is_that_of_its_first_process() -> None:
    addresses = (Address("127.0.0.1", port) for port in range(1000, 1100))
    plan = make_plan(
        brokers=2,
        directory="/nowhere",
        new_id=lambda: "id",
        addresses=(ListenerAddress(each, each) for each in addresses),
    )
    software = SlowToFormat()
    timed = TimedSoftware(software)
    await timed.format(plan)
    assert timed.exec_started_at is None
    commands = [timed.command(plan.nodes[0])]
    first = timed.exec_started_at
    commands.append(timed.command(plan.nodes[1]))
    assert commands == [["true", "1"], ["true", "2"]]
    assert first is not None
    assert software.formatted_at <= first == timed.exec_started_at
