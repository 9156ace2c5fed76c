"""Transactions with coordinators and partitions on brokers of both kinds (KIP-98, KIP-890).

`__transaction_state` and `__consumer_offsets` have partitions on both brokers, so each broker coordinates
some of the transactional ids and groups. Every transaction writes to both brokers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.interop.mixed_brokers import KAFKA, ODRADEK, MixedBrokers, mixed_brokers
from tests.interop.transactional_clients import COMMITTED, java, transactional, values
from tests.support.kafka_tools import run_tool
from tests.support.librdkafka_clients import TIMEOUT_S, produce

pytestmark = pytest.mark.interop

IDS = 8
_numbers = itertools.count(1)


@pytest.fixture(
    scope="module", params=[ODRADEK, KAFKA], ids=["odradek-controller", "kafka-controller"]
)
def mixed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MixedBrokers]:
    with mixed_brokers(tmp_path_factory.mktemp("mixed"), controller=request.param) as it:
        yield it


@pytest.fixture(params=["odradek", "kafka"])
def bootstrap(mixed: MixedBrokers, request: pytest.FixtureRequest) -> str:
    broker = mixed.odradek if request.param == "odradek" else mixed.kafka
    return broker.bootstrap


@pytest.fixture
def topic(mixed: MixedBrokers) -> str:
    name = f"mixed-{next(_numbers)}"
    mixed.create_topic(name, [ODRADEK, KAFKA])
    assert mixed.leaders(name) == [ODRADEK, KAFKA]
    return name


@pytest.mark.slow
def test_both_brokers_coordinate_transactions(mixed: MixedBrokers, topic: str) -> None:
    transactional(mixed.odradek.bootstrap, "first")
    assert set(mixed.leaders("__transaction_state")) == {ODRADEK, KAFKA}


def test_librdkafka_commits_and_aborts(bootstrap: str, topic: str) -> None:
    committed = []
    for number in range(IDS):
        producer = transactional(bootstrap, f"{topic}-{number}")
        for commits in (True, False, True):
            producer.begin_transaction()
            for partition in (0, 1):
                value = f"{number}-{partition}-{commits}"
                producer.produce(topic, value.encode(), partition=partition)
                committed += [value] * commits
            # Without the flush, librdkafka may abort while its partitions are not added yet, because the markers
            # of the last transaction are being written (CONCURRENT_TRANSACTIONS). EndTxn is then refused.
            producer.flush(TIMEOUT_S)
            if commits:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.abort_transaction(TIMEOUT_S)
    read = values(bootstrap, topic, len(committed), partitions=range(2), config=COMMITTED)
    assert sorted(read) == sorted(committed)


def test_java_commits_and_aborts(bootstrap: str, topic: str) -> None:
    """The leaders add the partitions to the transaction when they receive Produce (KIP-890)."""
    committed: list[str] = []
    for number in range(4):
        committed += java("ends", bootstrap, topic, f"{topic}-{number}", 6)
    read = values(bootstrap, topic, len(committed), partitions=range(2), config=COMMITTED)
    assert sorted(read) == sorted(committed)


def test_offsets_are_committed_in_transactions(
    mixed: MixedBrokers, bootstrap: str, topic: str
) -> None:
    out = f"{topic}-out"
    mixed.create_topic(out, [ODRADEK, KAFKA])
    produce(bootstrap, topic, [b"%d" % n for n in range(10)])
    for number in range(4):
        group = f"{topic}-{number}"
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        producer = transactional(bootstrap, group)
        producer.begin_transaction()
        producer.produce(out, b"made", partition=number % 2)
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, number + 1)], consumer.consumer_group_metadata(), TIMEOUT_S
        )
        producer.commit_transaction(TIMEOUT_S)
        (found,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
        consumer.close()
        assert found.offset == number + 1
    assert values(bootstrap, out, 4, partitions=range(2), config=COMMITTED) == ["made"] * 4


def test_new_producer_fences_earlier_one(bootstrap: str, topic: str) -> None:
    for number in range(4):
        seen = java("fence", bootstrap, topic, f"{topic}-{number}")
        assert seen == {"first": "ProducerFencedException", "second": "committed"}


@pytest.mark.slow
def test_kafka_transactions_lists_transactions_of_both(bootstrap: str, topic: str) -> None:
    producers: list[Producer] = []
    for number in range(4):
        producers.append(transactional(bootstrap, f"{topic}-{number}"))
        producers[-1].begin_transaction()
        producers[-1].produce(topic, b"open", partition=number % 2)
        producers[-1].flush(TIMEOUT_S)
    listed = run_tool("transactions", "--bootstrap-server", bootstrap, "list").stdout
    for number in range(4):
        assert f"{topic}-{number}" in listed
        described = run_tool(
            "transactions", "--bootstrap-server", bootstrap, "describe",
            "--transactional-id", f"{topic}-{number}",
        ).stdout  # fmt: skip
        assert "Ongoing" in described
        assert f"{topic}-{number % 2}" in described
    for producer in producers:
        producer.abort_transaction(TIMEOUT_S)
