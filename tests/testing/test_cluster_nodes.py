"""Process faults and node states of a cluster with one node."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio

from odradek.broker.local_cluster.nodes import NodeFailed, Nodes, NodeState
from odradek.broker.local_cluster.plan import (
    HOST,
    ClusterPlan,
    ListenerAddress,
    NodePlan,
    make_plan,
)
from odradek.seams.network import Address
from odradek.seams.tcp import TcpNetwork
from odradek.testing import Cluster
from odradek.testing.cluster.links import CLIENTS
from tests.support.librdkafka_clients import create_topic, produce, read_all
from tests.support.waiting import deadline

NODE = 1


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    with Cluster(brokers=1) as running:
        yield running
        gc.collect()  # librdkafka's handles log errors if they outlive the broker


@pytest.fixture
def cluster(started: Cluster) -> Cluster:
    """The cluster, healed and running, without the faults of the last test."""
    started.heal()
    if started.state(NODE) is not NodeState.RUNNING:
        started.restart(NODE)
    return started


def test_node_is_killed_restarted_stopped_and_ended_with_the_cluster() -> None:
    with Cluster(brokers=1) as cluster:
        directory = Path(cluster.running.plan.node(NODE).directory)
        assert cluster.state(NODE) is NodeState.RUNNING
        create_topic(cluster.bootstrap, "t")
        produce(cluster.bootstrap, "t", [b"kept"])
        cluster.kill(NODE)
        assert (cluster.state(NODE), cluster.pid(NODE)) == (NodeState.DEAD, None)
        cluster.restart(NODE)
        assert [message.value() for message in read_all(cluster.bootstrap, "t", 1)] == [b"kept"]
        cluster.stop(NODE)
        assert cluster.state(NODE) is NodeState.STOPPED
        cluster.restart(NODE)
        pid = cluster.pid(NODE)
        assert pid is not None
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_node_that_exits_is_not_restarted(cluster: Cluster) -> None:
    pid = cluster.pid(NODE)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with deadline(10, "the news") as check:
        while cluster.state(NODE) is not NodeState.DEAD:
            check()


def test_paused_node_does_not_respond_until_resumed(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "paused")
    cluster.pause(NODE)
    assert cluster.state(NODE) is NodeState.PAUSED
    with pytest.raises(AssertionError, match="TIMED_OUT"):
        produce(cluster.bootstrap, "paused", [b"late"], config={"message.timeout.ms": 300})
    cluster.resume(NODE)
    produce(cluster.bootstrap, "paused", [b"in time"])


def test_clients_are_partitioned_by_the_proxy(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "cut-off")
    cluster.partition(NODE, [CLIENTS])
    with pytest.raises(AssertionError, match="TIMED_OUT"):
        produce(cluster.bootstrap, "cut-off", [b"late"], config={"message.timeout.ms": 300})
    cluster.heal()
    produce(cluster.bootstrap, "cut-off", [b"in time"])


def test_failed_start_reports_the_node_log() -> None:
    with (
        pytest.raises(Exception, match=r"num\.partitions"),
        Cluster(brokers=1, configs={"num.partitions": "none"}),
    ):
        raise AssertionError("it started")


async def test_running_cluster_has_the_same_methods_under_trio() -> None:
    async with Cluster(brokers=1) as cluster:
        await cluster.kill(NODE)
        assert cluster.state(NODE) is NodeState.DEAD
        await cluster.restart(NODE)
        assert cluster.state(NODE) is NodeState.RUNNING


def test_node_without_its_directory_fails_at_each_start() -> None:
    with Cluster(brokers=1) as cluster:
        cluster.kill(NODE)
        directory = Path(cluster.running.plan.node(NODE).directory)
        elsewhere = directory.rename(directory.with_name("elsewhere"))
        for _ in range(2):
            with pytest.raises(NodeFailed, match=f"node 1 cannot be started: .*{directory}"):
                cluster.restart(NODE)
            assert (cluster.state(NODE), cluster.pid(NODE)) == (NodeState.DEAD, None)
        elsewhere.rename(directory)
        cluster.restart(NODE)
        assert cluster.state(NODE) is NodeState.RUNNING


class Sleeping:
    """Software that only sleeps, and ends at SIGTERM."""

    async def format(self, plan: ClusterPlan) -> None:
        pass

    def command(self, node: NodePlan) -> Sequence[str]:
        return ["sleep", "100"]


def one_node(path: Path) -> ClusterPlan:
    addresses = (ListenerAddress(Address(HOST, port), Address(HOST, port)) for port in (9092, 9093))
    plan = make_plan(brokers=1, directory=str(path), new_id=lambda: "id", addresses=addresses)
    Path(plan.node(NODE).directory).mkdir()
    return plan


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
async def test_node_is_stopped_while_its_process_starts(
    again: bool, tmp_path: Path, nursery: trio.Nursery
) -> None:
    nodes = Nodes(
        one_node(tmp_path),
        Sleeping(),
        TcpNetwork(),
        nursery,
        output=lambda node: subprocess.DEVNULL,
    )
    if again:
        await nodes.start(NODE)
        assert await nodes.stop(NODE)
    nursery.start_soon(nodes.start, NODE)
    while nodes.state(NODE) is NodeState.STOPPED:
        await trio.lowlevel.checkpoint()
    assert nodes.pid(NODE) is None
    with trio.fail_after(5):
        assert await nodes.stop(NODE)
    assert (nodes.state(NODE), nodes.pid(NODE)) == (NodeState.STOPPED, None)


def test_running_cluster_rejects_a_second_enter_and_accepts_a_second_exit() -> None:
    with Cluster(brokers=1) as cluster:
        pid = cluster.pid(NODE)
        with pytest.raises(RuntimeError, match="runs already"):
            cluster.__enter__()
        assert cluster.pid(NODE) == pid
    cluster.__exit__(None, None, None)


async def test_running_cluster_rejects_a_second_enter_under_trio() -> None:
    wanted = Cluster(brokers=1)
    async with wanted as cluster:
        with pytest.raises(RuntimeError, match="runs already"):
            await wanted.__aenter__()
        assert cluster.pid(NODE) is not None


def test_unknown_node_raises_value_error(cluster: Cluster) -> None:
    for verb in (cluster.kill, cluster.restart, cluster.pause, cluster.partition, cluster.state):
        with pytest.raises(ValueError, match="there is no node 7, only 1"):
            verb(7)
    with pytest.raises(ValueError, match="there is no node 7, only 1"):
        cluster.partition(NODE, [7])
