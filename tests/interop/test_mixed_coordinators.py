"""Groups and transactions whose coordinator moves between Odradek and Apache Kafka: each reads the records
of the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.broker.coordination.coordinator_log import partition_for
from tests.interop.mixed_brokers import KAFKA, ODRADEK, MixedBrokers, mixed_brokers, wait_for_both
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
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedBrokers]:
    with mixed_brokers(tmp_path_factory.mktemp("mixed"), CONFIG, CONFIG) as it:
        yield it


def key_at(mixed: MixedBrokers, topic: str, node: int, prefix: str) -> str:
    """A group or transactional id whose coordinator is this node."""
    leaders = mixed.leaders(topic)
    keys = (f"{prefix}-{number}" for number in range(1000))
    return next(key for key in keys if leaders[partition_for(key, len(leaders))] == node)


def committed(mixed: MixedBrokers, group: str, topic: str) -> int:
    """Committed offset of the group in the first partition, from the current coordinator."""
    consumer = Consumer({"bootstrap.servers": mixed.odradek.bootstrap, "group.id": group})
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


def commit(mixed: MixedBrokers, producer: Producer, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": mixed.odradek.bootstrap, "group.id": group})
    wanted = [TopicPartition(topic, 0, offset)]
    producer.send_offsets_to_transaction(wanted, consumer.consumer_group_metadata(), TIMEOUT_S)
    consumer.close()


@pytest.mark.slow
def test_coordinators_move_to_other_broker_and_back(mixed: MixedBrokers) -> None:
    bootstrap = f"{mixed.odradek.bootstrap},{mixed.kafka.bootstrap}"
    mixed.create_topic("t", [KAFKA, ODRADEK], replicas=2)
    transactional(bootstrap, "first")  # creates the internal topics
    committed(mixed, "first", "t")
    name = key_at(mixed, "__transaction_state", KAFKA, "id")
    group = key_at(mixed, "__consumer_offsets", KAFKA, "group")

    producer = transactional(bootstrap, name)
    producer.begin_transaction()
    producer.produce("t", b"kafka", partition=0)
    producer.produce("t", b"kafka", partition=1)
    commit(mixed, producer, group, "t", 1)
    producer.commit_transaction(TIMEOUT_S)
    assert committed(mixed, group, "t") == 1

    # Apache Kafka's broker is killed during the next transaction; Odradek's broker completes it.
    producer.begin_transaction()
    producer.produce("t", b"odradek", partition=0)
    producer.produce("t", b"odradek", partition=1)
    commit(mixed, producer, group, "t", 2)
    producer.flush(TIMEOUT_S)
    mixed.kill_kafka()
    producer.commit_transaction(TIMEOUT_S)
    assert values(bootstrap, "t", 4, partitions=range(2), config=COMMITTED).count("odradek") == 2
    assert committed(mixed, group, "t") == 2

    # Kafka restarts and leads its partitions again: it reads the records of Odradek's coordinator.
    mixed.restart_kafka()
    wait_for_both(mixed)
    lead_again(mixed)
    assert key_at(mixed, "__transaction_state", KAFKA, "id") == name
    assert committed(mixed, group, "t") == 2
    producer.begin_transaction()
    producer.produce("t", b"again", partition=0)
    commit(mixed, producer, group, "t", 3)
    producer.commit_transaction(TIMEOUT_S)
    assert committed(mixed, group, "t") == 3
    assert values(bootstrap, "t", 5, partitions=range(2), config=COMMITTED).count("again") == 1


def lead_again(mixed: MixedBrokers) -> None:
    """Wait until every replica is in sync, and elect the preferred leaders."""
    admin = AdminClient({"bootstrap.servers": mixed.odradek.bootstrap})
    with deadline(60, "every replica to be in sync") as check:
        while any(
            len(row.isrs) < 2
            for topic in admin.list_topics(timeout=TIMEOUT_S).topics.values()
            for row in topic.partitions.values()
        ):
            check(0.2)
    run_tool(
        "leader-election", "--bootstrap-server", mixed.odradek.bootstrap,
        "--election-type", "preferred", "--all-topic-partitions",
    )  # fmt: skip
    for topic in INTERNAL:
        assert set(mixed.leaders(topic)) == {ODRADEK, KAFKA}
