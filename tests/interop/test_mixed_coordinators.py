"""Coordinators that move between kinds of brokers: what Apache Kafka's wrote ours takes up, and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.broker.coordination.coordinator_log import partition_for
from tests.interop.mixed_brokers import OURS, THEIRS, MixedBrokers, mixed_brokers, wait_for_both
from tests.interop.transactional_clients import COMMITTED, transactional, values
from tests.support.kafka_tools import run_tool
from tests.support.librdkafka_clients import TIMEOUT_S
from tests.support.waiting import deadline

pytestmark = pytest.mark.interop

INTERNAL = ("__transaction_state", "__consumer_offsets")
CONFIG = {
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "auto.leader.rebalance.enable": "false",
}


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedBrokers]:
    with mixed_brokers(tmp_path_factory.mktemp("mixed"), CONFIG, CONFIG) as it:
        yield it


def key_at(company: MixedBrokers, topic: str, node: int, prefix: str) -> str:
    """A group or transactional id that this node coordinates."""
    leaders = company.leaders(topic)
    keys = (f"{prefix}-{number}" for number in range(1000))
    return next(key for key in keys if leaders[partition_for(key, len(leaders))] == node)


def committed(company: MixedBrokers, group: str, topic: str) -> int:
    """The group's offset in the first partition; from whoever coordinates it, once somebody does."""
    consumer = Consumer({"bootstrap.servers": company.ours.bootstrap, "group.id": group})
    with deadline(TIMEOUT_S, f"a coordinator of {group}") as check:
        while True:
            try:
                (found,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
                break
            except KafkaException:
                check(0.1)
    consumer.close()
    offset: int = found.offset
    return offset


def commit(company: MixedBrokers, producer: Producer, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": company.ours.bootstrap, "group.id": group})
    wanted = [TopicPartition(topic, 0, offset)]
    producer.send_offsets_to_transaction(wanted, consumer.consumer_group_metadata(), TIMEOUT_S)
    consumer.close()


@pytest.mark.slow
def test_coordinators_move_to_other_broker_and_back(company: MixedBrokers) -> None:
    bootstrap = f"{company.ours.bootstrap},{company.theirs.bootstrap}"
    company.create_topic("t", [THEIRS, OURS], replicas=2)
    transactional(bootstrap, "first")  # the internal topics come into being
    committed(company, "first", "t")
    name = key_at(company, "__transaction_state", THEIRS, "id")
    group = key_at(company, "__consumer_offsets", THEIRS, "group")

    producer = transactional(bootstrap, name)
    producer.begin_transaction()
    producer.produce("t", b"theirs", partition=0)
    producer.produce("t", b"theirs", partition=1)
    commit(company, producer, group, "t", 1)
    producer.commit_transaction(TIMEOUT_S)
    assert committed(company, group, "t") == 1

    # Apache Kafka's broker dies in the middle of the next one; ours ends it.
    producer.begin_transaction()
    producer.produce("t", b"ours", partition=0)
    producer.produce("t", b"ours", partition=1)
    commit(company, producer, group, "t", 2)
    producer.flush(TIMEOUT_S)
    company.kill_theirs()
    producer.commit_transaction(TIMEOUT_S)
    assert values(bootstrap, "t", 4, partitions=range(2), config=COMMITTED).count("ours") == 2
    assert committed(company, group, "t") == 2

    # It comes back, and is given what it had: it reads what ours has written.
    company.restart_theirs()
    wait_for_both(company)
    lead_again(company)
    assert key_at(company, "__transaction_state", THEIRS, "id") == name
    assert committed(company, group, "t") == 2
    producer.begin_transaction()
    producer.produce("t", b"again", partition=0)
    commit(company, producer, group, "t", 3)
    producer.commit_transaction(TIMEOUT_S)
    assert committed(company, group, "t") == 3
    assert values(bootstrap, "t", 5, partitions=range(2), config=COMMITTED).count("again") == 1


def lead_again(company: MixedBrokers) -> None:
    """Every replica in sync, and each partition led by its first one."""
    admin = AdminClient({"bootstrap.servers": company.ours.bootstrap})
    with deadline(60, "every replica to be in sync") as check:
        while any(
            len(row.isrs) < 2
            for topic in admin.list_topics(timeout=TIMEOUT_S).topics.values()
            for row in topic.partitions.values()
        ):
            check(0.2)
    run_tool(
        "leader-election", "--bootstrap-server", company.ours.bootstrap,
        "--election-type", "preferred", "--all-topic-partitions",
    )  # fmt: skip
    for topic in INTERNAL:
        assert set(company.leaders(topic)) == {OURS, THEIRS}
