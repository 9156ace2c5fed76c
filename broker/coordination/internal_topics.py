"""Names, partition counts and configs of the internal topics, as in Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from odradek.protocol.topics import DISKLESS_METADATA
from odradek.seams.values import value_class

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
DISKLESS_METADATA_TOPIC = DISKLESS_METADATA
COORDINATOR_TOPICS = frozenset(
    {OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state", DISKLESS_METADATA_TOPIC}
)
INTERNAL_TOPICS = COORDINATOR_TOPICS | {"__remote_log_metadata"}
"""Topics that Metadata reports as internal (T-44: Kafka 4.x does not report the last as internal)."""


def is_internal_topic(topic: str) -> bool:
    """Whether Metadata reports the topic as internal."""
    return topic in INTERNAL_TOPICS


def is_coordinator_topic(topic: str) -> bool:
    """Whether coordinators alone write the topic. Clients do write `__remote_log_metadata`."""
    return topic in COORDINATOR_TOPICS


class IntegerConfigs(Protocol):
    """The part of `ServerConfig` that coordinators read."""

    def get_int(self, name: str) -> int: ...


@value_class
class InternalTopic:
    """An internal topic, created automatically on first use."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


def offsets_topic(configs: IntegerConfigs) -> InternalTopic:
    """`__consumer_offsets` with Kafka's settings."""
    return InternalTopic(
        OFFSETS_TOPIC,
        configs.get_int("offsets.topic.num.partitions"),
        configs.get_int("offsets.topic.replication.factor"),
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(configs.get_int("offsets.topic.segment.bytes")),
        },
    )


def transactions_topic(configs: IntegerConfigs) -> InternalTopic:
    """`__transaction_state` with Kafka's settings."""
    return InternalTopic(
        TRANSACTIONS_TOPIC,
        configs.get_int("transaction.state.log.num.partitions"),
        configs.get_int("transaction.state.log.replication.factor"),
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "unclean.leader.election.enable": "false",
            "min.insync.replicas": str(configs.get_int("transaction.state.log.min.isr")),
            "segment.bytes": str(configs.get_int("transaction.state.log.segment.bytes")),
        },
    )


DISKLESS_METADATA_CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
}
"""Configs without which committed records of `__diskless_metadata` would be lost."""


def diskless_metadata_topic(configs: IntegerConfigs) -> InternalTopic:
    """`__diskless_metadata` with its settings (KIP-1164, D-15). The coordinators prune it after their snapshots.

    A record of a committed file has all its batches, so that it may be larger than the default of
    `max.message.bytes`.
    """
    factor = configs.get_int("diskless.metadata.topic.replication.factor")
    return InternalTopic(
        DISKLESS_METADATA_TOPIC,
        configs.get_int("diskless.metadata.topic.num.partitions"),
        factor,
        {
            **DISKLESS_METADATA_CONFIGS,
            "compression.type": "producer",
            "min.insync.replicas": str(min(2, factor)),
            "max.message.bytes": "67108864",
            "segment.bytes": "104857600",
        },
    )
