"""Scenario 22, Kafka's LogDirFailureTest: one broker's directory becomes a file, under producers and consumers.

The leader's; a follower's; and the leader's while no controller can be told, which ends the broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from odradek.broker.local_cluster.nodes import NodeState
from odradek.protocol import apis
from odradek.testing import Cluster
from tests.support.broker_process import deadline
from tests.support.raw_client import RawClient
from tests.system.cluster_state import PATIENCE_S, create_topic, partition, wait_until_in_sync
from tests.system.clusters import KINDS, assert_replicas_equal
from tests.system.directories import (
    BAD,
    mend,
    move_to_both,
    places,
    replace_by_a_file,
    two_directories_each,
    wait_until_offline,
)
from tests.system.producer_consumer_pair import Pair

pytestmark = [pytest.mark.slow, pytest.mark.interop]
PARTITIONS = 8
REFUSALS = {KafkaError.KAFKA_STORAGE_ERROR, KafkaError.NOT_LEADER_FOR_PARTITION}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    configs = {"log.dir.failure.timeout.ms": "3000"}
    place = tmp_path_factory.mktemp("offsets")
    with two_directories_each(kind, place, configs=configs) as running:
        yield running


@pytest.fixture
def whole(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    mend(cluster)


class ReplicaManager:
    """Of a topic with a replica of each partition on each broker, some in each directory."""

    def __init__(self, cluster: Cluster, topic: str, directory: Path) -> None:
        """`directory` is for the tools' files."""
        self.cluster = cluster
        self.topic = topic
        create_topic(cluster, topic, PARTITIONS, {})
        move_to_both(cluster, directory, topic, PARTITIONS)
        found = places(cluster, topic)
        self.leaders = {
            index: partition(cluster, topic, index).leader for index in range(PARTITIONS)
        }
        self.bad = {
            broker: {
                index
                for index in range(PARTITIONS)
                if found[index, broker] == cluster.log_directories(broker)[BAD]
            }
            for broker in cluster.brokers
        }

    def led_in_bad(self, broker: int) -> list[int]:
        """What it leads in its second directory."""
        return [index for index in self.bad[broker] if self.leaders[index] == broker]

    def wait_until_only_these_left(self, broker: int, lost: set[int]) -> None:
        """Until others show that of these the broker's replica is offline, and all else in sync."""
        other = next(each for each in self.cluster.brokers if each != broker)
        everybody = set(self.cluster.brokers)
        with deadline(PATIENCE_S, f"{lost} to be offline on broker {broker}") as check:
            while True:
                shown = _shown(self.cluster, self.topic, other)
                if all(
                    (each.leader_id not in (broker, -1))
                    and set(each.isr_nodes) == everybody - {broker}
                    and set(each.offline_replicas) == {broker}
                    if each.partition_index in lost
                    else set(each.isr_nodes) == everybody and not each.offline_replicas
                    for each in shown
                ):
                    return
                check(0.1)


def leading_in_bad(*topics: ReplicaManager) -> int:
    """A broker that leads something of each in its second directory."""
    for broker in topics[0].cluster.brokers:
        if all(each.led_in_bad(broker) for each in topics):
            return broker
    raise AssertionError("nobody leads partitions in its second directory")


def _shown(cluster: Cluster, topic: str, broker: int) -> list[Any]:
    with RawClient(cluster.address(broker)) as client:
        response = client.ask(
            apis.METADATA,
            9,
            {
                "topics": [{"name": topic}],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
    return list(response.topics[0].partitions)


class OneByOne:
    """Produces to one partition, acks=all, without retries; `errors` has what came of it."""

    def __init__(self, bootstrap: str, topic: str, index: int) -> None:
        self.errors: list[KafkaError] = []
        self._topic = topic
        self._index = index
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "retries": 0,
                "linger.ms": 0,
                "log_level": 0,
            }
        )

    def produce(self) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self.errors.append(error)

        self._producer.produce(self._topic, b"one", partition=self._index, on_delivery=delivered)
        assert self._producer.flush(PATIENCE_S) == 0  # a broker may take 30 s to give up


