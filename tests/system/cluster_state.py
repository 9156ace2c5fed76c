"""State of a cluster as its brokers report it: leaders, in-sync replicas, the active controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import trio
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.client.metadata import Cluster as Client
from odradek.client.metadata import open_cluster
from odradek.client.reassignment_admin import alter_reassignments, list_reassignments
from odradek.protocol import apis
from odradek.protocol.topics import TopicPartition
from odradek.seams.tcp import TcpNetwork
from odradek.testing import Cluster
from tests.support.raw_client import RawClient
from tests.support.waiting import deadline

T = TypeVar("T")

TIMEOUT_S = 60.0


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int,
    config: Mapping[str, str],
    *,
    replicas: int = 3,
    assignment: Sequence[Sequence[int]] | None = None,
) -> None:
    """Create a topic, with the given replica assignment if there is one, and wait until all replicas are
    in sync.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    if assignment is None:
        topic = NewTopic(name, partitions, replicas, config=dict(config))
    else:
        rows = [list(row) for row in assignment]
        topic = NewTopic(name, partitions, replica_assignment=rows, config=dict(config))
        replicas = len(rows[0])
    for future in admin.create_topics([topic]).values():
        future.result(TIMEOUT_S)
    wait_until_in_sync(cluster, name, replicas, partitions)


def partition(cluster: Cluster, topic: str, index: int = 0, *, broker: int | None = None) -> Any:
    """Metadata of a partition from `broker`, or from any broker; None while the broker does not have it."""
    bootstrap = cluster.bootstrap if broker is None else cluster.address(broker)
    admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 5000, "log_level": 0})
    found = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    return found.partitions.get(index)


def leader(cluster: Cluster, topic: str, index: int = 0, *, broker: int | None = None) -> int:
    """Id of the leader; -1 while there is none."""
    found = partition(cluster, topic, index, broker=broker)
    return -1 if found is None else int(found.leader)


def wait_for_leader(
    cluster: Cluster, topic: str, wanted: Callable[[int], bool], *, broker: int
) -> int:
    """Wait until `broker` reports a wanted leader of the first partition; returns its id."""
    with deadline(TIMEOUT_S, f"another leader of {topic}") as check:
        while (found := leader(cluster, topic, broker=broker)) < 0 or not wanted(found):
            check(0.1)
    return found


def wait_until_in_sync(cluster: Cluster, topic: str, replicas: int, partitions: int) -> None:
    """Wait until every broker reports `replicas` in-sync replicas of every partition."""
    with deadline(TIMEOUT_S, f"{replicas} replicas of {topic} in sync") as check:
        for broker in cluster.brokers:
            for index in range(partitions):
                while True:
                    found = partition(cluster, topic, index, broker=broker)
                    if found is not None and len(found.isrs) == replicas and found.leader >= 0:
                        break
                    check(0.1)


def active_controller(cluster: Cluster, *, broker: int) -> int:
    """Leader of the metadata quorum from DescribeQuorum, which a broker forwards; -1 while there is none."""
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    with RawClient(cluster.address(broker)) as client:
        response = client.ask(apis.DESCRIBE_QUORUM, 2, {"topics": topics})
    if response.error_code or not response.topics:
        return -1
    return int(response.topics[0].partitions[0].leader_id)


def wait_for_controller(cluster: Cluster, wanted: Callable[[int], bool], *, broker: int) -> int:
    with deadline(TIMEOUT_S, "another active controller") as check:
        while (found := active_controller(cluster, broker=broker)) < 0 or not wanted(found):
            check(0.1)
    return found


def wait_for_in_sync(cluster: Cluster, topic: str, wanted: set[int], *, broker: int) -> None:
    """Wait until `broker` reports exactly these in-sync replicas of the first partition."""
    with deadline(TIMEOUT_S, f"{wanted} to be in sync") as check:
        while (found := partition(cluster, topic, broker=broker)) is None or set(
            found.isrs
        ) != wanted:
            check(0.1)


def reassign(cluster: Cluster, topic: str, wanted: Mapping[int, Sequence[int]]) -> None:
    """Start a reassignment of partitions to these replicas; AssertionError if one is refused."""
    rows = {TopicPartition(topic, index): replicas for index, replicas in wanted.items()}
    assert _ask(cluster, lambda client: alter_reassignments(client, rows)) == {}


def wait_until_reassigned(
    cluster: Cluster, topic: str, wanted: Mapping[int, Sequence[int]]
) -> None:
    """Wait until no reassignment is active, and every broker reports these replicas, all of them in sync."""
    with deadline(TIMEOUT_S, f"{topic} to be reassigned") as check:
        while _ask(cluster, list_reassignments):
            check(0.1)
        for broker in cluster.brokers:
            for index, replicas in wanted.items():
                while True:
                    found = partition(cluster, topic, index, broker=broker)
                    if found is not None and set(found.replicas) == set(found.isrs) == set(
                        replicas
                    ):
                        break
                    check(0.1)


def _ask(cluster: Cluster, question: Callable[[Client], Awaitable[T]]) -> T:
    """Send requests with retries while no broker responds, for example during restarts."""

    async def asked() -> T:
        async with open_cluster(TcpNetwork(), cluster.bootstrap, timeout_s=5) as client:
            return await client.retrying(lambda: question(client), timeout_s=TIMEOUT_S)

    return trio.run(asked)
