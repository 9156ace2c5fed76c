"""An Odradek broker and an Apache Kafka broker follow each other; Odradek is the controller.

For partitions that Odradek leads and Kafka follows, the tests check the ISR and the acknowledgements with
acks=all. A killed follower is fenced and leaves the ISR; after its restart it truncates only uncommitted
records, catches up and rejoins the ISR. A paused follower (SIGSTOP) lags and leaves the ISR. For partitions
that Kafka leads and Odradek follows, the records that consumers read from Odradek are those that were
produced to Kafka.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.mixed_brokers import KAFKA, ODRADEK, MixedBrokers, mixed_brokers
from tests.support.librdkafka_clients import TIMEOUT_S, delivery_errors
from tests.support.waiting import deadline

pytestmark = pytest.mark.interop

LAG_MS = 2000
NEAR_ODRADEK = {"client.rack": "here"}
"""Rack of Odradek's broker: the leader redirects consumers to this follower (KIP-392)."""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedBrokers]:
    settings = {
        "replica.lag.time.max.ms": str(LAG_MS),
        "replica.selector.class": ("org.apache.kafka.common.replica.RackAwareReplicaSelector"),
    }
    with mixed_brokers(
        tmp_path_factory.mktemp("following"),
        {**settings, "broker.rack": "here"},
        {**settings, "broker.rack": "there"},
    ) as it:
        yield it


def create(mixed: MixedBrokers, name: str, *, leader: int = ODRADEK, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": mixed.odradek.bootstrap})
    assignment = [[leader, ODRADEK + KAFKA - leader]]
    topic = NewTopic(name, num_partitions=1, replica_assignment=assignment, config=configs)
    admin.create_topics([topic])[name].result(30)
    assert mixed.leaders(name) == [leader]


def wait_in_sync(mixed: MixedBrokers, topic: str, *brokers: int) -> None:
    admin = AdminClient({"bootstrap.servers": mixed.odradek.bootstrap})
    with deadline(30, f"{topic}'s in-sync set to be {brokers}") as check:
        while True:
            found = admin.list_topics(topic, 10).topics[topic].partitions
            if 0 in found and sorted(found[0].isrs) == sorted(brokers):
                return
            check()


def produce_to_odradek(
    mixed: MixedBrokers, topic: str, values: list[bytes], **config: object
) -> list[KafkaError | None]:
    """Produce with acks=all to Odradek's broker; return the error of each record, or None."""
    config = {"acks": "all", "linger.ms": 0, **config}
    return delivery_errors(mixed.odradek.bootstrap, topic, values, config=config)


def read(bootstrap: str, topic: str, count: int, **config: object) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reads", "enable.auto.commit": False, **config}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    with deadline(TIMEOUT_S, f"{count} records") as check:
        while len(found) < count:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value())
            check(0)
    consumer.close()
    return found


def numbered(count: int, size: int = 100) -> list[bytes]:
    return [b"%06d" % number + b"x" * size for number in range(count)]


# Odradek leads


def test_kafka_follows_odradek(mixed: MixedBrokers) -> None:
    create(mixed, "followed", **{"min.insync.replicas": "2"})
    values = numbered(2000)
    assert produce_to_odradek(mixed, "followed", values) == [None] * len(values)
    wait_in_sync(mixed, "followed", ODRADEK, KAFKA)
    assert read(mixed.odradek.bootstrap, "followed", len(values)) == values
    near = {"client.rack": "there"}  # so that the leader redirects it to the follower
    assert read(mixed.odradek.bootstrap, "followed", len(values), **near) == values


def test_paused_follower_leaves_isr(mixed: MixedBrokers) -> None:
    create(mixed, "lags", **{"min.insync.replicas": "1"})
    wait_in_sync(mixed, "lags", ODRADEK, KAFKA)
    os.kill(mixed.kafka.process.pid, signal.SIGSTOP)
    try:
        values = numbered(10)
        # The follower has left the ISR by then
        assert produce_to_odradek(mixed, "lags", values) == [None] * len(values)
        wait_in_sync(mixed, "lags", ODRADEK)
    finally:
        os.kill(mixed.kafka.process.pid, signal.SIGCONT)
    wait_in_sync(mixed, "lags", ODRADEK, KAFKA)


