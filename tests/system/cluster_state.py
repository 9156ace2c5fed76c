"""What a cluster says of itself: leaders, in-sync replicas, the active controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import trio
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.client.consumer import TopicPartition
from odradek.client.metadata import Cluster as Client
from odradek.client.metadata import open_cluster
from odradek.client.reassignment_admin import alter_reassignments, list_reassignments
from odradek.protocol import apis
from odradek.seams.tcp import TcpNetwork
from odradek.testing import Cluster
from tests.support.broker_process import deadline
from tests.support.raw_client import RawClient

T = TypeVar("T")

PATIENCE_S = 60.0


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int,
    config: Mapping[str, str],
    *,
    replicas: int = 3,
    assignment: Sequence[Sequence[int]] | None = None,
) -> None:
    """Create it (with these replicas, if an assignment says so), and wait until all are in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    if assignment is None:
        topic = NewTopic(name, partitions, replicas, config=dict(config))
    else:
        rows = [list(row) for row in assignment]
        topic = NewTopic(name, partitions, replica_assignment=rows, config=dict(config))
        replicas = len(rows[0])
    for future in admin.create_topics([topic]).values():
        future.result(PATIENCE_S)
    wait_until_in_sync(cluster, name, replicas, partitions)


def partition(cluster: Cluster, topic: str, index: int = 0, *, broker: int | None = None) -> Any:
    """What a broker (any, unless one is asked for) shows of a partition; None while it shows none."""
    bootstrap = cluster.bootstrap if broker is None else cluster.address(broker)
    admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 5000, "log_level": 0})
    found = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic]
    return found.partitions.get(index)


def leader(cluster: Cluster, topic: str, index: int = 0, *, broker: int | None = None) -> int:
    """The leader's id; -1 while there is none."""
    found = partition(cluster, topic, index, broker=broker)
    return -1 if found is None else int(found.leader)


def wait_for_leader(
    cluster: Cluster, topic: str, wanted: Callable[[int], bool], *, broker: int
) -> int:
    """Until `broker` shows a leader of the first partition that is wanted; its id."""
    with deadline(PATIENCE_S, f"another leader of {topic}") as check:
        while (found := leader(cluster, topic, broker=broker)) < 0 or not wanted(found):
            check(0.1)
    return found


def wait_until_in_sync(cluster: Cluster, topic: str, replicas: int, partitions: int) -> None:
    """Until every broker shows so many replicas in sync, of every partition."""
    with deadline(PATIENCE_S, f"{replicas} replicas of {topic} in sync") as check:
        for broker in cluster.brokers:
            for index in range(partitions):
                while True:
                    found = partition(cluster, topic, index, broker=broker)
                    if found is not None and len(found.isrs) == replicas and found.leader >= 0:
                        break
                    check(0.1)


def active_controller(cluster: Cluster, *, broker: int) -> int:
    """The quorum's leader, as a broker forwards the question (DescribeQuorum); -1 while none."""
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    with RawClient(cluster.address(broker)) as client:
        response = client.ask(apis.DESCRIBE_QUORUM, 2, {"topics": topics})
    if response.error_code or not response.topics:
        return -1
    return int(response.topics[0].partitions[0].leader_id)


def wait_for_controller(cluster: Cluster, wanted: Callable[[int], bool], *, broker: int) -> int:
    with deadline(PATIENCE_S, "another active controller") as check:
        while (found := active_controller(cluster, broker=broker)) < 0 or not wanted(found):
            check(0.1)
    return found


def wait_for_in_sync(cluster: Cluster, topic: str, wanted: set[int], *, broker: int) -> None:
    """Until `broker` shows just these replicas of the first partition in sync."""
    with deadline(PATIENCE_S, f"{wanted} to be in sync") as check:
        while (found := partition(cluster, topic, broker=broker)) is None or set(
            found.isrs
        ) != wanted:
            check(0.1)


def reassign(cluster: Cluster, topic: str, wanted: Mapping[int, Sequence[int]]) -> None:
    """Ask for these replicas of partitions; AssertionError for what is refused."""
    rows = {TopicPartition(topic, index): replicas for index, replicas in wanted.items()}
    assert _ask(cluster, lambda client: alter_reassignments(client, rows)) == {}


def wait_until_reassigned(
    cluster: Cluster, topic: str, wanted: Mapping[int, Sequence[int]]
) -> None:
    """Until no reassignment is under way, and every broker shows these replicas, all in sync."""
    with deadline(PATIENCE_S, f"{topic} to be reassigned") as check:
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
    """Ask again while nobody answers, as when brokers come and go."""

    async def asked() -> T:
        async with open_cluster(TcpNetwork(), cluster.bootstrap, timeout_s=5) as client:
            return await client.retrying(lambda: question(client), timeout_s=PATIENCE_S)

    return trio.run(asked)
