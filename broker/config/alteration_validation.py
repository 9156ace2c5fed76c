"""Validation of config alterations.

Configs of topics, groups and client metrics are validated together; those of a broker as one of the two dynamic
layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from odradek.broker.config.all_configs import BROKER, CLIENT_METRICS, GROUP, TOPIC, listener_base
from odradek.broker.config.broker_checks import check_local_retention
from odradek.broker.config.config_layers import refused_dynamic
from odradek.broker.config.server_config import ServerConfig
from odradek.broker.config.topic_config_validation import is_true
from odradek.broker.config.types import ConfigError, ConfigType, ResourceType
from odradek.broker.coordination.internal_topics import (
    DISKLESS_METADATA_CONFIGS,
    DISKLESS_METADATA_TOPIC,
    is_internal_topic,
)
from odradek.protocol.errors import ErrorCode, KafkaError

_INT32 = re.compile(r"[+-]?[0-9]{1,10}")
_MATCHED = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
_PUSH_INTERVAL_MS = (100, 3_600_000)


def validate_resource_configs(
    config: ServerConfig,
    resource_type: int,
    name: str,
    wanted: Mapping[str, str],
    existing: Mapping[str, str],
) -> None:
    """Check that a resource with the configs `existing` may have exactly `wanted`. Raises KafkaError.

    Configs of brokers are validated by the broker itself (`validate_broker`).
    """
    match resource_type:
        case ResourceType.TOPIC:
            config.validate_topic_configs(wanted, existing)
            if is_internal_topic(name):
                _check_internal_topic(name, wanted)
        case ResourceType.BROKER:
            if name and broker_id(name) < 0:
                raise KafkaError(ErrorCode.invalid_request, "Invalid negative broker ID.")
        case ResourceType.GROUP:
            validate_group(config, name, wanted, existing)
        case ResourceType.CLIENT_METRICS:
            validate_client_metrics(name, wanted)
        case _:
            raise KafkaError(
                ErrorCode.invalid_request, f"Unsupported resource type: {resource_type}"
            )


def _check_internal_topic(name: str, wanted: Mapping[str, str]) -> None:
    """Check the configs of an internal topic. `__diskless_metadata` is pruned by its coordinators only."""
    if is_true(wanted.get("diskless.enable")):
        raise KafkaError(ErrorCode.invalid_config, "Internal topics cannot be diskless.")
    if name != DISKLESS_METADATA_TOPIC:
        return
    for key, required in DISKLESS_METADATA_CONFIGS.items():
        if wanted.get(key, "").strip().lower() != required:
            raise KafkaError(ErrorCode.invalid_config, f"{name} requires {key}={required}.")


def list_configs() -> dict[int, dict[str, str]]:
    """Configs of type LIST of topics and brokers, with their defaults.

    Kafka does not append to the lists of client metrics.
    """
    return {
        int(resource_type): {
            name: row.default or "" for name, row in table.items() if row.type is ConfigType.LIST
        }
        for resource_type, table in (
            (ResourceType.TOPIC, TOPIC),
            (ResourceType.BROKER, BROKER),
        )
    }


def broker_id(name: str) -> int:
    """Broker id of a broker resource. Raises KafkaError(invalid_request)."""
    if not _INT32.fullmatch(name) or not -(1 << 31) <= int(name) < 1 << 31:
        raise KafkaError(
            ErrorCode.invalid_request, f"Unable to parse broker name {name} as a base 10 number."
        )
    return int(name)


def validate_broker(config: ServerConfig, configs: Mapping[str, str], *, of_broker: bool) -> None:
    """Check that `configs` may be the dynamic layer of this broker, or the cluster-wide one (not `of_broker`).

    Raises KafkaError(invalid_request), as Kafka does.
    """
    refused = list(refused_dynamic(configs, of_broker=of_broker))
    if refused:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(refused))
        raise KafkaError(
            ErrorCode.invalid_request, f"Cannot update these configs dynamically: {reasons}"
        )
    layers = config.layers
    try:
        changed = config.with_dynamic(
            layers.cluster if of_broker else configs, configs if of_broker else layers.broker
        )
        _check_dynamic_update(config, changed)
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_request, str(error)) from error


_THREADS = (
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "log.cleaner.threads",
    "remote.log.reader.threads",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
)


_CONNECTION_LIMITS = ("max.connections", "max.connection.creation.rate")

_CLAMPED_GROUP_CONFIGS = tuple(
    f"group.{kind}.assignment.interval.ms" for kind in ("consumer", "share", "streams")
)
"""Group configs whose stored values are clamped to changed limits; new values must be within the limits."""


def _check_dynamic_update(old: ServerConfig, new: ServerConfig) -> None:
    """Check dynamic updates of pools and limits. A pool can at most double or halve in one update (KIP-226).

    Connection limits must stay above 0, or the update could not be reverted; at start Kafka accepts 0.

    Kafka adds and removes listeners dynamically; Odradek rejects such an update.
    """
    if new.all_listeners != old.all_listeners:
        raise ConfigError(
            "listeners cannot be updated dynamically; set them in the configuration file and restart the broker"
        )
    if new.log_config() != old.log_config():
        check_local_retention(new)
    for name, given in {**new.layers.cluster, **new.layers.broker}.items():
        if (listener_base(name) or name) in _CONNECTION_LIMITS and new.get_int(name) < 1:
            raise ConfigError.of(
                name, new.get_int(name), "value must be at least 1 in a dynamic update"
            )
        if name in _CLAMPED_GROUP_CONFIGS:
            _check_limits(new, name, int(given))
    for name in _THREADS:
        before, after = old.get_int(name), new.get_int(name)
        if before != after and not max(1, before // 2) <= after <= before * 2:
            raise ConfigError.of(
                name,
                after,
                f"value should be at least half and at most double the current value {before}",
            )


_UNSUPPORTED_GROUPS = ("share", "streams")


def validate_group(
    config: ServerConfig, name: str, configs: Mapping[str, str], existing: Mapping[str, str]
) -> None:
    """Validate group configs. Raises KafkaError(invalid_config), or invalid_request without a group name.

    Configs of share and streams groups, which Odradek does not support, are refused unless they exist already.
    """
    if not name:
        raise KafkaError(ErrorCode.invalid_request, "Default group resources are not allowed.")
    try:
        for changed, text in configs.items():
            kind = changed.partition(".")[0]
            if changed in GROUP and kind in _UNSUPPORTED_GROUPS and existing.get(changed) != text:
                raise ConfigError.of(
                    changed, text, f"{kind} groups are not supported by this version of Odradek"
                )
        _check_group(config, configs)
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from error


def _check_group(config: ServerConfig, configs: Mapping[str, str]) -> None:
    for name in configs:
        if name not in GROUP:
            raise ConfigError(f"Unknown group config name: {name}")
    values = _broker_values(config)
    for name, text in configs.items():
        value = GROUP[name].parse(text)
        if GROUP[name].type is ConfigType.INT:
            values[name] = cast(int, value)
            _check_limits(config, name, values[name])
    for kind in ("consumer", "share", "streams"):
        if values[f"{kind}.session.timeout.ms"] <= values[f"{kind}.heartbeat.interval.ms"]:
            raise ConfigError(
                f"{kind}.session.timeout.ms must be greater than {kind}.heartbeat.interval.ms"
            )


def _broker_values(config: ServerConfig) -> dict[str, int]:
    """Default values of group configs, clamped to the limits as the broker configs are."""
    return {
        name: cast(int, config[row.synonyms[0]] if row.synonyms else row.default_value)
        for name, row in GROUP.items()
        if row.type is ConfigType.INT
    }


def _check_limits(config: ServerConfig, name: str, number: int) -> None:
    """Check a group config, or the broker's default, against its limits."""
    kind, _, quantity = name.removeprefix("group.").partition(".")
    for bound, beyond, bound_text in (
        ("min", number.__lt__, "greater"),
        ("max", number.__gt__, "less"),
    ):
        limit_name = _limit_name(kind, bound, quantity)
        if limit_name in BROKER and beyond(limit := config.get_int(limit_name)):
            raise ConfigError.of(
                name, number, f"must be {bound_text} than or equal to {limit_name}, {limit}"
            )


