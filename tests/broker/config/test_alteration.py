"""Tests of the validation of config alterations of brokers, groups and client metrics, and of log levels."""

from __future__ import annotations

import logging

import pytest

from odradek.broker.config import loggers
from odradek.broker.config.all_configs import GROUP
from odradek.broker.config.alteration_validation import (
    broker_id,
    list_configs,
    validate_broker,
    validate_client_metrics,
    validate_group,
    validate_resource_configs,
)
from odradek.broker.config.config_key import ConfigKey
from odradek.broker.config.server_config import ServerConfig
from odradek.broker.config.types import ConfigValue, ResourceType
from odradek.protocol.errors import ErrorCode, KafkaError

CONFIG = ServerConfig.from_properties({}, test_node=True)


@pytest.mark.parametrize(
    "configs",
    [
        {"num.partitions": "2"},
        {"ssl.keystore.location": "/k"},
        {"log.retention.ms": "soon"},
        {"listener.name.x.max.connections": "many"},
        {"log.local.retention.ms": "-1"},
        {"num.io.threads": "17"},
        {"num.io.threads": "3"},
        {"num.network.threads": "7"},
        {"listeners": "PLAINTEXT://127.0.0.1:1"},
        {"log.flush.interval.ms": "-1"},
        {"group.consumer.assignment.interval.ms": "15001"},
        {"group.streams.assignment.interval.ms": "10000000"},
        {"max.connections": "0"},
        {"max.connection.creation.rate": "0"},
        {"listener.name.x.max.connections": "0"},
    ],
)
def test_invalid_dynamic_broker_configs_are_rejected(configs: dict[str, str]) -> None:
    with pytest.raises(KafkaError) as refusal:
        validate_broker(CONFIG, configs, of_broker=True)
    assert refusal.value.code is ErrorCode.invalid_request


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"log.retention.ms": "5"},
        {"num.io.threads": "16"},
        {"num.io.threads": "4"},
        {"listener.name.x.ssl.keystore.location": "/k"},
        {"leader.replication.throttled.rate": "5"},
        {"somebody.elses": "7"},
    ],
)
def test_valid_dynamic_broker_configs_are_accepted(configs: dict[str, str]) -> None:
    validate_broker(CONFIG, configs, of_broker=True)


def test_per_broker_config_needs_broker_id() -> None:
    own = {"listener.name.x.ssl.keystore.location": "/k"}
    validate_broker(CONFIG, own, of_broker=True)
    with pytest.raises(KafkaError, match="broker id"):
        validate_broker(CONFIG, own, of_broker=False)
    validate_broker(CONFIG, {"listener.name.x.max.connections": "5"}, of_broker=False)


@pytest.mark.parametrize(
    "configs",
    [
        {"nonsense": "1"},
        {"consumer.session.timeout.ms": "soon"},
        {"consumer.session.timeout.ms": "44999"},
        {"consumer.session.timeout.ms": "60001"},
        {"consumer.heartbeat.interval.ms": "4999"},
        {"consumer.assignment.interval.ms": "15001"},
    ],
)
def test_invalid_group_configs_are_rejected(configs: dict[str, str]) -> None:
    with pytest.raises(KafkaError) as refusal:
        validate_group(CONFIG, "g", configs, {})
    assert refusal.value.code is ErrorCode.invalid_config


@pytest.mark.parametrize("name", [name for name in GROUP if not name.startswith("consumer.")])
def test_configs_of_unsupported_groups_are_refused(name: str) -> None:
    """Neither share nor streams groups can exist. A config that Kafka stored can be kept or deleted."""
    configs = {name: str(GROUP[name].default)}
    kind = name.partition(".")[0]
    with pytest.raises(
        KafkaError, match=rf"configuration {name}: {kind} groups are not supported by this version"
    ) as refusal:
        validate_resource_configs(CONFIG, ResourceType.GROUP, "g", configs, {})
    assert refusal.value.code is ErrorCode.invalid_config
    both = {**configs, "consumer.session.timeout.ms": "50000"}
    validate_resource_configs(CONFIG, ResourceType.GROUP, "g", both, configs)
    validate_resource_configs(CONFIG, ResourceType.GROUP, "g", {}, configs)


