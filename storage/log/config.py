"""Typed topic configs of a log.

Field names are Kafka's config names with '.' as '_'; meanings and defaults are those of Kafka 4.3's
LogConfig. The values are validated before by the config definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from odradek.seams.values import value_class

INT64_MAX = (1 << 63) - 1
DAY_MS = 24 * 60 * 60 * 1000


class _WithDict:
    """Base class with an instance dictionary, which `cached_property` needs."""


@value_class
class LogConfig(_WithDict):
    """Configs of one topic; times in ms, sizes in bytes, -1 means no limit where allowed.

    `preallocate` has no effect: segment files grow with each append.
    """

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    index_interval_bytes: int = 4096
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    local_retention_bytes: int = -2
    local_retention_ms: int = -2
    max_compaction_lag_ms: int = INT64_MAX
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    segment_bytes: int = 1024 * 1024 * 1024
    segment_index_bytes: int = 10 * 1024 * 1024
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * DAY_MS
    unclean_leader_election_enable: bool = False
    internal_segment_bytes: int | None = None

    @classmethod
    def from_topic_configs(
        cls, configs: Mapping[str, str], *, base: LogConfig | None = None
    ) -> LogConfig:
        """Create the config from validated values by Kafka's names; missing ones are taken from `base`
        or the defaults.

        Other names are ignored: a broker may have configs that a log does not use.
        """
        values: dict[str, Any] = {
            field: _PARSER_OF[field](text)
            for name, text in with_disable_policy(configs).items()
            if (field := name.replace(".", "_")) in _PARSER_OF
        }
        return replace(base if base is not None else cls(), **values)

    @cached_property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @cached_property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy

    @cached_property
    def local_limits(self) -> tuple[int, int]:
        """Limits of the local log of a tiered topic: bytes and ms (T-15; -2 means the total limit)."""
        size_bytes, age_ms = self.local_retention_bytes, self.local_retention_ms
        return (
            self.retention_bytes if size_bytes == -2 else size_bytes,
            self.retention_ms if age_ms == -2 else age_ms,
        )

    @cached_property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @cached_property
    def max_segment_bytes(self) -> int:
        """`segment.bytes`, or `internal.segment.bytes` in tests."""
        if self.internal_segment_bytes is not None:
            return self.internal_segment_bytes
        return self.segment_bytes

    @cached_property
    def max_segment_ms(self) -> int:
        """Time after which the active segment is rolled; at most the compaction lag for a compacted
        log."""
        if self.compact and self.max_compaction_lag_ms > 0:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms


def with_disable_policy(configs: Mapping[str, str]) -> Mapping[str, str]:
    """The configs with `remote.log.disable.policy` (KIP-950) expressed by Kafka's: `retain` disables copying, and
    `delete` deletes the remote data."""
    policy = configs.get("remote.log.disable.policy")
    if policy == "retain":
        return {
            **configs,
            "remote.storage.enable": "true",
            "remote.log.copy.disable": "true",
            "local.retention.ms": "-2",
            "local.retention.bytes": "-2",
        }
    if policy == "delete":
        return {**configs, "remote.log.delete.on.disable": "true"}
    return configs


def _list(text: str) -> tuple[str, ...]:
    return tuple(part for item in text.split(",") if (part := item.strip()))


def _bool(text: str) -> bool:
    return text.strip().lower() == "true"


_PARSERS: Mapping[str, Callable[[str], object]] = {
    "bool": _bool,
    "int": int,
    "int | None": int,
    "float": float,
    "str": str,
    "tuple[str, ...]": _list,
}
"""Parsers of config values, by the annotation of the field."""

_PARSER_OF = {field.name: _PARSERS[str(field.type)] for field in fields(LogConfig)}
