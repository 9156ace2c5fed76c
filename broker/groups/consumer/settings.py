"""Broker and group configuration of consumer groups."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from odradek.broker.coordination.internal_topics import IntegerConfigs
from odradek.seams.values import value_class


class ConsumerGroupMigrationPolicy(enum.Enum):
    """Which way a live group may go when its members change their protocol."""

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
class ConsumerGroupConfig:
    """What a consumer group can set for itself (ms), within the bounds that the broker sets."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000

    @classmethod
    def of(cls, configs: IntegerConfigs, overrides: Mapping[str, str]) -> ConsumerGroupConfig:
        """A group's own value where it has one, kept within bounds that may have changed since."""
        return cls(*(_setting(configs, overrides, *names) for names in _NAMES))


def _setting(
    configs: IntegerConfigs,
    overrides: Mapping[str, str],
    name: str,
    default: str,
    least: str,
    most: str,
) -> int:
    if name not in overrides:
        return configs.get_int(default)
    return max(configs.get_int(least), min(int(overrides[name]), configs.get_int(most)))


_NAMES = (
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
"""Of each setting: the group's config, the broker's default for it, and its bounds."""
