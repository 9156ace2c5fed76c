"""Two brokers, one of each kind, of which each follows the other; the controller is ours, too.

Of a partition that this broker leads and Apache Kafka follows: who is in sync, what acks=all waits for. A
follower that dies is fenced and leaves the in-sync set, comes back, cuts nothing that it should keep,
catches up and joins; one that is stopped (SIGSTOP) lags and leaves. Of one that Kafka leads and this broker
follows: what is read here is what was written there, whatever happened to either of them meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.mixed_brokers import OURS, THEIRS, MixedBrokers, mixed_brokers
from tests.support.librdkafka_clients import TIMEOUT_S, delivery_errors
from tests.support.waiting import deadline

pytestmark = pytest.mark.interop

LAG_MS = 2000
NEAR_US = {"client.rack": "here"}
"""So that a leader sends its consumers to this broker, which follows (KIP-392)."""


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedBrokers]:
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


def create(company: MixedBrokers, name: str, *, leader: int = OURS, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": company.ours.bootstrap})
    assignment = [[leader, OURS + THEIRS - leader]]
    topic = NewTopic(name, num_partitions=1, replica_assignment=assignment, config=configs)
    admin.create_topics([topic])[name].result(30)
    assert company.leaders(name) == [leader]


def wait_in_sync(company: MixedBrokers, topic: str, *brokers: int) -> None:
    admin = AdminClient({"bootstrap.servers": company.ours.bootstrap})
    with deadline(30, f"{topic}'s in-sync set to be {brokers}") as check:
        while True:
            found = admin.list_topics(topic, 10).topics[topic].partitions
            if 0 in found and sorted(found[0].isrs) == sorted(brokers):
                return
            check()


def produce_to_odradek(
    company: MixedBrokers, topic: str, values: list[bytes], **config: object
) -> list[KafkaError | None]:
    """Produce with acks=all to Odradek's broker; return the error of each record, or None."""
    config = {"acks": "all", "linger.ms": 0, **config}
    return delivery_errors(company.ours.bootstrap, topic, values, config=config)


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


# This broker leads


def test_kafka_follows_odradek(company: MixedBrokers) -> None:
    create(company, "followed", **{"min.insync.replicas": "2"})
    values = numbered(2000)
    assert produce_to_odradek(company, "followed", values) == [None] * len(values)
    wait_in_sync(company, "followed", OURS, THEIRS)
    assert read(company.ours.bootstrap, "followed", len(values)) == values
    near = {"client.rack": "there"}  # so that it is sent to the follower
    assert read(company.ours.bootstrap, "followed", len(values), **near) == values


def test_paused_follower_leaves_isr(company: MixedBrokers) -> None:
    create(company, "lags", **{"min.insync.replicas": "1"})
    wait_in_sync(company, "lags", OURS, THEIRS)
    os.kill(company.theirs.process.pid, signal.SIGSTOP)
    try:
        values = numbered(10)
        assert produce_to_odradek(company, "lags", values) == [None] * len(
            values
        )  # once it has left
        wait_in_sync(company, "lags", OURS)
    finally:
        os.kill(company.theirs.process.pid, signal.SIGCONT)
    wait_in_sync(company, "lags", OURS, THEIRS)


def test_too_few_in_sync_replicas_are_reported(company: MixedBrokers) -> None:
    create(company, "strict", **{"min.insync.replicas": "2"})
    wait_in_sync(company, "strict", OURS, THEIRS)
    os.kill(company.theirs.process.pid, signal.SIGSTOP)
    try:
        wait_in_sync_under_writes(company)
        (error,) = produce_to_odradek(
            company, "strict", [b"refused"], **{"message.timeout.ms": 2000}
        )
        assert isinstance(error, KafkaError)
    finally:
        os.kill(company.theirs.process.pid, signal.SIGCONT)
    wait_in_sync(company, "strict", OURS, THEIRS)
    assert produce_to_odradek(company, "strict", [b"taken"]) == [None]


def wait_in_sync_under_writes(company: MixedBrokers) -> None:
    """A follower that has everything does not lag: something has to be written."""
    producer = Producer({"bootstrap.servers": company.ours.bootstrap, "acks": 1})
    producer.produce("strict", b"unreplicated")
    assert producer.flush(TIMEOUT_S) == 0
    wait_in_sync(company, "strict", OURS)


# Kafka leads


def test_odradek_follows_kafka(company: MixedBrokers) -> None:
    create(company, "led", leader=THEIRS, **{"min.insync.replicas": "2"})
    values = numbered(5000)
    assert produce_to_odradek(company, "led", values) == [None] * len(values)
    wait_in_sync(company, "led", OURS, THEIRS)
    assert read(company.ours.bootstrap, "led", len(values), **NEAR_US) == values


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_large_and_compressed_batches_are_replicated(company: MixedBrokers, codec: str) -> None:
    name = f"large-{codec}"
    create(company, name, leader=THEIRS, **{"min.insync.replicas": "2"})
    values = numbered(300, 50_000)
    told = produce_to_odradek(company, name, values, **{"compression.type": codec, "linger.ms": 20})
    assert told == [None] * len(values)
    assert read(company.ours.bootstrap, name, len(values), **NEAR_US) == values


@pytest.mark.slow
def test_killed_leader_is_replaced_and_returns(company: MixedBrokers) -> None:
    create(company, "killed", leader=THEIRS, **{"min.insync.replicas": "1"})
    before = numbered(100)
    assert produce_to_odradek(company, "killed", before) == [None] * len(before)
    wait_in_sync(company, "killed", OURS, THEIRS)
    company.kill_theirs()
    wait_in_sync(company, "killed", OURS)
    after = [b"after " + value for value in before]
    assert produce_to_odradek(company, "killed", after) == [None] * len(after)
    company.restart_theirs()
    wait_in_sync(company, "killed", OURS, THEIRS)
    prefer(company, "killed")
    last = [b"last " + value for value in before]
    assert produce_to_odradek(company, "killed", last) == [None] * len(last)
    assert read(company.ours.bootstrap, "killed", 300, **NEAR_US) == before + after + last


def prefer(company: MixedBrokers, topic: str) -> None:
    """Have the first replica lead again."""
    admin = AdminClient({"bootstrap.servers": company.ours.bootstrap})
    where = TopicPartition(topic, 0)
    found = admin.elect_leaders(ElectionType.PREFERRED, [where]).result(30)
    assert found[where] is None
    assert company.leaders(topic) == [THEIRS]
