"""Scenario 24, the second of Kafka's own system tests, reassign_partitions_test: kafka-reassign-partitions
reassigns twenty partitions among four brokers, under load.

The test runs with and without bounced brokers, and with log start offsets of 0 and later. A record is
acknowledged when all replicas are in sync. (Apache Kafka sometimes fails with bounced brokers: its own test
does not check for duplicates, KAFKA-18905. `replication.partition.refusals` explains why librdkafka writes
duplicates to Kafka, and why it has no reason to with Odradek. The message of a failure contains the producers
of the batches.)
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from odradek.testing import Cluster
from tests.support.anomalies import assert_none
from tests.support.waiting import deadline
from tests.system.cluster_state import TIMEOUT_S, create_topic, wait_until_reassigned
from tests.system.clusters import CONFIGS, KINDS, SOFTWARE, assert_replicas_equal, shown_batches
from tests.system.directories import begin_move, is_moved
from tests.system.faults import ring
from tests.system.producer_consumer_pair import Pair

pytestmark = [pytest.mark.slow, pytest.mark.interop]
BROKERS, PARTITIONS, REPLICAS = 4, 20, 3
OLD_MS = 1000
"""Timestamp of records that retention deletes at its next check."""


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    configs = {
        **CONFIGS,
        "log.roll.ms": "2000",
        "log.retention.check.interval.ms": "500",
        "log.segment.delete.delay.ms": "1000",
    }
    with Cluster(
        software=SOFTWARE[request.param](), brokers=BROKERS, controllers=1, configs=configs
    ) as running:
        yield running
        gc.collect()  # librdkafka's handles log errors while they outlive the brokers


@pytest.mark.parametrize("from_zero", [True, False], ids=["from-zero", "from-later"])
@pytest.mark.parametrize("bounced", [False, True], ids=["there", "bounced"])
def test_scenario_24_reassign_partitions(
    cluster: Cluster, tmp_path: Path, bounced: bool, from_zero: bool
) -> None:
    topic = f"dealt-{bounced}-{from_zero}"
    before = ring(cluster.brokers, PARTITIONS, REPLICAS, 0)
    create_topic(
        cluster, topic, PARTITIONS, {"min.insync.replicas": str(REPLICAS)},
        assignment=list(before.values()),
    )  # fmt: skip
    if not from_zero:
        move_start_offsets(cluster, topic)
    dealt = deal(list(before.values()))
    with Pair(cluster, topic, PARTITIONS) as pair:
        pair.goes_on()
        target = {index: [(each, "any") for each in row] for index, row in enumerate(dealt)}
        words = begin_move(cluster, tmp_path, topic, target)
        if bounced:
            for broker in cluster.brokers[::2]:
                cluster.restart(broker)
        with deadline(TIMEOUT_S, "the reassignment to be complete") as check:
            while not is_moved(cluster, words, topic, target):
                check(0.5)
        wait_until_reassigned(cluster, topic, dict(enumerate(dealt)))
        pair.goes_on()
        found = pair.anomalies()
        assert_none([*found, *shown_batches(cluster, topic)] if found else [])
    assert_replicas_equal(cluster, topic, PARTITIONS)


def deal(rows: list[Sequence[int]]) -> list[Sequence[int]]:
    """The same rows in another order."""
    random.Random(24).shuffle(rows)
    return rows


def move_start_offsets(cluster: Cluster, topic: str) -> None:
    """Produce records that are too old to be retained, and wait until they are deleted."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for index in range(PARTITIONS):
        for _ in range(10):
            producer.produce(topic, b"old", partition=index, timestamp=OLD_MS)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "looks"})
    with deadline(TIMEOUT_S, "old records to be deleted") as check:
        for index in range(PARTITIONS):
            where = TopicPartition(topic, index)
            while consumer.get_watermark_offsets(where, timeout=TIMEOUT_S)[0] == 0:
                check(0.2)
    consumer.close()
