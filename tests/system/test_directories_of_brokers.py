"""Moves between log directories of several brokers, and failures of log directories, under load.

KIP-113's system tests (J-24), and the first test of scenario 24, Kafka's log_dir_failure_test. Each broker
has two log directories. The controller is a separate node, so that every broker may stop. Acknowledged
records are in the log once and in order, and the logs of the replicas are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.broker.local_cluster.nodes import NodeState
from odradek.testing import Cluster
from tests.support.anomalies import assert_none
from tests.support.waiting import deadline
from tests.system.cluster_state import (
    TIMEOUT_S,
    create_topic,
    leader,
    partition,
    wait_until_in_sync,
)
from tests.system.clusters import KINDS, assert_replicas_equal
from tests.system.directories import (
    BAD,
    GOOD,
    change_mode,
    is_offline,
    move,
    move_all,
    places,
    restore_directories,
    two_directories_each,
    wait_until_offline,
)
from tests.system.load import read_partitions
from tests.system.producer_consumer_pair import Pair

pytestmark = [pytest.mark.slow, pytest.mark.interop]


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with two_directories_each(request.param, tmp_path_factory.mktemp("offsets")) as running:
        yield running


@pytest.fixture
def whole(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster; failed directories are restored for the next test."""
    yield cluster
    restore_directories(cluster)


def all_run(cluster: Cluster) -> bool:
    return all(cluster.state(each) is NodeState.RUNNING for each in cluster.brokers)


def test_kip_113_first_system_test(whole: Cluster, tmp_path: Path) -> None:
    """J-24 (1): each replica moves to the other directory, to the next broker's unused directory, and
    back.
    """
    brokers, topic = whole.brokers, "moved"
    create_topic(whole, topic, len(brokers), {}, assignment=[[each] for each in brokers])
    start = places(whole, topic)

    def unused(broker: int) -> str:
        (used,) = [path for (_, on), path in places(whole, topic).items() if on == broker]
        return next(path for path in whole.log_directories(broker) if path != used)

    with Pair(whole, topic, len(brokers)) as pair:
        turned = {index: [(each, unused(each))] for index, each in enumerate(brokers)}
        move(whole, tmp_path, topic, turned)
        pair.goes_on()
        following = {
            index: [(each, unused(each))] for index, each in enumerate((*brokers[1:], brokers[0]))
        }
        move(whole, tmp_path, topic, following)
        pair.goes_on()
        back = {index: [(broker, path)] for (index, broker), path in start.items()}
        move(whole, tmp_path, topic, back)
        pair.goes_on()
        assert all_run(whole)
        pair.check()
    assert places(whole, topic) == start
    for index, broker in enumerate(brokers):
        assert leader(whole, topic, index) == broker


def test_kip_113_second_system_test(whole: Cluster, tmp_path: Path) -> None:
    """J-24 (2): failed directories of a follower, of the leader and of all brokers do not affect the topic
    in the other directories. The topic in the failed directories is available as long as it has a
    replica, and loses no record.
    """
    good, bad = "on-good", "on-bad"
    for topic, number in ((good, GOOD), (bad, BAD)):
        create_topic(whole, topic, 1, {})
        move_all(whole, tmp_path, topic, 1, number)
    leading = leader(whole, good)
    first, last = [each for each in whole.brokers if each != leading]

    def fail(broker: int) -> None:
        directory = whole.log_directories(broker)[BAD]
        Path(directory).chmod(0)
        wait_until_offline(whole, broker, directory)

    with Pair(whole, good) as on_good:
        with Pair(whole, bad) as on_bad:
            for broker in (first, leading):
                fail(broker)
                wait_until_left(whole, bad, broker)
                on_good.goes_on()
                on_bad.goes_on()
                assert all_run(whole)
            on_bad.check()
        fail(last)
        with deadline(TIMEOUT_S, f"{bad} to have no leader") as check:
            while leader(whole, bad) >= 0:
                check(0.1)
        on_good.goes_on()
        assert all_run(whole)
        assert leader(whole, good) == leading
        assert len(partition(whole, good).isrs) == len(whole.brokers)
        on_good.check()
    assert_replicas_equal(whole, good, 1)
    for broker in whole.brokers:
        Path(whole.log_directories(broker)[BAD]).chmod(0o755)
    for broker in whole.brokers:
        whole.restart(broker)
    wait_until_in_sync(whole, bad, len(whole.brokers), 1)
    rows = read_partitions(whole.bootstrap, bad, 1)
    assert_none(on_bad.load.ledger.anomalies(rows))
    assert_replicas_equal(whole, bad, 1)


def wait_until_left(cluster: Cluster, topic: str, broker: int) -> None:
    """Wait until the broker neither leads nor is in sync."""
    with deadline(TIMEOUT_S, f"broker {broker} to leave {topic}") as check:
        while True:
            found = partition(cluster, topic)
            if broker not in found.isrs and found.leader not in (broker, -1):
                return
            check(0.1)


@pytest.mark.parametrize("bounced", [False, True], ids=["there", "bounced"])
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_scenario_24_log_dir_failure(
    whole: Cluster, tmp_path: Path, role: str, bounced: bool
) -> None:
    """A directory loses its write permission: the broker leaves the ISR of the partitions in it and keeps
    running. When it is the only broker left, it serves the partitions in its other directory.
    """
    name = f"{role}-{'bounced' if bounced else 'there'}"
    first, second = f"first-{name}", f"second-{name}"
    create_topic(whole, first, 1, {"min.insync.replicas": "1"})
    move_all(whole, tmp_path, first, 1, GOOD)
    create_topic(whole, second, 1, {"min.insync.replicas": "2"})
    move_all(whole, tmp_path, second, 1, BAD)
    with Pair(whole, second) as pair:
        leading = leader(whole, second)
        broker = leading if role == "leader" else next(b for b in whole.brokers if b != leading)
        directory = whole.log_directories(broker)[BAD]
        change_mode(directory, "a-w")
        if bounced:
            whole.restart(broker)
        wait_until_left(whole, second, broker)
        assert whole.state(broker) is NodeState.RUNNING
        assert is_offline(whole, broker, directory)
        pair.goes_on()
        pair.check()
    for other in whole.brokers:
        if other != broker:
            whole.stop(other)
    with Pair(whole, first) as alone:
        alone.goes_on()
        assert list(partition(whole, first, broker=broker).isrs) == [broker]
        alone.check()
    for other in whole.brokers:
        if other != broker:
            whole.restart(other)
    change_mode(directory, "u+w")
    whole.restart(broker)
    for topic in (first, second):
        wait_until_in_sync(whole, topic, len(whole.brokers), 1)
        assert_replicas_equal(whole, topic, 1)
