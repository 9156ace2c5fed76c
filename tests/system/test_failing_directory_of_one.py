"""Scenario 22, Kafka's LogDirFailureTest: a log directory of one broker becomes a file, under producers and
consumers.

The tests cover the directory of the leader, that of a follower, and that of the leader while no controller is
available, which stops the broker.
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
from tests.support.raw_client import RawClient
from tests.support.waiting import deadline
from tests.system.cluster_state import TIMEOUT_S, create_topic, partition, wait_until_in_sync
from tests.system.clusters import KINDS, assert_replicas_equal
from tests.system.directories import (
    BAD,
    move_to_both,
    places,
    replace_by_a_file,
    restore_directories,
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
    restore_directories(cluster)


class ReplicaManager:
    """Topic with a replica of each partition on each broker, in both log directories."""

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
        """Partitions in the second directory that the broker leads."""
        return [index for index in self.bad[broker] if self.leaders[index] == broker]

    def wait_until_only_these_left(self, broker: int, lost: set[int]) -> None:
        """Wait until the other brokers report that the broker's replicas of `lost` are offline, and that
        all other replicas are in sync.
        """
        other = next(each for each in self.cluster.brokers if each != broker)
        all_brokers = set(self.cluster.brokers)
        with deadline(TIMEOUT_S, f"{lost} to be offline on broker {broker}") as check:
            while True:
                shown = _shown(self.cluster, self.topic, other)
                if all(
                    (each.leader_id not in (broker, -1))
                    and set(each.isr_nodes) == all_brokers - {broker}
                    and set(each.offline_replicas) == {broker}
                    if each.partition_index in lost
                    else set(each.isr_nodes) == all_brokers and not each.offline_replicas
                    for each in shown
                ):
                    return
                check(0.1)


def leading_in_bad(*topics: ReplicaManager) -> int:
    """A broker that leads a partition of each topic in its second directory."""
    for broker in topics[0].cluster.brokers:
        if all(each.led_in_bad(broker) for each in topics):
            return broker
    raise AssertionError("no broker leads partitions in its second directory")


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
    """Producer to one partition with acks=all and without retries; `errors` has the results."""

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
        assert self._producer.flush(TIMEOUT_S) == 0  # a broker may take 30 s to stop


def test_scenario_22_directory_of_leader(whole: Cluster, tmp_path: Path) -> None:
    """The leader returns a storage error or NOT_LEADER_OR_FOLLOWER; then another broker leads, and produce
    requests succeed.
    """
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
        with deadline(TIMEOUT_S, "a record to be refused") as check:
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
    restore_directories(whole)
    wait_until_in_sync(whole, replicas.topic, len(whole.brokers), PARTITIONS)
    assert_replicas_equal(whole, replicas.topic, PARTITIONS)


def test_scenario_22_directory_of_follower(whole: Cluster, tmp_path: Path, kind: str) -> None:
    """Producers get no error, and the broker continues to follow the partitions in its other directory.
    (In Apache Kafka a record may wait until its timeout.)
    """
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
    with deadline(TIMEOUT_S, "the replica to be offline") as check:
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
    restore_directories(whole)
    for each in (replicas, written):
        wait_until_in_sync(whole, each.topic, len(whole.brokers), PARTITIONS)
    assert_replicas_equal(whole, replicas.topic, PARTITIONS)


def test_scenario_22_directory_of_leader_without_controller(
    whole: Cluster, tmp_path: Path, kind: str
) -> None:
    """The broker stops after log.dir.failure.timeout.ms, because no other broker could take over its
    leadership.
    """
    if kind == "kafka":
        pytest.skip(
            "the controlled shutdown waits five minutes for the controller, which is not running"
        )
    replicas = ReplicaManager(whole, "unheard", tmp_path)
    broker = leading_in_bad(replicas)
    directory = whole.log_directories(broker)[BAD]
    with Pair(whole, replicas.topic, PARTITIONS) as pair:
        (controller,) = whole.controllers
        whole.stop(controller)
        replace_by_a_file(Path(directory))
        wait_until_offline(whole, broker, directory)
        with deadline(TIMEOUT_S, f"broker {broker} to end") as check:
            while whole.state(broker) is not NodeState.DEAD:
                check(0.1)
        whole.restart(controller)
        pair.goes_on()
        pair.check()
    restore_directories(whole)
    wait_until_in_sync(whole, replicas.topic, len(whole.brokers), PARTITIONS)
    assert_replicas_equal(whole, replicas.topic, PARTITIONS)
