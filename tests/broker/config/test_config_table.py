"""Comparison of the config table with Apache Kafka 4.3.0. `kafka_4_3_configs.json` has the definitions of
Kafka's ConfigDefs, and `kafka_4_3_described.json` the DescribeConfigs responses of a running broker (the
second scenario has only the differences)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from odradek.broker.config.all_configs import BROKER, CLIENT_METRICS, GROUP, ODRADEK_CONFIGS, TOPIC
from odradek.broker.config.config_description import (
    ConfigEntry,
    created_topic_configs,
    describe_broker,
    describe_client_metrics,
    describe_cluster,
    describe_group,
    describe_topic,
)
from odradek.broker.config.config_key import ConfigKey
from odradek.broker.config.config_layers import Layers
from odradek.broker.config.configuration_page import page
from odradek.broker.config.server_config import ServerConfig
from odradek.broker.config.types import ConfigSource, Password, to_text

HERE = Path(__file__).parent
DECLARED = json.loads((HERE / "kafka_4_3_configs.json").read_text())
SCENARIOS = json.loads((HERE / "kafka_4_3_described.json").read_text())
TABLES = {
    "broker": BROKER,
    "broker-quota": BROKER,
    "topic": TOPIC,
    "group": GROUP,
    "client-metrics": CLIENT_METRICS,
}


def as_declared(scope: str, row: ConfigKey) -> list[Any]:
    default = to_text(row.default_value)
    return [
        scope,
        row.name,
        row.type.name,
        default,
        row.importance.value,
        row.mode.value,
        row.internal,
        row.required,
    ]


def test_declarations_equal_kafkas() -> None:
    differing = [
        (declared, as_declared(declared[0], TABLES[declared[0]][declared[1]]))
        for declared in DECLARED
        if as_declared(declared[0], TABLES[declared[0]][declared[1]]) != declared
    ]
    assert differing == []


def test_declared_configs_exist_in_kafka() -> None:
    declared = {(scope, name) for scope, table in TABLES.items() for name in table}
    in_kafka = {(declared[0], declared[1]) for declared in DECLARED}
    in_kafka |= {("broker", name) for scope, name in in_kafka if scope == "broker-quota"}
    in_kafka |= {("broker-quota", name) for scope, name in in_kafka if scope == "broker"}
    assert declared - {(scope, name) for scope in TABLES for name in ODRADEK_CONFIGS} == in_kafka


def test_defaults_are_valid() -> None:
    for table in (BROKER, TOPIC, GROUP, CLIENT_METRICS):
        for row in table.values():
            if not row.required:
                row.parse(row.default)


def test_rows_have_descriptions() -> None:
    for table in (BROKER, TOPIC, GROUP, CLIENT_METRICS):
        for row in table.values():
            assert row.doc.endswith("."), row.name


def server_config(scenario: dict[str, Any]) -> ServerConfig:
    config = ServerConfig.from_properties(scenario["static"])
    config.apply_dynamic(scenario["cluster"], scenario["broker"])
    return config


def as_described(entry: ConfigEntry) -> list[Any]:
    return [
        entry.name,
        entry.value,
        int(entry.source),
        entry.type.value if entry.type else 0,
        entry.sensitive,
        entry.read_only,
        [[synonym.name, synonym.value, int(synonym.source)] for synonym in entry.synonyms],
    ]


def described(scenario: dict[str, Any]) -> dict[str, dict[str, list[Any]]]:
    config = server_config(scenario)
    return {
        resource: {
            entry.name: as_described(entry)
            for entry in entries
            if entry.name not in ODRADEK_CONFIGS
        }
        for resource, entries in {
            "broker": describe_broker(config),
            "cluster": describe_cluster(config),
            "topic": describe_topic(config, scenario["topic_overrides"]),
            "group": describe_group(config, scenario["group_overrides"]),
            "client_metrics": describe_client_metrics(scenario["client_metrics_overrides"]),
        }.items()
    }


@pytest.mark.parametrize("resource", ["broker", "cluster", "topic", "group", "client_metrics"])
def test_description_of_plain_broker_equals_kafkas(resource: str) -> None:
    in_kafka = {row[0]: row for row in SCENARIOS[0]["described"][resource]}
    assert described(SCENARIOS[0])[resource] == in_kafka


@pytest.mark.parametrize("resource", ["broker", "cluster", "topic", "group", "client_metrics"])
def test_description_of_overrides_equals_kafkas(resource: str) -> None:
    plain = {row[0]: row for row in SCENARIOS[0]["described"][resource]}
    differing = {row[0]: row for row in SCENARIOS[1]["described"][resource]}
    assert described(SCENARIOS[1])[resource] == {**plain, **differing}


def test_created_topic_has_all_configs_with_sources() -> None:
    config = server_config(SCENARIOS[1])
    found = created_topic_configs(config, SCENARIOS[1]["topic_overrides"])
    assert [name for name, _, _ in found] == sorted(name for name, _, _ in found)
    by_name = {name: (value, source) for name, value, source in found}
    assert by_name["retention.ms"] == ("1000", ConfigSource.TOPIC_CONFIG)
    assert by_name["internal.segment.bytes"] == ("2048", ConfigSource.TOPIC_CONFIG)
    assert by_name["flush.ms"] == ("60000", ConfigSource.STATIC_BROKER_CONFIG)
    assert by_name["segment.ms"] == ("3600000", ConfigSource.STATIC_BROKER_CONFIG)
    assert by_name["segment.bytes"] == ("1073741824", ConfigSource.DEFAULT_CONFIG)
    assert by_name["min.insync.replicas"] == (
        "1",
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    )
    assert len(by_name) == 34


def test_hours_and_minutes_become_milliseconds_for_topics() -> None:
    config = ServerConfig.from_properties({"log.retention.hours": "2", "log.roll.hours": "3"})
    by_name = {name: (v, s) for name, v, s in created_topic_configs(config, {})}
    assert by_name["retention.ms"] == ("7200000", ConfigSource.STATIC_BROKER_CONFIG)
    assert config.topic_defaults()["retention.ms"] == "7200000"
    assert config.log_config().segment_ms == 3 * 3600 * 1000


def test_secrets_are_hidden() -> None:
    config = ServerConfig(
        Layers({**SCENARIOS[0]["static"], "broker.id": "1", "ssl.key.password": "hunter2"})
    )
    assert "hunter2" not in repr(describe_broker(config))
    assert "hunter2" not in repr(config["ssl.key.password"])
    password = config["ssl.key.password"]
    assert isinstance(password, Password)
    assert password.value == "hunter2"


def test_configs_are_in_kafkas_order() -> None:
    """Kafka's order is that of a hash map; of topic configs the first and the last are compared."""
    config = server_config(SCENARIOS[0])
    of_topic = [each.name for each in describe_topic(config, {})]
    assert " ".join(of_topic[:8]) == (
        "compression.type remote.log.delete.on.disable leader.replication.throttled.replicas"
        " remote.storage.enable min.insync.replicas segment.jitter.ms remote.log.copy.disable"
        " local.retention.ms"
    )
    assert " ".join(of_topic[-4:]) == (
        "message.timestamp.after.max.ms message.timestamp.before.max.ms segment.ms segment.index.bytes"
    )
    assert " ".join(each.name for each in describe_group(config, {})) == (
        "consumer.session.timeout.ms consumer.assignment.interval.ms share.auto.offset.reset"
        " share.renew.acknowledge.enable streams.initial.rebalance.delay.ms share.session.timeout.ms"
        " streams.assignment.interval.ms share.heartbeat.interval.ms streams.heartbeat.interval.ms"
        " share.delivery.count.limit consumer.heartbeat.interval.ms share.record.lock.duration.ms"
        " share.assignment.interval.ms share.isolation.level streams.session.timeout.ms"
        " share.partition.max.record.locks streams.num.standby.replicas"
    )
    some = describe_topic(config, {}, ["retention.ms", "cleanup.policy"])
    assert [each.name for each in some] == ["cleanup.policy", "retention.ms"]