def test_scenario_22_directory_of_leader(whole: Cluster, tmp_path: Path) -> None:
    """A storage error, or that it does not lead; then another one does, and all goes on."""
    replicas = ReplicaManager(whole, "led", tmp_path)
    written = ReplicaManager(whole, "led-too", tmp_path)
    broker = leading_in_bad(replicas, written)
    directory = Path(whole.log_directories(broker)[BAD])
    (index, *_) = written.led_in_bad(broker)
    one_by_one = OneByOne(whole.bootstrap, written.topic, index)
    one_by_one.produce()
    assert one_by_one.errors == []
    with Pair(whole, replicas.topic, PARTITIONS) as pair:
        replace_by_a_file(directory)
        with deadline(PATIENCE_S, "a record to be refused") as check:
            while not one_by_one.errors:
                one_by_one.produce()
                check(0.05)
        assert one_by_one.errors[0].code() in REFUSALS
        for each in (replicas, written):
            each.wait_until_only_these_left(broker, each.bad[broker])
        after = OneByOne(whole.bootstrap, written.topic, index)
        after.produce()
        assert after.errors == []
        pair.goes_on()
        assert whole.state(broker) is NodeState.RUNNING
        pair.check()
    mend(whole)
    wait_until_in_sync(whole, replicas.topic, len(whole.brokers), PARTITIONS)
    assert_replicas_equal(whole, replicas.topic, PARTITIONS)


def test_scenario_22_directory_of_follower(whole: Cluster, tmp_path: Path, kind: str) -> None:
    """No producer notices; the broker goes on to follow what is in its other directory. (Apache Kafka may
    let a record wait for its time-out.)"""
    replicas = ReplicaManager(whole, "followed", tmp_path)
    written = ReplicaManager(whole, "followed-too", tmp_path)
    broker, index = next(
        (broker, index)
        for broker, bad in written.bad.items()
        for index in sorted(bad)
        if written.leaders[index] != broker and replicas.led_in_bad(broker)
    )
    one_by_one = OneByOne(whole.bootstrap, written.topic, index)
    replace_by_a_file(Path(whole.log_directories(broker)[BAD]))
    with deadline(PATIENCE_S, "the replica to be offline") as check:
        while broker in partition(whole, written.topic, index).isrs:
            one_by_one.produce()
            check(0.05)
    with Pair(whole, replicas.topic, PARTITIONS) as pair:
        replicas.wait_until_only_these_left(broker, replicas.bad[broker])
        pair.goes_on()
        replicas.wait_until_only_these_left(broker, replicas.bad[broker])
        one_by_one.produce()
        pair.check()
    allowed = {KafkaError.REQUEST_TIMED_OUT} if kind == "kafka" else set()
    assert {error.code() for error in one_by_one.errors} <= allowed
    assert whole.state(broker) is NodeState.RUNNING
    mend(whole)
    for each in (replicas, written):
        wait_until_in_sync(whole, each.topic, len(whole.brokers), PARTITIONS)
    assert_replicas_equal(whole, replicas.topic, PARTITIONS)


def test_scenario_22_directory_of_leader_without_controller(
    whole: Cluster, tmp_path: Path, kind: str
) -> None:
    """After log.dir.failure.timeout.ms the broker ends: nobody would take its leadership otherwise."""
    if kind == "kafka":
        pytest.skip("it asks for five minutes to be let go, by the controller that is not there")
    replicas = ReplicaManager(whole, "unheard", tmp_path)
    broker = leading_in_bad(replicas)
    directory = whole.log_directories(broker)[BAD]
    with Pair(whole, replicas.topic, PARTITIONS) as pair:
        (controller,) = whole.controllers
        whole.stop(controller)
        replace_by_a_file(Path(directory))
        wait_until_offline(whole, broker, directory)
        with deadline(PATIENCE_S, f"broker {broker} to end") as check:
            while whole.state(broker) is not NodeState.DEAD:
                check(0.1)
        whole.restart(controller)
        pair.goes_on()
        pair.check()
    mend(whole)
    wait_until_in_sync(whole, replicas.topic, len(whole.brokers), PARTITIONS)
    assert_replicas_equal(whole, replicas.topic, PARTITIONS)
