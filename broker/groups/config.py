"""What the group coordinator is configured with, and the internal topics it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"

MINUTE_MS = 60_000
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * MINUTE_MS
"""How long a new member may wait in JoinGroup: it has no heartbeat yet by which to notice it is gone."""


class Configs(Protocol):
    """Of `ServerConfig`, what is needed here."""

    def get_int(self, name: str) -> int: ...


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Kafka's configs of these names; durations in ms, sizes in bytes."""

    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    new_member_join_timeout_ms: int = NEW_MEMBER_JOIN_TIMEOUT_MS
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 10080 * MINUTE_MS
    offsets_retention_check_interval_ms: int = 600_000
    offsets_load_buffer_bytes: int = 5 * 1024 * 1024
    offsets_topic_compression: int = 0
    """Codec of the batches written; 0 is none."""
    commit_timeout_ms: int = 5000

    @classmethod
    def from_configs(cls, configs: Configs) -> GroupConfig:
        return cls(
            initial_rebalance_delay_ms=configs.get_int("group.initial.rebalance.delay.ms"),
            min_session_timeout_ms=configs.get_int("group.min.session.timeout.ms"),
            max_session_timeout_ms=configs.get_int("group.max.session.timeout.ms"),
            max_size=configs.get_int("group.max.size"),
            offset_metadata_max_bytes=configs.get_int("offset.metadata.max.bytes"),
            offsets_retention_ms=configs.get_int("offsets.retention.minutes") * MINUTE_MS,
            offsets_retention_check_interval_ms=configs.get_int(
                "offsets.retention.check.interval.ms"
            ),
            offsets_load_buffer_bytes=configs.get_int("offsets.load.buffer.size"),
            offsets_topic_compression=configs.get_int("offsets.topic.compression.codec"),
            commit_timeout_ms=configs.get_int("offsets.commit.timeout.ms"),
        )


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that brokers create for themselves when it is first needed."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


class InternalTopics(Protocol):
    """What this floor needs of the node: topics that come into being on demand."""

    async def ensure_internal_topic(self, topic: InternalTopic) -> None:
        """Create the topic where it is missing; at once if it is there.

        Returns when the metadata image has it, with leaders. Raises KafkaError where it can't be
        created now (too few brokers for its replication factor, no controller): the client is told
        COORDINATOR_NOT_AVAILABLE and asks again. Its partitions need not be open: whoever needs one
        opens that one, and the others follow in their own time.
        """
        ...


def offsets_topic(configs: Configs) -> InternalTopic:
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


def transactions_topic(configs: Configs) -> InternalTopic:
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
