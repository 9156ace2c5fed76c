"""Apache Kafka's tools against three Odradek brokers: description of the cluster, elections and
reassignments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.testing.cluster.cluster import Cluster
from tests.interop.cluster_tools import TIMEOUT_S, create, tool, until
from tests.support.kafka_tools import run_tool
from tests.support.waiting import deadline

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, configs={"auto.leader.rebalance.enable": "false"}) as cluster:
        yield cluster


def test_quorum_is_described(cluster: Cluster) -> None:
    status = tool(cluster, "metadata-quorum", "describe", "--status").stdout
    assert re.search(r"LeaderId:\s+[123]\n", status)
    assert re.search(r"CurrentVoters:.*\"id\": 1.*\"id\": 2.*\"id\": 3", status)
    with deadline(TIMEOUT_S, "followers without lag") as check:
        while True:
            rows = tool(cluster, "metadata-quorum", "describe", "--replication").lines[1:]
            assert [row.split()[-1] for row in rows].count("Leader") == 1
            assert [row.split()[-1] for row in rows].count("Follower") == 2
            if max(int(row.split()[3]) for row in rows) <= 1:
                break
            check()


def test_cluster_lists_nodes(cluster: Cluster) -> None:
    assert "Cluster ID: " in tool(cluster, "cluster", "cluster-id").stdout
    brokers = tool(cluster, "cluster", "list-endpoints").lines[1:]
    assert [row.split()[0] for row in brokers] == ["1", "2", "3"]
    features = tool(cluster, "features", "describe").stdout
    assert "metadata.version" in features
    versions = tool(cluster, "broker-api-versions").stdout
    for broker in cluster.brokers:
        assert f"(id: {broker} rack: null" in versions


def test_kafka_topics_filters_show_stopped_broker(cluster: Cluster) -> None:
    """Under-replicated, under and at min.insync.replicas, unavailable; no partition matches after the
    restart.
    """
    create(cluster, "filtered", "1:2:3,2:3:1,3:1:2")
    tool(
        cluster, "configs", "--alter", "--entity-type", "topics", "--entity-name", "filtered",
        "--add-config", "min.insync.replicas=2",
    )  # fmt: skip
    create(cluster, "alone", "3")
    filters = ("--under-replicated-partitions", "--unavailable-partitions")
    for each in filters:
        assert tool(cluster, "topics", "--describe", each).lines == []
    cluster.stop(3)
    try:
        rows = until(
            cluster,
            "filtered.*Partition: 2",
            "topics",
            "--describe",
            "--under-replicated-partitions",
        ).lines
        assert sum("Topic: filtered" in row for row in rows) == 3
        rows = tool(cluster, "topics", "--describe", "--at-min-isr-partitions").lines
        assert sum("Topic: filtered" in row for row in rows) == 3
        rows = tool(cluster, "topics", "--describe", "--unavailable-partitions").lines
        assert [row.split()[1] for row in rows] == ["alone"]
    finally:
        cluster.restart(3)
    with deadline(TIMEOUT_S, "all in sync again") as check:
        while any(tool(cluster, "topics", "--describe", each).lines for each in filters):
            check()


def test_leaders_are_elected(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, "led", "3:1:2,3:2:1")
    cluster.stop(3)
    cluster.restart(3)
    with deadline(TIMEOUT_S, "broker 3 in sync, and no leader") as check:
        while True:
            rows = tool(cluster, "topics", "--describe", "--topic", "led").lines[1:]
            in_sync = [re.search(r"Isr: (\S+)", row) for row in rows]
            if all(found is not None and "3" in found[1].split(",") for found in in_sync):
                break
            check()
    assert "Leader: 3" not in "".join(rows)
    file = tmp_path / "elect.json"
    file.write_text(json.dumps({"partitions": [{"topic": "led", "partition": 0}]}))
    done = tool(
        cluster, "leader-election", "--election-type", "preferred", "--path-to-json-file", str(file)
    ).stdout
    assert "Successfully completed leader election (PREFERRED) for partitions led-0" in done
    until(cluster, r"Partition: 0\s+Leader: 3", "topics", "--describe", "--topic", "led")
    tool(cluster, "leader-election", "--election-type", "preferred", "--all-topic-partitions")
    until(cluster, r"Partition: 1\s+Leader: 3", "topics", "--describe", "--topic", "led")


def test_replicas_are_reassigned(cluster: Cluster, tmp_path: Path) -> None:
    """Replicas move with their records under a throttle, which --verify removes."""
    create(cluster, "moving", "1,2")
    lines = "".join(f"record {number}\n" for number in range(500)).encode()
    tool(cluster, "console-producer", "--topic", "moving", stdin=lines)
    plan = {
        "version": 1,
        "partitions": [
            {"topic": "moving", "partition": 0, "replicas": [2, 3]},
            {"topic": "moving", "partition": 1, "replicas": [3, 1, 2]},
        ],
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    asked = ("--reassignment-json-file", str(file))
    done = tool(cluster, "reassign-partitions", *asked, "--execute", "--throttle", "10000000")
    assert "Successfully started partition reassignments for moving-0,moving-1" in done.stdout
    with deadline(TIMEOUT_S, "the reassignments to be complete") as check:
        while True:
            found = tool(cluster, "reassign-partitions", *asked, "--verify").stdout
            if found.count("is completed") == 2 and "still in progress" not in found:
                break
            check()
    assert "Clearing broker-level throttles" in found
    rows = tool(cluster, "topics", "--describe", "--topic", "moving").lines[1:]
    placed = [re.search(r"Replicas: (\S+)\s+Isr: (\S+)", row) for row in rows]
    assert [found and found[1] for found in placed] == ["2,3", "3,1,2"]
    assert [found and sorted(found[2].split(",")) for found in placed] == [["2", "3"], list("123")]
    offsets = tool(cluster, "get-offsets", "--topic", "moving").lines
    assert sum(int(row.rsplit(":", 1)[1]) for row in offsets) == 500


def test_tools_connect_to_controllers(cluster: Cluster) -> None:
    """KIP-919: --bootstrap-controller."""
    where = ("--bootstrap-controller", controllers(cluster))
    status = run_tool("metadata-quorum", *where, "describe", "--status").check().stdout
    assert re.search(r"LeaderId:\s+[123]\n", status)
    endpoints = run_tool("cluster", "list-endpoints", *where).check().lines[1:]
    assert [row.split()[0] for row in endpoints] == ["1", "2", "3"]
    assert {row.split()[-1] for row in endpoints} == {"controller"}
    run_tool(
        "configs", *where, "--alter", "--entity-type", "brokers", "--entity-default",
        "--add-config", "log.cleaner.threads=2",
    ).check()  # fmt: skip
    until(
        cluster, "log.cleaner.threads=2", "configs", "--describe", "--entity-type", "brokers",
        "--entity-default",
    )  # fmt: skip


def controllers(cluster: Cluster) -> str:
    endpoints = [node.quorum for node in cluster.running.plan.nodes if node.quorum is not None]
    return ",".join(str(endpoint.advertised) for endpoint in endpoints)
