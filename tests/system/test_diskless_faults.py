"""Diskless topics on three broker processes that are killed at random: what idempotent producers got acknowledged is in the
log exactly once and in order, and a consumer group has read the same (D-05 to D-07, D-13).

ODRADEK_DISKLESS_KILLS is the number of kills.
"""

from __future__ import annotations

import os
import random

import pytest

from odradek.testing import Cluster
from tests.support.anomalies import assert_none
from tests.support.librdkafka_clients import create_topic
from tests.system.cluster_state import wait_until_in_sync
from tests.system.clusters import CONFIGS
from tests.system.group_consumer import Watcher
from tests.system.load import IdempotentLoad, read_partitions

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("ODRADEK_DISKLESS_KILLS", "6"))
PARTITIONS = 6
METADATA_PARTITIONS = 3
REPLICAS = 3


def test_killed_brokers_neither_lose_nor_duplicate_acknowledged_records() -> None:
    draws = random.Random(KILLS)
    configs = {**CONFIGS, "diskless.append.commit.interval.ms": "50"}
    with Cluster(brokers=3, diskless=True, configs=configs, proxied=False) as cluster:
        create_topic(
            cluster.bootstrap, "d", partitions=PARTITIONS, config={"diskless.enable": "true"}
        )
        with (
            IdempotentLoad(cluster.bootstrap, "d", PARTITIONS) as load,
            Watcher(cluster.bootstrap, "d") as watcher,
        ):
            load.wait_for_progress()
            for _ in range(KILLS):
                broker = draws.choice(cluster.brokers)
                cluster.kill(broker)
                if draws.random() < 0.5:
                    load.wait_for_progress()
                cluster.restart(broker)
                load.wait_for_progress()
                # The next kill must leave two replicas in sync
                wait_until_in_sync(cluster, "__diskless_metadata", REPLICAS, METADATA_PARTITIONS)
                wait_until_in_sync(cluster, "__consumer_offsets", REPLICAS, 3)
            load.finish()
            rows = read_partitions(cluster.bootstrap, "d", PARTITIONS)
            assert_none(load.ledger.anomalies(rows))
            watcher.wait_for(rows)
            assert_none(watcher.anomalies(rows))
