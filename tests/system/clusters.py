"""Three brokers to break: ours, or Apache Kafka's, by ODRADEK_INTEROP_BROKER as in the interop tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from odradek.bench.peers.kafka_nodes import KafkaNodes
from odradek.broker.local_cluster.nodes import Software
from odradek.broker.local_cluster.odradek_nodes import OdradekNodes
from odradek.seams.real import real_seams
from odradek.testing import Cluster
from tests.interop.broker_process import deadline
from tests.interop.kafka_dist import kafka_dist

KINDS = [name.strip() for name in os.environ.get("ODRADEK_INTEROP_BROKER", "odradek").split(",")]
CONFIGS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    # Time-outs of seconds where Kafka has tens of them, so that a fault is over sooner.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "4000",
    "replica.socket.timeout.ms": "4000",
    "controller.socket.timeout.ms": "4000",
    "group.initial.rebalance.delay.ms": "0",
    "log.initial.task.delay.ms": "0",
}
TOPIC_CONFIG: Mapping[str, str] = {"min.insync.replicas": "2"}
UNCLEAN_TOPIC_CONFIG: Mapping[str, str] = {
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "true",
}


def kafka_nodes() -> Software:
    """Apache Kafka in small JVMs that start fast."""
    *java, _ = kafka_dist().command("Main", heap_mb=384)
    return KafkaNodes(java)


SOFTWARE: Mapping[str, Callable[[], Software]] = {
    "odradek": lambda: OdradekNodes(real_seams()),
    "kafka": kafka_nodes,
}


def assert_replicas_equal(cluster: Cluster, topic: str, partitions: int) -> None:
    """Every broker's log of each partition is the same, byte for byte, once followers have caught up."""
    for index in range(partitions):
        with deadline(30, f"equal logs of {topic}-{index}") as check:
            while len(set(logs := _logs(cluster, f"{topic}-{index}"))) > 1:
                check(0.1)
        assert logs[0], "an empty log proves nothing"


def _logs(cluster: Cluster, partition: str) -> list[bytes]:
    directories = [
        Path(path) / partition
        for broker in cluster.brokers
        for path in cluster.log_directories(broker)
    ]
    return [
        b"".join(file.read_bytes() for file in sorted(directory.glob("*.log")))
        for directory in directories
        if directory.exists()
    ]
