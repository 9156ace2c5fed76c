"""Failover of coordinators: groups and transactions of librdkafka clients continue when their
coordinator, or the leader of a partition, crashes.

The cluster has three broker processes with short sessions, so that a failover takes a few seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.broker.coordination.coordinator_log import partition_for
from odradek.broker.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from odradek.broker.local_cluster.nodes import NodeState
from odradek.testing import Cluster
from tests.support.librdkafka_clients import read_all
from tests.support.waiting import deadline

pytestmark = pytest.mark.slow

TIMEOUT_S = 60
CONFIGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}
PARTITIONS = 3
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    with Cluster(brokers=3, configs=CONFIGS) as running:
        yield running


@pytest.fixture
def cluster(started: Cluster) -> Cluster:
    """All three brokers run, and every replica is in sync."""
    for broker in started.brokers:
        if started.state(broker) is not NodeState.RUNNING:
            started.restart(broker)
    with deadline(TIMEOUT_S, "every replica to be in sync") as check:
        while _out_of_sync(started):
            check()
    return started


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t{next(_numbers)}"
    wanted = NewTopic(name, num_partitions=PARTITIONS, replication_factor=3)
    admin = _admin(cluster)
    admin.create_topics([wanted])[name].result(TIMEOUT_S)
    return name


def _admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def _out_of_sync(cluster: Cluster) -> bool:
    metadata = _admin(cluster).list_topics(timeout=TIMEOUT_S)
    rows = [row for topic in metadata.topics.values() for row in topic.partitions.values()]
    return len(metadata.brokers) < 3 or any(len(row.isrs) < len(row.replicas) for row in rows)


def leader(cluster: Cluster, topic: str, partition: int) -> int:
    """Leader of a partition; waits until there is one."""
    with deadline(TIMEOUT_S, f"a leader of {topic}-{partition}") as check:
        while True:
            metadata = _admin(cluster).list_topics(topic, timeout=TIMEOUT_S)
            rows = metadata.topics[topic].partitions
            if partition in rows and rows[partition].leader > 0:
                found: int = rows[partition].leader
                return found
            check()


def coordinator(cluster: Cluster, topic: str, key: str) -> int:
    """Broker id of the coordinator of a group or a transactional id."""
    return leader(cluster, topic, partition_for(key, 3))


def transactional(cluster: Cluster, name: str) -> Producer:
    config = {
        "bootstrap.servers": cluster.bootstrap,
        "transactional.id": name,
        "socket.timeout.ms": 10_000,  # clients do not wait for a hanging broker either
    }
    producer = Producer(config)
    producer.init_transactions(TIMEOUT_S)
    return producer


def retry(step: object, *args: object) -> None:
    """Run a step of a transaction; retry retriable errors of librdkafka."""
    with deadline(TIMEOUT_S, f"{step} to be done") as check:
        while True:
            try:
                step(*args, TIMEOUT_S)  # type: ignore[operator]
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                check()


def write(producer: Producer, topic: str, value: bytes) -> None:
    for partition in range(PARTITIONS):
        producer.produce(topic, value, partition=partition)


def committed(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    config = {"isolation.level": "read_committed"}
    found = read_all(cluster.bootstrap, topic, count, partitions=range(PARTITIONS), config=config)
    return sorted(message.value() or b"" for message in found)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_transaction_completes_after_coordinator_crash(
    cluster: Cluster, topic: str, end: str
) -> None:
    producer = transactional(cluster, topic)
    producer.begin_transaction()
    write(producer, topic, b"open")
    producer.flush(TIMEOUT_S)
    cluster.kill(coordinator(cluster, TRANSACTIONS_TOPIC, topic))
    retry(producer.commit_transaction if end == "commit" else producer.abort_transaction)
    producer.begin_transaction()
    write(producer, topic, b"next")
    retry(producer.commit_transaction)
    wanted = [b"next"] * 3 + [b"open"] * (3 if end == "commit" else 0)
    assert committed(cluster, topic, len(wanted)) == wanted


def test_transaction_completes_after_leader_crash(cluster: Cluster, topic: str) -> None:
    """The markers are sent to the new leader of the partition."""
    name = next(
        f"{topic}-{number}"
        for number in range(100)
        if coordinator(cluster, TRANSACTIONS_TOPIC, f"{topic}-{number}")
        != leader(cluster, topic, 0)
    )
    producer = transactional(cluster, name)
    producer.begin_transaction()
    write(producer, topic, b"open")
    producer.flush(TIMEOUT_S)
    cluster.kill(leader(cluster, topic, 0))
    retry(producer.commit_transaction)
    assert committed(cluster, topic, 3) == [b"open"] * 3


def test_markers_do_not_wait_for_hanging_broker(cluster: Cluster, topic: str) -> None:
    name = next(
        f"{topic}-{number}"
        for number in range(100)
        if coordinator(cluster, TRANSACTIONS_TOPIC, f"{topic}-{number}")
        != leader(cluster, topic, 0)
    )
    producer = transactional(cluster, name)
    producer.begin_transaction()
    write(producer, topic, b"open")
    producer.flush(TIMEOUT_S)
    paused = leader(cluster, topic, 0)
    cluster.pause(paused)
    try:
        retry(producer.commit_transaction)
        with deadline(20, "another leader") as check:  # well below request.timeout.ms
            while leader(cluster, topic, 0) == paused:
                check()
        with deadline(20, "the markers: followers fetch only after they are written") as check:
            follower = transactional(cluster, name)
            check()
        follower.begin_transaction()
        follower.produce(topic, b"next", partition=0)
        retry(follower.commit_transaction)
        assert committed(cluster, topic, 4) == [b"next"] + [b"open"] * 3
    finally:
        cluster.resume(paused)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_continues_after_coordinator_crash(
    cluster: Cluster, topic: str, protocol: str
) -> None:
    group = f"{topic}-group"
    config = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    consumer = Consumer(config)
    consumer.subscribe([topic])
    seen: list[tuple[int, int]] = []
    for step in range(2):
        for _ in range(5):
            write(producer, topic, b"%d" % step)
        assert producer.flush(TIMEOUT_S) == 0
        with deadline(TIMEOUT_S, "the produced records to be consumed") as check:
            while len(set(seen)) < 15 * (step + 1):
                message = consumer.poll(0.5)
                if message is not None and message.error() is None:
                    seen.append((message.partition(), message.offset()))
                check()
        retry_commit(consumer)
        if step == 0:
            cluster.kill(coordinator(cluster, OFFSETS_TOPIC, group))
    asked = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    assert [each.offset for each in consumer.committed(asked, TIMEOUT_S)] == [10] * 3
    consumer.close()
    assert [each.offset for each in Consumer(config).committed(asked, TIMEOUT_S)] == [10] * 3
    admin = _admin(cluster)
    groups = admin.list_consumer_groups().result(TIMEOUT_S)
    assert [each.group_id for each in groups.valid].count(group) == 1


def retry_commit(consumer: Consumer) -> None:
    """Commit the consumed offsets with the current coordinator."""
    with deadline(TIMEOUT_S, "offsets to be committed") as check:
        while True:
            try:
                consumer.commit(asynchronous=False)
                return
            except KafkaException:
                consumer.poll(0.2)  # it may have to rejoin first
                check()
