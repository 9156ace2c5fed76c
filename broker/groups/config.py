"""Configuration of the group coordinator, and of single consumer groups."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol

from odradek.broker.coordination.internal_topics import IntegerConfigs
from odradek.broker.groups.assignors import ASSIGNORS, CLASSES
from odradek.seams.values import value_class

MINUTE_MS = 60_000
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * MINUTE_MS
"""Session timeout of a new member that waits in JoinGroup, as in Kafka. It can't send heartbeats yet."""
DELAYED_HEARTBEAT_MS = 100
"""How long the members of a new group wait for further members before their Heartbeat gets a response.

With group.initial.rebalance.delay.ms=0, two librdkafka consumers that start together join about
50 ms apart in one of three runs. The first consumer is then alone in a stable group, sends its first
heartbeat right after SyncGroup, and the next one 3 s later. If the response to the first heartbeat
is delayed (`ClassicRebalance.heartbeat_delay_until_ms`), it reports the rebalance.
"""


class GroupConfigs(IntegerConfigs, Protocol):
    """The part of `ServerConfig` that the group coordinator reads."""

    def get_str(self, name: str) -> str: ...

    def get_list(self, name: str) -> tuple[str, ...]: ...


class ConsumerGroupMigrationPolicy(enum.Enum):
    """Conversions that `group.consumer.migration.policy` allows (KIP-848)."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        return self in (
            ConsumerGroupMigrationPolicy.UPGRADE,
            ConsumerGroupMigrationPolicy.BIDIRECTIONAL,
        )

    @property
    def downgrades(self) -> bool:
        return self in (
            ConsumerGroupMigrationPolicy.DOWNGRADE,
            ConsumerGroupMigrationPolicy.BIDIRECTIONAL,
        )


@value_class
class GroupConfig:
    """Kafka's configs of these names; durations in ms, sizes in bytes."""

    initial_rebalance_delay_ms: int = 3000
    delayed_heartbeat_ms: int = 0
    """`DELAYED_HEARTBEAT_MS` in a broker; 0 does not delay heartbeats."""
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    new_member_join_timeout_ms: int = NEW_MEMBER_JOIN_TIMEOUT_MS
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 10080 * MINUTE_MS
    offsets_retention_check_interval_ms: int = 600_000
    offsets_load_buffer_bytes: int = 5 * 1024 * 1024
    offsets_topic_compression: int = 0
    """Compression codec of the batches written; 0 is none."""
    commit_timeout_ms: int = 5000
    protocols: frozenset[str] = frozenset({"classic", "consumer", "streams"})
    """Rebalance protocols that groups may use."""
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = tuple(ASSIGNORS)
    """Names of the assignors; the first is the default."""
    migration_policy: ConsumerGroupMigrationPolicy = ConsumerGroupMigrationPolicy.BIDIRECTIONAL
    regex_refresh_interval_ms: int = 600_000

    @classmethod
    def from_configs(cls, configs: GroupConfigs) -> GroupConfig:
        return cls(
            initial_rebalance_delay_ms=configs.get_int("group.initial.rebalance.delay.ms"),
            delayed_heartbeat_ms=DELAYED_HEARTBEAT_MS,
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
            protocols=frozenset(configs.get_list("group.coordinator.rebalance.protocols")),
            consumer_max_size=configs.get_int("group.consumer.max.size"),
            consumer_assignors=tuple(
                CLASSES.get(each, each) for each in configs.get_list("group.consumer.assignors")
            ),
            migration_policy=ConsumerGroupMigrationPolicy(
                configs.get_str("group.consumer.migration.policy").lower()
            ),
            regex_refresh_interval_ms=configs.get_int("group.consumer.regex.refresh.interval.ms"),
        )


@value_class
class ConsumerGroupConfig:
    """Configs of one consumer group (ms)."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000

    @classmethod
    def of(cls, configs: IntegerConfigs, overrides: Mapping[str, str]) -> ConsumerGroupConfig:
        """The group's own values, limited to the broker's current bounds, or else the broker's defaults."""
        return cls(*(_group_value(configs, overrides, *names) for names in _CONFIG_NAMES))


def _group_value(
    configs: IntegerConfigs,
    overrides: Mapping[str, str],
    name: str,
    default: str,
    minimum: str,
    maximum: str,
) -> int:
    if name not in overrides:
        return configs.get_int(default)
    return max(configs.get_int(minimum), min(int(overrides[name]), configs.get_int(maximum)))


_CONFIG_NAMES = (
    (
        "consumer.session.timeout.ms",
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
    (
        "consumer.heartbeat.interval.ms",
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    (
        "consumer.assignment.interval.ms",
        "group.consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
)
"""For each field: the group config, the broker's default, minimum and maximum."""
