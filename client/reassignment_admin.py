"""Admin functions for partition reassignments (KIP-455)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from odradek.client.errors import check
from odradek.client.metadata import Cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class


@value_class
class Reassignment:
    """Active reassignment: all replicas, and which are being added or removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def list_reassignments(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    """List the active reassignments of these partitions, or of all."""
    topics = None
    if partitions is not None:
        indexes: dict[str, list[int]] = {}
        for topic, partition in partitions:
            indexes.setdefault(topic, []).append(partition)
        topics = [{"name": name, "partition_indexes": rows} for name, rows in indexes.items()]
    connection = await cluster.controller()
    response = await connection.request(
        apis.LIST_PARTITION_REASSIGNMENTS,
        {"timeout": int(cluster.timeout_s * 1000), "topics": topics},
        timeout_s=cluster.timeout_s + 5,
    )
    check(response.error_code, response.error_message, about="reassignments")
    return {
        TopicPartition(topic.name, row.partition_index): Reassignment(
            tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
        )
        for topic in response.topics
        for row in topic.partitions
    }


async def alter_reassignments(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
) -> dict[TopicPartition, KafkaError]:
    """Reassign partitions to these replicas, or cancel their reassignments (None); return errors."""
    topics: dict[str, list[dict[str, object]]] = {}
    for where, replicas in wanted.items():
        row: dict[str, object] = {
            "partition_index": where.partition,
            "replicas": None if replicas is None else list(replicas),
        }
        topics.setdefault(where.topic, []).append(row)
    connection = await cluster.controller()
    response = await connection.request(
        apis.ALTER_PARTITION_REASSIGNMENTS,
        {
            "timeout": int(cluster.timeout_s * 1000),
            "allow_replication_factor_change": allow_replication_factor_change,
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        },
        timeout_s=cluster.timeout_s + 5,
    )
    check(response.error_code, response.error_message, about="the reassignment")
    return {
        TopicPartition(topic.name, row.partition_index): KafkaError(
            ErrorCode(row.error_code), row.error_message or _words(row.error_code)
        )
        for topic in response.responses
        for row in topic.partitions
        if row.error_code
    }


def _words(code: int) -> str:
    return ErrorCode(code).name.replace("_", " ")
