"""Validation of topic configs, and their defaults from broker configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from odradek.broker.config.all_configs import TOPIC
from odradek.broker.config.types import ConfigError, ConfigValue, to_text
from odradek.storage.log.config import with_disable_policy

_MS_PER_MINUTE = 60 * 1000
_MS_PER_HOUR = 60 * _MS_PER_MINUTE
INHERITED = -2
"""Local retention equal to the total retention."""


def to_ms(broker_name: str, value: int) -> int:
    """Convert a duration of a broker config to ms, by the unit in its name."""
    if broker_name.endswith(".hours"):
        return value * _MS_PER_HOUR
    if broker_name.endswith(".minutes"):
        return value * _MS_PER_MINUTE
    return value


def topic_defaults(broker: Mapping[str, ConfigValue]) -> dict[str, str]:
    """Default texts of topic configs. `broker` has all broker configs."""
    found: dict[str, str] = {}
    for name, row in TOPIC.items():
        value = row.default_value
        for synonym in row.synonyms:
            if broker[synonym] is not None:
                value = broker[synonym]
                if isinstance(value, int) and not isinstance(value, bool):
                    value = to_ms(synonym, value)
                break
        if name == "retention.ms":
            value = max(cast(int, value), -1)
        if value is not None:
            found[name] = cast(str, to_text(value))
    return found


def parse_topic(texts: Mapping[str, str]) -> dict[str, ConfigValue]:
    """Values of all topic configs, with defaults for missing ones. Raises ConfigError."""
    return {name: row.parse(texts.get(name, row.default)) for name, row in TOPIC.items()}


def validate_topic(
    configs: Mapping[str, str | None],
    existing: Mapping[str, str],
    defaults: Mapping[str, ConfigValue],
    *,
    tiering: bool,
    diskless: bool = False,
) -> None:
    """Check that a topic with the configs `existing` may have exactly `configs`. Raises ConfigError. `defaults`
    are the values of unset configs (`parse_topic`). `tiering` and `diskless`: whether tiered storage and diskless
    topics are enabled on the node."""
    nulls = sorted(name for name, text in configs.items() if text is None)
    if nulls:
        raise ConfigError(f"Null value not supported for topic configs: {','.join(nulls)}")
    for name in configs:
        if name not in TOPIC:
            raise ConfigError(f"Unknown topic config name: {name}")
    texts = with_disable_policy(cast(Mapping[str, str], configs))
    values = {**defaults, **{name: TOPIC[name].parse(text) for name, text in texts.items()}}
    low = cast(int, values["min.compaction.lag.ms"])
    high = cast(int, values["max.compaction.lag.ms"])
    if low > high:
        raise ConfigError(
            f"conflict in topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
        )
    if values["diskless.enable"]:
        is_new = not is_true(existing.get("diskless.enable"))
        _check_diskless(values, is_enabled=diskless or not is_new)
    if values["remote.storage.enable"]:
        _check_tiered(values, tiering=tiering)
    elif is_true(existing.get("remote.storage.enable")):
        _check_no_longer_tiered(values)


def is_true(text: str | None) -> bool:
    """Whether the text of a boolean config is true. None and invalid texts are not."""
    return text is not None and text.strip().lower() == "true"


def _check_diskless(values: Mapping[str, ConfigValue], *, is_enabled: bool) -> None:
    if not is_enabled:
        raise ConfigError(
            "Diskless topics are disabled in the broker (diskless.storage.system.enable)."
            " Topic cannot be created with diskless.enable=true."
        )
    if values["remote.storage.enable"]:
        raise ConfigError(
            "remote.storage.enable=true and diskless.enable=true cannot be combined: the records of"
            " a diskless topic are only in the object store."
        )
    if "compact" in cast(Sequence[str], values["cleanup.policy"]):
        raise ConfigError(
            "Diskless topics cannot be compacted: diskless.enable=true requires"
            " cleanup.policy=delete or cleanup.policy being an empty list."
        )


def _check_tiered(values: Mapping[str, ConfigValue], *, tiering: bool) -> None:
    if not tiering:
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker (remote.log.storage.system.enable)."
            " Topic cannot be configured with remote log storage."
        )
    policy = cast(Sequence[str], values["cleanup.policy"])
    if policy and tuple(policy) != ("delete",):
        raise ConfigError(
            "Remote log storage only supports topics with cleanup.policy=delete"
            " or cleanup.policy being an empty list."
        )
    for unit in ("bytes", "ms"):
        _check_local_retention(unit, values)
    if values["remote.log.copy.disable"]:
        for unit in ("bytes", "ms"):
            _check_local_retention_without_copies(unit, values)


def _check_local_retention(unit: str, values: Mapping[str, ConfigValue]) -> None:
    total = cast(int, values[f"retention.{unit}"])
    local = cast(int, values[f"local.retention.{unit}"])
    name = f"local.retention.{unit}"
    if local == INHERITED:
        return
    if total > -1 and local == -1:
        raise ConfigError.of(
            name, local, f"Value must not be -1 as retention.{unit} value is set as {total}."
        )
    if total > -1 and local > total:
        raise ConfigError.of(
            name, local, f"Value must not be more than retention.{unit} property value: {total}"
        )


def _check_local_retention_without_copies(unit: str, values: Mapping[str, ConfigValue]) -> None:
    local = values[f"local.retention.{unit}"]
    if local not in (INHERITED, values[f"retention.{unit}"]):
        raise ConfigError(
            f"When `remote.log.copy.disable` is set to true, the `local.retention.{unit}` and"
            f" `retention.{unit}` must be set to the identical value because there will be no more"
            " logs copied to the remote storage."
        )


def _check_no_longer_tiered(values: Mapping[str, ConfigValue]) -> None:
    if not values["remote.log.delete.on.disable"]:
        raise ConfigError(
            "It is invalid to disable remote storage without deleting remote data. If you want to keep"
            " the remote data and turn to read only, please set"
            " `remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable remote"
            " storage and delete all remote data, please set"
            " `remote.storage.enable=false,remote.log.delete.on.disable=true`."
        )
