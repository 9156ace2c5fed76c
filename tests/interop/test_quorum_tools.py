"""Apache Kafka's tools against four Odradek brokers, three of them controllers: the quorum and controller
operations.

Voters are added and removed, a broker is unregistered, features change, an unclean leader election takes
place, a reassignment is cancelled, and kafka-dump-log and kafka-metadata-shell read the metadata log.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from odradek.testing.cluster.cluster import Cluster
from tests.interop.cluster_tools import TIMEOUT_S, create, tool, until
from tests.support.kafka_tools import ToolRun, run_tool
from tests.support.waiting import deadline

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The brokers; those that a test stopped are running again after it."""
    configs = {"auto.leader.rebalance.enable": "false", "broker.session.timeout.ms": "3000"}
    with Cluster(brokers=4, configs=configs) as cluster:
        yield cluster


def quorum(cluster: Cluster) -> list[list[str]]:
    """Rows of kafka-metadata-quorum: node, directory, log end, lag, …, status."""
    shown = tool(cluster, "metadata-quorum", "describe", "--replication").lines[1:]
    return [row.split() for row in shown]


def wait_for_roles(cluster: Cluster, voters: Sequence[int]) -> None:
    """Wait until exactly these nodes are voters, and all others are observers."""
    with deadline(TIMEOUT_S, f"{voters} to vote") as check:
        while True:
            status = {int(row[0]): row[-1] for row in quorum(cluster)}
            if sorted(status) == [1, 2, 3, 4] and sorted(
                node for node, role in status.items() if role != "Observer"
            ) == list(voters):
                return
            check(0.2)


@pytest.mark.parametrize("role", ["Follower", "Leader"])
def test_controller_is_removed_and_added(cluster: Cluster, role: str) -> None:
    """The leader can be removed too; another controller is then elected."""
    wait_for_roles(cluster, [1, 2, 3])
    node, directory = next((row[0], row[1]) for row in quorum(cluster) if row[-1] == role)
    removed = tool(
        cluster, "metadata-quorum", "remove-controller",
        "--controller-id", node, "--controller-directory-id", directory,
    )  # fmt: skip
    assert f"KRaft controller {node} with directory id {directory}" in removed.stdout
    wait_for_roles(cluster, [each for each in (1, 2, 3) if each != int(node)])
    config = cluster.running.plan.node(int(node)).config_file
    added = tool(cluster, "metadata-quorum", "--command-config", config, "add-controller")
    assert f"Added controller {node}" in added.stdout
    wait_for_roles(cluster, [1, 2, 3])


def test_unregistered_broker_registers_again(cluster: Cluster) -> None:
    cluster.stop(4)
    gone = tool(cluster, "cluster", "unregister", "--id", "4")
    assert "Broker 4 is no longer registered." in gone.stdout
    assert not any(row.startswith("4 ") for row in endpoints(cluster))
    cluster.restart(4)
    assert any(row.startswith("4 ") for row in endpoints(cluster))


def endpoints(cluster: Cluster) -> list[str]:
    return tool(cluster, "cluster", "list-endpoints", "--include-fenced-brokers").lines[1:]


def test_feature_is_downgraded_and_upgraded_on_all_nodes(cluster: Cluster) -> None:
    for direction, level in (("downgrade", "0"), ("upgrade", "1")):
        done = tool(cluster, "features", direction, "--feature", f"share.version={level}")
        assert f"share.version was {direction}d to {level}." in done.stdout
        for broker in cluster.brokers:
            where = ("--bootstrap-server", cluster.address(broker))
            with deadline(TIMEOUT_S, f"broker {broker} to show level {level}") as check:
                while not re.search(
                    rf"share.version\s.*FinalizedVersionLevel: {level}\s",
                    run_tool("features", *where, "describe").stdout,
                ):
                    check()


