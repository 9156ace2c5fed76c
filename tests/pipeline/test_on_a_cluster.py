"""The source and its jobs on a Spark cluster with a master and two workers return the same results."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

pytest.importorskip("pyspark")

from odradek.testing import Broker
from tests.pipeline.spark_cluster import environment, spark_cluster
from tests.pipeline.tiering import QUICK, TIERED
from tests.support.spark_reading import by_consumer

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PARTITIONS, COUNT = (0, 1, 2), 1800
TIMEOUT_SECONDS, END_SECONDS = 60.0, 600.0


def _produce(broker: Broker) -> None:
    """Produce records so that some are only in the store, and some only on the local disk."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 3000})
    for number in range(COUNT):
        producer.produce(
            "events", b"value %d" % number * 5, b"%d" % (number % 7), number % len(PARTITIONS)
        )
    producer.flush()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not all(_is_tiered(broker, partition) for partition in PARTITIONS):
        assert time.monotonic() < deadline, "nothing was tiered"
        time.sleep(0.1)


def _is_tiered(broker: Broker, partition: int) -> bool:
    found = broker.node.partitions.opened("events", partition)
    return found is not None and len(found.log.segments) == 1


def test_spark_cluster_reads_what_a_consumer_reads(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    with Broker(configs=QUICK, tiered=tier) as broker:
        broker.create_topic("events", len(PARTITIONS), {**TIERED, "retention.ms": "-1"})
        broker.create_topic("again", len(PARTITIONS), {"retention.ms": "-1"})
        _produce(broker)
        with spark_cluster(tmp_path / "cluster") as cluster:
            command = [sys.executable, "-m", "tests.pipeline.jobs_on_spark", cluster.master]
            command += [json.dumps(cluster.conf), broker.bootstrap, str(tier), str(tmp_path / "s")]
            ran = subprocess.run(
                command, env=environment(), capture_output=True, timeout=END_SECONDS, check=False
            )
        assert ran.returncode == 0, ran.stderr[-3000:].decode()
        found = json.loads(ran.stdout)
        consumed = by_consumer(broker.bootstrap, "events", PARTITIONS)
        again = by_consumer(broker.bootstrap, "again", PARTITIONS, isolation="read_committed")
    expected = [[row[0], row[1], (row[4] or b"").decode()] for row in consumed]
    assert len(expected) == COUNT
    assert found["executors"] == 2
    assert found["tasks"] > len(PARTITIONS)
    assert found["read"] == found["streamed"] == sorted(expected)
    assert found["replayed"] == [COUNT, 0]
    assert [(row[0], *row[2:]) for row in again] == [(row[0], *row[2:]) for row in consumed]
    assert found["audit"]["ok"]
    assert sum(each["records"] for each in found["audit"]["partitions"]) > COUNT / 2
    assert found["stats"] == [[each, COUNT // len(PARTITIONS), 7] for each in PARTITIONS]
