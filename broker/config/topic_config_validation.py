"""Validation of topic configs, and their defaults from broker configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from odradek.broker.config.all_configs import TOPIC
from odradek.broker.config.types import ConfigError, ConfigValue, to_text

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
) -> None:
    """Check that a topic with the configs `existing` may have exactly `configs`. Raises ConfigError. `defaults`
    are the values of unset configs (`parse_topic`)."""
    nulls = sorted(name for name, text in configs.items() if text is None)
    if nulls:
        raise ConfigError(f"Topic configs cannot be null: {', '.join(nulls)}")
    for name in configs:
        if name not in TOPIC:
            raise ConfigError(f"Unknown topic config name: {name}")
    values = {**defaults, **{name: TOPIC[name].parse(text) for name, text in configs.items()}}
    low = cast(int, values["min.compaction.lag.ms"])
    high = cast(int, values["max.compaction.lag.ms"])
    if low > high:
        raise ConfigError(f"min.compaction.lag.ms ({low}) is above max.compaction.lag.ms ({high})")
    if values["remote.storage.enable"]:
        _check_tiered(values, tiering=tiering)
    elif existing.get("remote.storage.enable", "").strip().lower() == "true":
        _check_no_longer_tiered(values)


def _check_tiered(values: Mapping[str, ConfigValue], *, tiering: bool) -> None:
    if not tiering:
        raise ConfigError(
            "remote.storage.enable needs remote.log.storage.system.enable, which this broker does not have"
        )
    policy = cast(Sequence[str], values["cleanup.policy"])
    if policy and tuple(policy) != ("delete",):
        raise ConfigError("remote.storage.enable needs cleanup.policy=delete, or none at all")
    for unit in ("bytes", "ms"):
        _check_local_retention(unit, values)


def _check_local_retention(unit: str, values: Mapping[str, ConfigValue]) -> None:
    total = cast(int, values[f"retention.{unit}"])
    local = cast(int, values[f"local.retention.{unit}"])
    name = f"local.retention.{unit}"
    if local == INHERITED:
        return
    if total > -1 and local == -1:
        raise ConfigError.of(name, local, f"must not be -1 while retention.{unit} is {total}")
    if total > -1 and local > total:
        raise ConfigError.of(name, local, f"must not be above retention.{unit}, {total}")
    if values["remote.log.copy.disable"] and local != total:
        raise ConfigError.of(
            name,
            local,
            f"must be retention.{unit}, {total}, or -2 while remote.log.copy.disable is true:"
            " nothing more is copied",
        )


def _check_no_longer_tiered(values: Mapping[str, ConfigValue]) -> None:
    if not values["remote.log.delete.on.disable"]:
        raise ConfigError(
            "remote.storage.enable cannot be turned off without a decision about the remote"
            " data: set remote.log.delete.on.disable=true to delete it, or keep"
            " remote.storage.enable=true with remote.log.copy.disable=true to keep reading it"
        )
