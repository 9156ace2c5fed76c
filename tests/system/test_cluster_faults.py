"""Three brokers, real clients and one fault: no acknowledged record is lost or duplicated.

Each fault is tested with an idempotent producer with acks=all and with a transactional producer, with three
replicas and min.insync.replicas=2. A consumer group reads at the same time. At the end the logs of the
replicas are identical byte for byte.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from odradek.broker.local_cluster.nodes import NodeState
from odradek.testing import Cluster
from tests.support.anomalies import assert_none
from tests.system.cluster_state import active_controller, create_topic
from tests.system.clusters import (
    CONFIGS,
    KINDS,
    SOFTWARE,
    TOPIC_CONFIG,
    UNCLEAN_TOPIC_CONFIG,
    assert_replicas_equal,
)
from tests.system.faults import FAULTS, Scene, reassignment_under_bounce, ring, unclean_election
from tests.system.group_consumer import Watcher
from tests.system.java_load import JavaLoad
from tests.system.ledger import Row
from tests.system.load import LOADS, read_partitions

pytestmark = pytest.mark.slow
BROKERS = 3


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(software=SOFTWARE[request.param](), brokers=BROKERS, configs=CONFIGS) as running:
        yield running
        gc.collect()  # librdkafka's handles log errors while they outlive the brokers


@pytest.fixture
def whole(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster; faults that a failed test left are repaired first."""
    yield cluster
    cluster.heal()
    for broker in cluster.brokers:
        if cluster.state(broker) is not NodeState.RUNNING:
            cluster.kill(broker)
            cluster.restart(broker)


@pytest.mark.parametrize("kind", LOADS)
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_neither_loses_nor_duplicates_acknowledged_records(
    whole: Cluster, fault: str, kind: str
) -> None:
    """The same holds for librdkafka and for the Java client, which uses another topic with the same
    leaders.
    """
    what, topic, in_java = FAULTS[fault], f"{fault}-{kind}", f"{fault}-{kind}-java"
    partitions, padding_bytes = what.partitions, what.padding_bytes
    assignment = list(ring(whole.brokers, partitions, BROKERS, 0).values())
    for each in (topic, in_java):
        create_topic(whole, each, partitions, TOPIC_CONFIG, assignment=assignment)
    with (
        LOADS[kind](whole.bootstrap, topic, partitions, padding_bytes=padding_bytes) as load,
        Watcher(whole.bootstrap, topic) as watcher,
        JavaLoad(
            whole.bootstrap, in_java, partitions, kind=kind, padding_bytes=padding_bytes
        ) as java,
    ):
        scene = Scene(whole, topic, partitions, load)
        load.wait_for_progress()
        java.wait_for_progress()
        what.happens(scene)
        rows = settled(scene)
        assert_none(load.ledger.anomalies(rows))
        watcher.wait_for(rows)
        assert_none(watcher.anomalies(rows))
        rows = settled(Scene(whole, in_java, partitions, java))
        assert_none(java.ledger.anomalies(rows))
        java.sights.wait_for(rows)
        assert_none(java.sights.anomalies(rows))
    for each in (topic, in_java):
        assert_replicas_equal(whole, each, partitions)


@pytest.mark.parametrize("kind", LOADS)
def test_reassignment_with_bounces_neither_loses_nor_duplicates_records(
    whole: Cluster, kind: str
) -> None:
    topic, partitions, replicas = f"reassigned-{kind}", 6, 2
    start = ring(whole.brokers, partitions, replicas, 0)
    create_topic(whole, topic, partitions, TOPIC_CONFIG, assignment=list(start.values()))
    with (
        LOADS[kind](whole.bootstrap, topic, partitions) as load,
        Watcher(whole.bootstrap, topic) as watcher,
    ):
        scene = Scene(whole, topic, partitions, load, replicas)
        load.wait_for_progress()
        reassignment_under_bounce(scene)
        rows = settled(scene)
        assert_none(load.ledger.anomalies(rows))
        watcher.wait_for(rows)
        assert_none(watcher.anomalies(rows))
    assert_replicas_equal(whole, topic, partitions)


@pytest.mark.parametrize("kind", LOADS)
def test_unclean_election_loses_only_records_of_old_leader(whole: Cluster, kind: str) -> None:
    """Logs are truncated to the log of the new leader (KIP-101, KIP-320): no record is duplicated, all
    replicas are equal, and the consumer group detects the truncation.
    """
    topic = f"unclean-{kind}"
    controller = active_controller(whole, broker=whole.brokers[0])
    replicas = [broker for broker in whole.brokers if broker != controller]
    create_topic(whole, topic, 1, UNCLEAN_TOPIC_CONFIG, assignment=[replicas])
    with (
        LOADS[kind](whole.bootstrap, topic, 1, may_lose=True) as load,
        Watcher(whole.bootstrap, topic) as watcher,
    ):
        scene = Scene(whole, topic, 1, load, len(replicas))
        load.wait_for_progress()
        lost_by_choice = unclean_election(scene)
        rows = settled(scene)
        assert_none(load.ledger.anomalies(rows, lost_by_choice=lost_by_choice))
        there = {value for _, value in rows[0]}
        lost = (lost_by_choice & load.acknowledged_values()) - there
        assert lost, "the election was not unclean"
        watcher.wait_for(rows)
    assert_replicas_equal(whole, topic, 1)


def settled(scene: Scene) -> dict[int, list[Row]]:
    """Records of the topic, after the cluster has recovered and all records have a result."""
    scene.load.wait_for_progress()
    scene.wait_until_in_sync()
    scene.load.finish()
    return read_partitions(scene.cluster.bootstrap, scene.topic, scene.partitions)