def test_describe_selects_configs_by_name() -> None:
    config = server_config(SCENARIOS[0])
    assert [e.name for e in describe_broker(config, ["node.id"])] == ["node.id"]
    assert [e.name for e in describe_topic(config, {}, ["segment.ms"])] == ["segment.ms"]
    assert len(describe_broker(config, [])) == len(describe_broker(config))


REPOSITORY = HERE.parents[2]
# Named in code, but only set, validated, or passed to something that does not exist yet.
CHECKED_ONLY = {
    "config.providers",
    "share.coordinator.state.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
}


OF_LISTENERS = {"inter.broker.listener.name", "security.inter.broker.protocol"}
"""Read as `ServerConfig.inter_broker_listener`."""


def named_in_code() -> set[str]:
    """Quoted strings of the product, without the table and the checks of several configs."""
    table = REPOSITORY / "broker" / "config"
    commands = REPOSITORY / "broker" / "cli"
    found: set[str] = set()
    for layer in ("broker", "storage", "replication"):
        for path in (REPOSITORY / layer).rglob("*.py"):
            if path.parent not in (table, commands) or path.name in (
                "server_config.py",
                "serve.py",
            ):
                text = path.read_text().partition("# Checks of several configs together")[0]
                found |= set(re.findall(r'"([a-z.]+)"', text))
    return found


def test_effect_of_config_matches_its_use() -> None:
    """A config that code uses must not be marked as without effect, and the reverse, so that the page is right."""
    named = named_in_code()
    through_topics = {name for row in TOPIC.values() for name in row.synonyms}
    for name, row in BROKER.items():
        if name not in through_topics:
            read = name in {*named, *OF_LISTENERS} - CHECKED_ONLY
            assert row.effect == read, (
                f"{name}: change `effect` in its row, and regenerate the page"
            )


def test_broker_config_has_effect_of_its_topic_config() -> None:
    for row in TOPIC.values():
        for name in row.synonyms:
            assert BROKER[name].effect == row.effect or name in CHECKED_ONLY, name


def test_configuration_page_matches_table() -> None:
    written = REPOSITORY / "docs" / "configuration.md"
    assert written.read_text() == page(), (
        "run python -m odradek.broker.config.configuration_page > the page"
    )
