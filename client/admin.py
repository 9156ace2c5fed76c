"""Admin functions for topics, records and configs.

The modules `group_admin`, `acl_admin`, `log_dir_admin`, `quorum_admin` and `reassignment_admin` have those for other
resources. Each function raises KafkaError for the first resource with an error code, and ClientError if there is no
response; the changes to resources before that one were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from typing import Any
from uuid import UUID

from odradek.client.connection import BrokerConnection
from odradek.client.errors import check
from odradek.client.metadata import Cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class


class ResourceType(IntEnum):
    """Type of a resource with configs (ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Source of a config value."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    BROKER_DEFAULT = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigOperation(IntEnum):
    """Operation of IncrementalAlterConfigs on a config."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@value_class
class NewTopic:
    """Topic to create; -1 is the broker's default. `assignments` has the replicas by partition."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


@value_class
class CreatedTopic:
    name: str
    topic_id: UUID | None
    partitions: int
    replication_factor: int


@value_class
class ConfigEntry:
    """Config of a resource; `value` is None if it is sensitive or unset."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool


@value_class
class ConfigChange:
    operation: ConfigOperation
    name: str
    value: str | None = None


def _ms(cluster: Cluster) -> int:
    return int(cluster.timeout_s * 1000)


async def _request(
    connection: BrokerConnection, cluster: Cluster, api: apis.Api, **values: Any
) -> Any:
    # The timeout in the request is shorter, so that the broker's response reports what timed out.
    return await connection.request(api, values, timeout_s=cluster.timeout_s + 5)


# Topics


async def create_topics(
    cluster: Cluster, topics: Iterable[NewTopic], *, validate_only: bool = False
) -> list[CreatedTopic]:
    """Create topics, or only validate the request."""
    response = await _request(
        await cluster.controller(),
        cluster,
        apis.CREATE_TOPICS,
        topics=[_new_topic(topic) for topic in topics],
        timeout=_ms(cluster),
        validate_only=validate_only,
    )
    for row in response.topics:
        check(row.error_code, getattr(row, "error_message", None), about=f"topic {row.name}")
    return [
        CreatedTopic(
            row.name,
            getattr(row, "topic_id", None),
            getattr(row, "num_partitions", -1),
            getattr(row, "replication_factor", -1),
        )
        for row in response.topics
    ]


def _new_topic(topic: NewTopic) -> dict[str, Any]:
    by_hand = bool(topic.assignments)
    return {
        "name": topic.name,
        "num_partitions": -1 if by_hand else topic.partitions,
        "replication_factor": -1 if by_hand else topic.replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": list(brokers)}
            for index, brokers in topic.assignments.items()
        ],
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
    }


async def delete_topics(cluster: Cluster, names: Iterable[str]) -> None:
    """Delete topics and their records."""
    wanted = list(names)
    response = await _request(
        await cluster.controller(),
        cluster,
        apis.DELETE_TOPICS,
        topics=[{"name": name, "topic_id": None} for name in wanted],
        topic_names=wanted,
        timeout=_ms(cluster),
    )
    for row in response.responses:
        check(row.error_code, getattr(row, "error_message", None), about=f"topic {row.name}")
    for name in wanted:
        cluster.forget(name)


async def create_partitions(
    cluster: Cluster, topic: str, count: int, *, validate_only: bool = False
) -> None:
    """Increase the number of partitions of a topic to `count`."""
    response = await _request(
        await cluster.controller(),
        cluster,
        apis.CREATE_PARTITIONS,
        topics=[{"name": topic, "count": count, "assignments": None}],
        timeout=_ms(cluster),
        validate_only=validate_only,
    )
    for row in response.results:
        check(row.error_code, row.error_message, about=f"topic {row.name}")
    cluster.forget(topic)


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Delete the records before an offset (-1: all); return the new log start offsets."""
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for where, offset in before.items():
        by_leader.setdefault(await cluster.leader(*where), {})[where] = offset
    first: dict[TopicPartition, int] = {}
    for leader, part in by_leader.items():
        topics: dict[str, list[dict[str, int]]] = {}
        for where, offset in part.items():
            row = {"partition_index": where.partition, "offset": offset}
            topics.setdefault(where.topic, []).append(row)
        response = await _request(
            await cluster.node(leader),
            cluster,
            apis.DELETE_RECORDS,
            topics=[{"name": name, "partitions": rows} for name, rows in topics.items()],
            timeout=_ms(cluster),
        )
        for topic in response.topics:
            for found in topic.partitions:
                where = TopicPartition(topic.name, found.partition_index)
                check(found.error_code, about=f"deleting records of {where}")
                first[where] = found.low_watermark
    return first


# Configs


async def describe_configs(
    cluster: Cluster, type: ResourceType, name: str, *, keys: Sequence[str] | None = None
) -> list[ConfigEntry]:
    """Describe the configs of a topic, broker or group, sorted by name."""
    resource = {
        "resource_type": int(type),
        "resource_name": name,
        "configuration_keys": None if keys is None else list(keys),
    }
    response = await _request(
        await _config_node(cluster, type, name),
        cluster,
        apis.DESCRIBE_CONFIGS,
        resources=[resource],
        include_synonyms=False,
        include_documentation=False,
    )
    result = response.results[0]
    check(result.error_code, result.error_message, about=_resource(type, name))
    entries = [
        ConfigEntry(
            row.name, row.value, ConfigSource(row.config_source), row.read_only, row.is_sensitive
        )
        for row in result.configs
    ]
    return sorted(entries, key=lambda entry: entry.name)


async def alter_configs(
    cluster: Cluster,
    type: ResourceType,
    name: str,
    changes: Iterable[ConfigChange],
    *,
    validate_only: bool = False,
) -> None:
    """Alter configs of a resource; all others keep their values."""
    rows = [
        {"name": change.name, "config_operation": int(change.operation), "value": change.value}
        for change in changes
    ]
    resource = {"resource_type": int(type), "resource_name": name, "configs": rows}
    response = await _request(
        await _config_node(cluster, type, name),
        cluster,
        apis.INCREMENTAL_ALTER_CONFIGS,
        resources=[resource],
        validate_only=validate_only,
    )
    for row in response.responses:
        check(row.error_code, row.error_message, about=_resource(type, name))


async def list_config_resources(
    cluster: Cluster, types: Iterable[ResourceType] = ()
) -> list[tuple[int, str]]:
    """List type and name of resources with configs, of these types or of all."""
    response = await _request(
        await cluster.any_node(),
        cluster,
        apis.LIST_CONFIG_RESOURCES,
        resource_types=[int(type) for type in types],
    )
    check(response.error_code, about="config resources")
    return sorted(
        (int(getattr(row, "resource_type", ResourceType.CLIENT_METRICS)), str(row.resource_name))
        for row in response.config_resources
    )


async def _config_node(cluster: Cluster, type: ResourceType, name: str) -> BrokerConnection:
    """Connect to the broker itself for broker configs, and to any node for others."""
    if type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and name:
        if not name.isdecimal():
            raise KafkaError(ErrorCode.invalid_request, f"a broker's name is its id, not {name!r}")
        return await cluster.node(int(name))
    return await cluster.controller()


def _resource(type: ResourceType, name: str) -> str:
    return f"{type.name.lower().replace('_', ' ')} {name}".strip()