@pytest.mark.parametrize(
    ("kind", "configs"),
    [
        (ResourceType.GROUP, {"consumer.session.timeout.ms": "50000"}),
        (ResourceType.TOPIC, {"retention.ms": "50000"}),
    ],
)
def test_validation_of_one_group_config_parses_no_others(
    kind: ResourceType, configs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request may change ten thousand resources, and the controller sends no quorum responses during a
    decision."""
    # The values that they share are parsed here
    validate_resource_configs(CONFIG, kind, "r", configs, {})
    read: list[str] = []
    parse = ConfigKey.parse

    def noticed(row: ConfigKey, text: str | None) -> ConfigValue:
        read.append(row.name)
        return parse(row, text)

    monkeypatch.setattr(ConfigKey, "parse", noticed)
    validate_resource_configs(CONFIG, kind, "r", configs, {})
    assert read == list(configs)


def test_valid_group_configs_are_accepted() -> None:
    validate_group(CONFIG, "g", {}, {})
    validate_group(CONFIG, "g", {"consumer.session.timeout.ms": "50000"}, {})
    with pytest.raises(KafkaError) as refusal:
        validate_group(CONFIG, "", {}, {})
    assert refusal.value.code is ErrorCode.invalid_request


def test_group_session_timeout_exceeds_heartbeat_interval() -> None:
    config = ServerConfig.from_properties({"group.consumer.max.heartbeat.interval.ms": "70000"})
    with pytest.raises(KafkaError, match=r"consumer\.session\.timeout\.ms"):
        validate_group(config, "g", {"consumer.heartbeat.interval.ms": "45000"}, {})


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ({"nonsense": "1"}, ErrorCode.invalid_request),
        ({"interval.ms": "99"}, ErrorCode.invalid_request),
        ({"interval.ms": "3600001"}, ErrorCode.invalid_request),
        ({"interval.ms": "often"}, ErrorCode.invalid_config),
        ({"match": "client_id"}, ErrorCode.invalid_config),
        ({"match": "client_id=a=b"}, ErrorCode.invalid_config),
        ({"match": "hat_size=5"}, ErrorCode.invalid_config),
        ({"match": "client_id=["}, ErrorCode.invalid_config),
    ],
)
def test_invalid_client_metrics_configs_are_rejected(
    configs: dict[str, str], code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as refusal:
        validate_client_metrics("s", configs)
    assert refusal.value.code is code


def test_valid_client_metrics_configs_are_accepted() -> None:
    validate_client_metrics("s", {"interval.ms": "100", "metrics": "a,b"})
    validate_client_metrics("s", {"match": "client_id=a.*, client_software_name = b"})
    with pytest.raises(KafkaError):
        validate_client_metrics("", {})


def test_controller_validates_alterations() -> None:
    validate_resource_configs(CONFIG, ResourceType.TOPIC, "t", {"retention.ms": "5"}, {})
    validate_resource_configs(CONFIG, ResourceType.BROKER, "1", {"x": "y"}, {})
    validate_resource_configs(CONFIG, ResourceType.BROKER, "", {"x": "y"}, {})
    validate_resource_configs(CONFIG, ResourceType.GROUP, "g", {}, {})
    validate_resource_configs(CONFIG, ResourceType.CLIENT_METRICS, "s", {}, {})
    for resource_type, name in ((4, "-1"), (4, "one"), (8, "1"), (3, "x")):
        with pytest.raises(KafkaError) as refusal:
            validate_resource_configs(CONFIG, resource_type, name, {}, {})
        assert refusal.value.code is ErrorCode.invalid_request


def test_broker_id_is_32_bit_integer() -> None:
    assert broker_id("+1") == 1
    for name in ("", "1.0", "2147483648", " 1"):
        with pytest.raises(KafkaError):
            broker_id(name)


def test_list_configs_have_their_defaults() -> None:
    assert list_configs()[ResourceType.TOPIC] == {
        "cleanup.policy": "delete",
        "leader.replication.throttled.replicas": "",
        "follower.replication.throttled.replicas": "",
    }
    assert list_configs()[ResourceType.BROKER]["log.cleanup.policy"] == "delete"


# Log levels


def test_log_levels_have_kafkas_names() -> None:
    name = "odradek.test_alteration"
    logger = logging.getLogger(name)
    logger.setLevel(logging.NOTSET)
    inherited = loggers.loggers()[name]
    for level in ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"):
        loggers.check_level(name, level)
        loggers.set_level(name, level)
        assert loggers.loggers()[name] == level
    loggers.check_level(name, None)
    loggers.set_level(name, None)
    assert loggers.loggers()[name] == inherited
    assert "root" in loggers.loggers()


@pytest.mark.parametrize(
    ("name", "level"), [("no.such.logger", "INFO"), ("root", "LOUD"), ("root", None)]
)
def test_invalid_log_levels_are_rejected(name: str, level: str | None) -> None:
    with pytest.raises(KafkaError):
        loggers.check_level(name, level)
