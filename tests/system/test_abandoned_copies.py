"""Scenario 21, Kafka's KRaftClusterTest, AbandonedFutureReplica: a broker is killed during the swap of a
future replica.

At the restart there is a future replica (`-future`) in the directory that the metadata contains, and the
current replica in another directory, or none. The future replica becomes the current replica, catches up with
its leader, and can lead; the other replica is removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from odradek.testing import Cluster
from tests.support.waiting import deadline
from tests.system.cluster_state import (
    TIMEOUT_S,
    create_topic,
    leader,
    wait_for_in_sync,
    wait_until_in_sync,
)
from tests.system.clusters import KINDS, assert_replicas_equal
from tests.system.directories import described, places, tool, two_directories_each
from tests.system.load import read_partitions
from tests.system.producer_consumer_pair import Pair

pytestmark = [pytest.mark.slow, pytest.mark.interop]


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with two_directories_each(request.param, tmp_path_factory.mktemp("offsets")) as running:
        yield running


@pytest.mark.parametrize("main_is_there", [False, True], ids=["alone", "beside-the-log"])
def test_scenario_21_abandoned_future_replica_becomes_replica(
    cluster: Cluster, main_is_there: bool
) -> None:
    broker, *others = cluster.brokers
    topic = f"abandoned-{main_is_there}"
    create_topic(cluster, topic, 1, {}, assignment=[cluster.brokers])
    assert leader(cluster, topic) == broker
    with Pair(cluster, topic) as pair:
        pair.goes_on()
        cluster.stop(broker)
        wait_for_in_sync(cluster, topic, set(others), broker=others[0])
        named, copy, main = abandon(cluster, broker, topic)
        if main_is_there:
            shutil.copytree(copy, main)
        pair.goes_on()
        cluster.restart(broker)
        wait_until_in_sync(cluster, topic, len(cluster.brokers), 1)
        with deadline(TIMEOUT_S, "the future replica to become the current replica") as check:
            while copy.exists() or main.exists() or places(cluster, topic)[0, broker] != str(named):
                check(0.1)
        assert not any(
            part["isFuture"]
            for directory in described(cluster, "--topic-list", topic)[broker]
            for part in directory["partitions"]
        )
        assert (named / f"{topic}-0").is_dir()
        tool(
            cluster, "leader-election", "--election-type", "preferred",
            "--topic", topic, "--partition", "0",
        )  # fmt: skip
        assert leader(cluster, topic, broker=broker) == broker
        pair.goes_on()
        pair.check()
    assert_replicas_equal(cluster, topic, 1)
    assert read_partitions(cluster.bootstrap, topic, 1)[0]


def abandon(cluster: Cluster, broker: int, topic: str) -> tuple[Path, Path, Path]:
    """Turn the log of the stopped broker into a future replica. Returns the directory of the log, the path
    of the future replica, and the path in the other directory.
    """
    first, second = map(Path, cluster.log_directories(broker))
    named, other = (first, second) if (first / f"{topic}-0").exists() else (second, first)
    copy = named / f"{topic}-0.{uuid4().hex}-future"
    (named / f"{topic}-0").rename(copy)
    return named, copy, other / f"{topic}-0"
