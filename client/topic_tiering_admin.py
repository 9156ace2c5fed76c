"""Admin functions for tiered storage of topics: the tiered state and its changes (KIP-950).

Apache Kafka has neither the tiered state nor the configuration `remote.log.disable.policy`, and it closes the
connection after a request with an unknown API key. So `has_tiered_state` is called first.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from odradek.client.admin import ResourceType, describe_configs
from odradek.client.connection import BrokerConnection
from odradek.client.errors import ClientError, Unreachable, Unsupported, check
from odradek.client.metadata import Cluster
from odradek.protocol.apis import DESCRIBE_TOPIC_TIERING
from odradek.protocol.errors import KafkaError
from odradek.seams.values import value_class

ENABLE = "remote.storage.enable"
DISABLE_POLICY = "remote.log.disable.policy"
COPY_DISABLE = "remote.log.copy.disable"


class TieredState(IntEnum):
    """Tiered state of a topic."""

    ENABLED = 0
    """Tiered storage was not disabled with a policy, or was enabled again."""
    DISABLING = 1
    DISABLED = 2


@value_class
class BrokerDisablement:
    """Whether a broker has finished its part of a disablement; `reason` is why not, or None if it has not responded."""

    broker_id: int
    is_done: bool
    reason: str | None


@value_class
class TopicTiering:
    """Tiered storage of a topic. `brokers` is empty unless the state is DISABLING."""

    topic: str
    is_tiered: bool
    """Value of `remote.storage.enable`."""
    state: TieredState
    epoch: int
    policy: str | None
    brokers: tuple[BrokerDisablement, ...]


async def has_tiered_state(cluster: Cluster, topic: str) -> bool:
    """Whether the cluster has `remote.log.disable.policy` and the tiered state."""
    entries = await describe_configs(cluster, ResourceType.TOPIC, topic, keys=[DISABLE_POLICY])
    return any(entry.name == DISABLE_POLICY for entry in entries)


async def describe_topic_tiering(cluster: Cluster, topics: Iterable[str]) -> list[TopicTiering]:
    """Describe the tiered state of topics. Raises KafkaError for the first topic with an error, and Unsupported if
    the cluster does not have this API."""
    response = await _request(cluster, await cluster.controller(), topics)
    for row in response.topics:
        check(row.error_code, row.error_message, about=f"topic {row.name}")
    return [
        TopicTiering(
            row.name,
            row.is_tiered,
            TieredState(row.state),
            row.epoch,
            row.policy,
            tuple(
                BrokerDisablement(each.broker_id, each.is_done, each.reason) for each in row.brokers
            ),
        )
        for row in response.topics
    ]


async def remote_segment_counts(cluster: Cluster, topic: str) -> dict[int, int | None]:
    """Number of remote log segments of each partition, from its leader; None if the leader does not respond or
    does not know it."""
    partitions = (await cluster.topic(topic)).partitions
    counts: dict[int, int | None] = dict.fromkeys(partitions)
    for leader in sorted({each.leader for each in partitions.values() if each.leader >= 0}):
        try:
            response = await _request(cluster, await cluster.node(leader), [topic])
        except (ClientError, KafkaError):
            continue
        for row in response.topics:
            counts |= {each.partition_index: each.segments for each in row.partitions}
    return counts


async def _request(cluster: Cluster, connection: BrokerConnection, topics: Iterable[str]) -> Any:
    try:
        response = await connection.request(
            DESCRIBE_TOPIC_TIERING, {"topics": list(topics)}, timeout_s=cluster.timeout_s + 5
        )
    except Unreachable as error:
        raise Unsupported(
            f"no response to DescribeTopicTiering: {error}. Apache Kafka, and versions of Odradek without this API,"
            " close the connection"
        ) from error
    check(response.error_code, response.error_message)
    return response