def _limit_name(kind: str, bound: str, quantity: str) -> str:
    if quantity == "num.standby.replicas":
        quantity = "standby.replicas"
    return f"group.{kind}.{bound}.{quantity}"


def validate_client_metrics(name: str, configs: Mapping[str, str]) -> None:
    """Validate client metrics configs. Raises KafkaError (invalid_request or invalid_config) as Kafka does."""
    if not name:
        raise KafkaError(ErrorCode.invalid_request, "Subscription name can't be empty")
    for key in configs:
        if key not in CLIENT_METRICS:
            raise KafkaError(
                ErrorCode.invalid_request, f"Unknown client metrics configuration: {key}"
            )
    try:
        values = {key: CLIENT_METRICS[key].parse(text) for key, text in configs.items()}
    except ConfigError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from error
    low, high = _PUSH_INTERVAL_MS
    interval = cast(int, values.get("interval.ms", low))
    if not low <= interval <= high:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Invalid value {interval} for interval.ms, interval must be between {low} and {high}",
        )
    for pattern in cast("tuple[str, ...]", values.get("match", ())):
        _check_match(pattern)


def _check_match(pattern: str) -> None:
    attribute, equals, expression = pattern.partition("=")
    try:
        re.compile(expression.strip())
    except re.error:
        equals = ""
    if not equals or "=" in expression or not expression or attribute.strip() not in _MATCHED:
        raise KafkaError(ErrorCode.invalid_config, f"Illegal client matching pattern: {pattern}")
