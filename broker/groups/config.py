"""Configuration of the group coordinator."""

from __future__ import annotations

from typing import Protocol

from odradek.broker.coordination.internal_topics import IntegerConfigs
from odradek.broker.groups.assignors import ASSIGNORS, CLASSES
from odradek.broker.groups.consumer.settings import ConsumerGroupMigrationPolicy
from odradek.seams.values import value_class

MINUTE_MS = 60_000
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * MINUTE_MS
"""How long a new member may wait in JoinGroup: it has no heartbeat yet by which to notice it is gone."""
ARRIVAL_MS = 100
"""For so long after its first join began, whoever is in a group lets others arrive: a heartbeat waits
(`Generations.initial_arrival_deadline_ms`). Two librdkafka consumers that start together join 50 ms apart about
once in three times, on whatever broker: on its connection to the coordinator one asks for its topic at
once, the other not until a second connection may be opened (`reconnect.backoff.ms` / 2). Then the
first is alone in a stable group and learns of the second by its next heartbeat, 3 s later; but its
first heartbeat comes right behind its assignment, and nothing behind that."""


class GroupConfigs(IntegerConfigs, Protocol):
    """Of `ServerConfig`, what is needed here."""

    def get_str(self, name: str) -> str: ...

    def get_list(self, name: str) -> tuple[str, ...]: ...


@value_class
class GroupConfig:
    """Kafka's configs of these names; durations in ms, sizes in bytes."""

    initial_rebalance_delay_ms: int = 3000
    arrival_ms: int = 0
    """See `ARRIVAL_MS`."""
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
    protocols: frozenset[str] = frozenset({"classic", "consumer", "streams"})
    """The kinds of groups that may be joined."""
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = tuple(ASSIGNORS)
    """The first one is for groups whose members name none."""
    migration_policy: ConsumerGroupMigrationPolicy = ConsumerGroupMigrationPolicy.BIDIRECTIONAL
    regex_refresh_interval_ms: int = 600_000

    @classmethod
    def from_configs(cls, configs: GroupConfigs) -> GroupConfig:
        return cls(
            initial_rebalance_delay_ms=configs.get_int("group.initial.rebalance.delay.ms"),
            arrival_ms=ARRIVAL_MS,
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