def test_unclean_election_elects_lagging_replica(cluster: Cluster) -> None:
    create(cluster, "unclean", "4:3")
    create(cluster, "guarded", "4:3")
    tool(
        cluster, "configs", "--alter", "--entity-type", "topics", "--entity-name", "guarded",
        "--add-config", "min.insync.replicas=2",
    )  # fmt: skip
    cluster.stop(3)
    under = until(cluster, "guarded", "topics", "--describe", "--under-min-isr-partitions")
    assert [row.split()[1] for row in under.lines] == ["guarded"]
    cluster.stop(4)
    cluster.restart(3)
    rows = until(cluster, "unclean", "topics", "--describe", "--unavailable-partitions").lines
    assert [row.split()[1] for row in rows] == ["unclean"]
    elected = tool(
        cluster, "leader-election", "--election-type", "unclean",
        "--topic", "unclean", "--partition", "0",
    )  # fmt: skip
    assert "Successfully completed leader election (UNCLEAN)" in elected.stdout
    until(cluster, r"Leader: 3\s", "topics", "--describe", "--topic", "unclean")
    cluster.restart(4)
    until(cluster, r"Isr: (3,4|4,3)\s", "topics", "--describe", "--topic", "unclean")


def test_reassignment_is_listed_and_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, "slow", "1:2")
    lines = b"".join(b"%0999d\n" % number for number in range(1000))
    tool(cluster, "console-producer", "--topic", "slow", stdin=lines)
    file = tmp_path / "plan.json"
    row = {"topic": "slow", "partition": 0, "replicas": [3, 4]}
    file.write_text(json.dumps({"version": 1, "partitions": [row]}))
    words = ("--reassignment-json-file", str(file))
    tool(cluster, "reassign-partitions", "--execute", *words, "--throttle", "1000")
    listed = tool(cluster, "reassign-partitions", "--list").stdout
    assert re.search(r"slow-0: replicas: 3,4,1,2. adding: 3,4. removing: 1,2.", listed)
    verified = tool(cluster, "reassign-partitions", "--verify", *words).stdout
    assert "Reassignment of partition slow-0 is still in progress." in verified
    cancelled = tool(cluster, "reassign-partitions", "--cancel", *words).stdout
    assert "Successfully cancelled partition reassignment for: slow-0" in cancelled
    until(cluster, r"Replicas: 1,2\s", "topics", "--describe", "--topic", "slow")
    until(cluster, "No partition reassignments found", "reassign-partitions", "--list")


def test_metadata_log_is_read_by_kafka_tools(cluster: Cluster, tmp_path: Path) -> None:
    """The metadata logs of a follower and of a broker that is not a controller."""
    create(cluster, "shown", "1:2:3,4:1:2")
    for node in (2, 4):
        metadata = Path(cluster.running.plan.node(node).log_directory) / "__cluster_metadata-0"
        (log,) = metadata.glob("*.log")
        running = shell(log, "ls", "/")
        assert running.code == 1
        assert "Unable to lock" in running.stderr
        copy = tmp_path / f"node-{node}" / metadata.name / log.name
        copy.parent.mkdir(parents=True)
        with deadline(TIMEOUT_S, f"node {node}, and the shell, to know all of it") as check:
            while True:
                shutil.copy(log, copy)
                found = shell(copy, "tree", "/image/topics/byName/shown").stdout
                broker = shell(copy, "cat", "/image/cluster/brokers/4").stdout
                if "replicas=[4, 1, 2]" in found and "BrokerRegistration(id=4" in broker:
                    break
                check(0.2)
        assert re.search(r"replicas=\[1, 2, 3\].*isr=\[1, 2, 3\].*leader=1", found)
        words = ("--cluster-metadata-decoder", "--files", str(copy))
        dumped = run_tool("dump-log", *words).stdout
        records = [json.loads(text) for text in re.findall(r"payload: (\{.*\})", dumped)]
        names = [each["data"]["name"] for each in records if each["type"] == "TOPIC_RECORD"]
        assert "shown" in names
        assert dumped.count("isvalid: true") == dumped.count("baseOffset:")
        assert "KRaftVoters" in dumped


def shell(log: Path, *words: str) -> ToolRun:
    """Output of Kafka's shell, which loads the file in the background and prints what it has loaded so
    far.
    """
    return run_tool("metadata-shell", "--snapshot", str(log), *words, check=False)