def test_too_few_in_sync_replicas_are_reported(mixed: MixedBrokers) -> None:
    create(mixed, "strict", **{"min.insync.replicas": "2"})
    wait_in_sync(mixed, "strict", ODRADEK, KAFKA)
    os.kill(mixed.kafka.process.pid, signal.SIGSTOP)
    try:
        wait_in_sync_under_writes(mixed)
        (error,) = produce_to_odradek(mixed, "strict", [b"refused"], **{"message.timeout.ms": 2000})
        assert isinstance(error, KafkaError)
    finally:
        os.kill(mixed.kafka.process.pid, signal.SIGCONT)
    wait_in_sync(mixed, "strict", ODRADEK, KAFKA)
    assert produce_to_odradek(mixed, "strict", [b"taken"]) == [None]


def wait_in_sync_under_writes(mixed: MixedBrokers) -> None:
    """Wait while records are produced, because a follower without missing records does not lag."""
    producer = Producer({"bootstrap.servers": mixed.odradek.bootstrap, "acks": 1})
    producer.produce("strict", b"unreplicated")
    assert producer.flush(TIMEOUT_S) == 0
    wait_in_sync(mixed, "strict", ODRADEK)


# Kafka leads


def test_odradek_follows_kafka(mixed: MixedBrokers) -> None:
    create(mixed, "led", leader=KAFKA, **{"min.insync.replicas": "2"})
    values = numbered(5000)
    assert produce_to_odradek(mixed, "led", values) == [None] * len(values)
    wait_in_sync(mixed, "led", ODRADEK, KAFKA)
    assert read(mixed.odradek.bootstrap, "led", len(values), **NEAR_ODRADEK) == values


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_large_and_compressed_batches_are_replicated(mixed: MixedBrokers, codec: str) -> None:
    name = f"large-{codec}"
    create(mixed, name, leader=KAFKA, **{"min.insync.replicas": "2"})
    values = numbered(300, 50_000)
    errors = produce_to_odradek(mixed, name, values, **{"compression.type": codec, "linger.ms": 20})
    assert errors == [None] * len(values)
    assert read(mixed.odradek.bootstrap, name, len(values), **NEAR_ODRADEK) == values


@pytest.mark.slow
def test_killed_leader_is_replaced_and_returns(mixed: MixedBrokers) -> None:
    create(mixed, "killed", leader=KAFKA, **{"min.insync.replicas": "1"})
    before = numbered(100)
    assert produce_to_odradek(mixed, "killed", before) == [None] * len(before)
    wait_in_sync(mixed, "killed", ODRADEK, KAFKA)
    mixed.kill_kafka()
    wait_in_sync(mixed, "killed", ODRADEK)
    after = [b"after " + value for value in before]
    assert produce_to_odradek(mixed, "killed", after) == [None] * len(after)
    mixed.restart_kafka()
    wait_in_sync(mixed, "killed", ODRADEK, KAFKA)
    prefer(mixed, "killed")
    last = [b"last " + value for value in before]
    assert produce_to_odradek(mixed, "killed", last) == [None] * len(last)
    assert read(mixed.odradek.bootstrap, "killed", 300, **NEAR_ODRADEK) == before + after + last


def prefer(mixed: MixedBrokers, topic: str) -> None:
    """Elect the preferred leader."""
    admin = AdminClient({"bootstrap.servers": mixed.odradek.bootstrap})
    where = TopicPartition(topic, 0)
    found = admin.elect_leaders(ElectionType.PREFERRED, [where]).result(30)
    assert found[where] is None
    assert mixed.leaders(topic) == [KAFKA]
