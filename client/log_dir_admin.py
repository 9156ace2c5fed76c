"""Admin functions for log directories: describe them, and move replicas between them (KIP-113).

Each broker gets its own request. The functions raise KafkaError for an error of a whole request, and ClientError if a
broker does not respond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from odradek.client.connection import BrokerConnection
from odradek.client.errors import check
from odradek.client.metadata import Cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class

ANY = "any"
"""Target directory that cancels a move in Odradek (J-02); Kafka does not support it."""


class Replica(NamedTuple):
    """Replica of a partition on a broker, printed as topic-partition-broker like in Kafka's tools."""

    broker: int
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.broker}"


@value_class
class ReplicaInDirectory:
    """Replica in a log directory: its size in bytes and its lag in offsets."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


@value_class
class LogDirectory:
    """Log directory of a broker; total and usable bytes of its disk are -1 if not reported."""

    broker: int
    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    replicas: tuple[ReplicaInDirectory, ...]
    cordoned: bool = False
    """Whether it gets no new replicas (KIP-1066)."""


async def _request(
    connection: BrokerConnection, cluster: Cluster, api: apis.Api, **values: Any
) -> Any:
    return await connection.request(api, values, timeout_s=cluster.timeout_s + 5)


async def describe_log_dirs(
    cluster: Cluster,
    *,
    brokers: Iterable[int] | None = None,
    partitions: Iterable[TopicPartition] | None = None,
) -> list[LogDirectory]:
    """Describe the log directories of these brokers, or of all, with these partitions, or all."""
    await cluster.refresh()
    topics: list[dict[str, Any]] | None = None
    if partitions is not None:
        indexes: dict[str, list[int]] = {}
        for topic, partition in partitions:
            indexes.setdefault(topic, []).append(partition)
        topics = [{"topic": name, "partitions": rows} for name, rows in indexes.items()]
    directories = []
    for node_id in sorted(cluster.nodes if brokers is None else brokers):
        response = await _request(
            await cluster.node(node_id), cluster, apis.DESCRIBE_LOG_DIRS, topics=topics
        )
        check(getattr(response, "error_code", 0), about=f"the log directories of broker {node_id}")
        directories += [_log_directory(node_id, row) for row in response.results]
    return directories


def _log_directory(node_id: int, row: Any) -> LogDirectory:
    replicas = [
        ReplicaInDirectory(
            topic.name,
            part.partition_index,
            part.partition_size,
            part.offset_lag,
            part.is_future_key,
        )
        for topic in row.topics
        for part in topic.partitions
    ]
    return LogDirectory(
        node_id,
        row.log_dir,
        ErrorCode(row.error_code),
        getattr(row, "total_bytes", -1),
        getattr(row, "usable_bytes", -1),
        tuple(sorted(replicas, key=lambda replica: (replica.topic, replica.partition))),
        getattr(row, "is_cordoned", False),
    )


async def alter_replica_log_dirs(
    cluster: Cluster, wanted: Mapping[Replica, str]
) -> dict[Replica, ErrorCode]:
    """Start moves of replicas to these directories, absolute paths on their brokers.

    Returns the error code of each replica. NONE: the move has started, or the replica is already in
    the directory. REPLICA_NOT_AVAILABLE or UNKNOWN_TOPIC_OR_PARTITION: the broker does not have the
    replica, and keeps the directory for its creation.
    """
    by_broker: dict[int, dict[str, dict[str, list[int]]]] = {}
    for replica, path in wanted.items():
        topics = by_broker.setdefault(replica.broker, {}).setdefault(path, {})
        topics.setdefault(replica.topic, []).append(replica.partition)
    results = {}
    for broker, paths in by_broker.items():
        dirs = [
            {
                "path": path,
                "topics": [
                    {"name": name, "partitions": indexes} for name, indexes in topics.items()
                ],
            }
            for path, topics in paths.items()
        ]
        response = await _request(
            await cluster.node(broker), cluster, apis.ALTER_REPLICA_LOG_DIRS, dirs=dirs
        )
        for topic in response.results:
            for row in topic.partitions:
                replica = Replica(broker, topic.topic_name, row.partition_index)
                results[replica] = ErrorCode(row.error_code)
    return results
