"""Three brokers with diskless topics are killed at random, under an idempotent producer and a consumer group (D-05 to D-07,
D-13).

The WAL files are in a directory, or in a real S3 server. Every acknowledged record is in the topic once, and in order.
`ODRADEK_KILL_ROUNDS` is the number of rounds; each kills one broker, or two of three, and restarts them.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from odradek.testing import Cluster
from tests.support.anomalies import assert_none
from tests.system.cluster_state import create_topic, wait_until_in_sync
from tests.system.clusters import CONFIGS
from tests.system.group_consumer import Watcher
from tests.system.load import IdempotentLoad, read_partitions

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("ODRADEK_KILL_ROUNDS", "4"))
PARTITIONS = 6
METADATA_PARTITIONS = 3
REPLICAS = 3
RUN_S = 1.5
"""Longest time between two kills, and between a kill and the restart."""
DISKLESS: Mapping[str, str] = {
    "diskless.append.commit.interval.ms": "50",
    "diskless.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
    "diskless.metadata.topic.replication.factor": str(REPLICAS),
    "diskless.metadata.snapshot.interval.records": "200",
    "offsets.topic.replication.factor": str(REPLICAS),
}


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.interop)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    configs, store = {**CONFIGS, **DISKLESS}, str(tmp_path / "store")
    if request.param == "s3":
        server = request.getfixturevalue("s3_server")
        store = server.new_store()
        configs |= {f"diskless.storage.{name}": value for name, value in server.options.items()}
    with Cluster(brokers=3, configs=configs, diskless=store) as running:
        yield running


def test_killed_brokers_neither_lose_nor_duplicate_records(cluster: Cluster) -> None:
    chance = random.Random(ROUNDS)
    create_topic(cluster, "kills", PARTITIONS, {"diskless.enable": "true"}, replicas=1)
    with (
        IdempotentLoad(cluster.bootstrap, "kills", PARTITIONS) as load,
        Watcher(cluster.bootstrap, "kills") as watcher,
    ):
        load.wait_for_progress()
        for number in range(ROUNDS):
            killed = chance.sample(cluster.brokers, 2 if number % 5 == 4 else 1)
            for broker in killed:
                cluster.kill(broker)
            if len(killed) == 1 and chance.random() < 0.5:
                load.wait_for_progress()
            time.sleep(chance.uniform(0, RUN_S))
            cluster.restart(killed)
            load.wait_for_progress()
            if chance.random() < 0.5:  # a broker that caught up may lead next
                wait_until_in_sync(cluster, "__diskless_metadata", REPLICAS, METADATA_PARTITIONS)
            time.sleep(chance.uniform(0, RUN_S))
        load.finish()
        rows = read_partitions(cluster.bootstrap, "kills", PARTITIONS)
        assert_none(load.ledger.anomalies(rows))
        watcher.wait_for(rows)
        assert_none(watcher.anomalies(rows))
    assert load.ledger.acknowledged > 20 * ROUNDS
