"""Clusters of three brokers for fault tests. ODRADEK_INTEROP_BROKER selects Odradek or Apache Kafka, as in
the interop tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from odradek.bench.peers.kafka import KafkaNodes
from odradek.broker.local_cluster.nodes import Software
from odradek.broker.local_cluster.odradek_nodes import OdradekNodes
from odradek.protocol.records.batch import batches
from odradek.protocol.records.control import read_end_marker
from odradek.protocol.records.records import decode
from odradek.seams.real import real_seams
from odradek.testing import Cluster
from tests.support.anomalies import assert_none
from tests.support.kafka_dist import kafka_dist
from tests.support.waiting import deadline
from tests.system.cluster_state import partition

KINDS = [name.strip() for name in os.environ.get("ODRADEK_INTEROP_BROKER", "odradek").split(",")]
CONFIGS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    # Short timeouts, so that a fault is over after a few seconds.
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
    """Nodes of Apache Kafka in small JVMs that start fast."""
    *java, _ = kafka_dist().command("Main", heap_mb=384)
    return KafkaNodes(java)


SOFTWARE: Mapping[str, Callable[[], Software]] = {
    "odradek": lambda: OdradekNodes(real_seams()),
    "kafka": kafka_nodes,
}


def assert_replicas_equal(cluster: Cluster, topic: str, partitions: int) -> None:
    """Assert that each assigned broker, and no other one, has a replica of each partition, and that the
    logs of all replicas are identical byte for byte. Waits until the followers have caught up.
    """
    for index in range(partitions):
        replicas = sorted(partition(cluster, topic, index).replicas)
        logs = _logs(cluster, f"{topic}-{index}")
        try:
            with deadline(30, f"equal logs of {topic}-{index} on {replicas}") as check:
                while not _are_equal(logs, replicas):
                    check(0.1)
                    logs = _logs(cluster, f"{topic}-{index}")
        except AssertionError:
            assert_none(_parted(f"{topic}-{index}", logs))
            raise
        assert logs[0][1], "the log is empty"


def shown_batches(cluster: Cluster, topic: str) -> list[str]:
    """Offsets, epochs and producers of the batches of a topic on each broker."""
    brokers = sorted(cluster.brokers)
    directories = {path for broker in brokers for path in cluster.log_directories(broker)}
    names = {each.name for path in directories for each in Path(path).glob(f"{topic}-[0-9]*")}
    return [
        f"{name} on {broker}: {batch.base_offset} to {batch.last_offset} in epoch {batch.leader_epoch}"
        f" by {batch.producer_id}, {batch.producer_epoch}, {batch.base_sequence}"
        for name in sorted(names)
        for broker, log in _logs(cluster, name)
        for batch in batches(memoryview(log), allow_partial=True)
    ]


def _are_equal(logs: Sequence[tuple[int, bytes]], replicas: Sequence[int]) -> bool:
    return [broker for broker, _ in logs] == replicas and len({log for _, log in logs}) == 1


def _parted(name: str, logs: Sequence[tuple[int, bytes]]) -> list[str]:
    """Brokers whose log is not a prefix of the longest log."""
    longest = max((log for _, log in logs), key=len, default=b"")
    return [
        f"the log of {name} on broker {broker} differs from the longest log"
        for broker, log in logs
        if not longest.startswith(log)
    ]


def _logs(cluster: Cluster, name: str) -> list[tuple[int, bytes]]:
    """Logs of a partition by broker; a broker with the partition in two directories is listed twice."""
    found = []
    for broker in sorted(cluster.brokers):
        for path in cluster.log_directories(broker):
            directory = Path(path) / name
            with suppress(FileNotFoundError):  # a replica that is being removed
                if directory.exists():
                    parts = [file.read_bytes() for file in sorted(directory.glob("*.log"))]
                    found.append((broker, b"".join(parts)))
    return found


def committed_values(cluster: Cluster, broker: int, name: str) -> set[bytes]:
    """Committed values in the log of a broker that is not running, as a read_committed consumer would read
    them.
    """
    [log] = [log for each, log in _logs(cluster, name) if each == broker]
    found: set[bytes] = set()
    under_way: dict[int, set[bytes]] = {}
    # The broker may have been killed during a write
    for batch in batches(memoryview(log), allow_partial=True):
        if batch.is_control:
            values = under_way.pop(batch.producer_id, set())
            if read_end_marker(batch)[0]:
                found |= values
            continue
        values = under_way.setdefault(batch.producer_id, set()) if batch.is_transactional else found
        values |= {record.value for record in decode(batch) if record.value is not None}
    return found
