"""Tests of config types, validators and listeners."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.broker.config.all_configs import BROKER, CLIENT_METRICS, GROUP, TOPIC
from odradek.broker.config.listeners import (
    ListenerEndpoint,
    QuorumAddress,
    parse_bootstrap_servers,
    parse_endpoints,
    parse_map,
    parse_voters,
    security_protocols,
)
from odradek.broker.config.types import (
    HIDDEN,
    ConfigError,
    ConfigType,
    Password,
    java_double,
    parse,
    to_text,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ConfigType.BOOLEAN, " TRUE ", True),
        (ConfigType.BOOLEAN, "false", False),
        (ConfigType.INT, " +7 ", 7),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.SHORT, "32767", 32767),
        (ConfigType.LONG, "9223372036854775807", 2**63 - 1),
        (ConfigType.DOUBLE, ".5", 0.5),
        (ConfigType.DOUBLE, "1e3d", 1000.0),
        (ConfigType.STRING, " a b ", "a b"),
        (ConfigType.LIST, "", ()),
        (ConfigType.LIST, " a , b,c ", ("a", "b", "c")),
        (ConfigType.LIST, "a,,b", ("a", "", "b")),
        (ConfigType.PASSWORD, " s ", Password("s")),
    ],
)
def test_valid_values_are_parsed(kind: ConfigType, text: str, value: object) -> None:
    assert parse("x", text, kind) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.BOOLEAN, ""),
        (ConfigType.INT, ""),
        (ConfigType.INT, "1.0"),
        (ConfigType.INT, "0x10"),
        (ConfigType.INT, "1_000"),
        (ConfigType.INT, "2147483648"),
        (ConfigType.SHORT, "32768"),
        (ConfigType.LONG, "9223372036854775808"),
        (ConfigType.DOUBLE, "half"),
    ],
)
def test_invalid_values_are_rejected(kind: ConfigType, text: str) -> None:
    with pytest.raises(ConfigError, match="Invalid value"):
        parse("x", text, kind)


def test_password_is_hidden() -> None:
    assert str(Password("s")) == repr(Password("s")) == to_text(Password("s")) == HIDDEN


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (1234567.5, "1234567.5"),
        (1e7, "1.0E7"),
        (1.5e10, "1.5E10"),
        (123456789.5, "1.234567895E8"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (-2.5e-7, "-2.5E-7"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_double_has_javas_text(value: float, text: str) -> None:
    assert java_double(value) == text


@given(st.floats(allow_nan=False))
def test_text_of_double_is_parsed_back(value: float) -> None:
    assert parse("x", java_double(value), ConfigType.DOUBLE) == value


@given(st.text(), st.sampled_from([*BROKER.values(), *TOPIC.values(), *GROUP.values()]))
def test_arbitrary_text_raises_only_config_errors(text: str, row: object) -> None:
    assert isinstance(row, type(BROKER["node.id"]))
    with suppress(ConfigError):
        row.parse(text)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("num.partitions", ["1"], ["0", "-1"]),
        ("log.segment.bytes", ["1048576"], ["1048575"]),
        ("log.cleanup.policy", ["", "delete", "delete,delete"], ["Delete", "delete,"]),
        ("compression.gzip.level", ["-1", "1", "9"], ["0", "10"]),
        ("compression.type", ["producer", "zstd"], ["none", "ZSTD"]),
        ("group.consumer.migration.policy", ["UPGRADE", "upgrade"], ["sideways"]),
        ("process.roles", ["broker", "controller,broker"], ["", "zookeeper"]),
        ("log.dirs", ["/a,/b"], ["", "/a,"]),
        ("controller.quorum.voters", ["", "1@h:1,2@[::1]:2"], ["h:1", "1@h", "x@h:1"]),
        ("controller.quorum.bootstrap.servers", ["", "h:1"], ["h", "h:-1"]),
        ("remote.log.manager.task.retry.jitter", ["0", "0.5"], ["0.51", "-0.1"]),
    ],
)
def test_validators_accept_and_reject_values(name: str, good: list[str], bad: list[str]) -> None:
    for text in good:
        BROKER[name].parse(text)
    for text in bad:
        with pytest.raises(ConfigError, match=name):
            BROKER[name].parse(text)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "leader.replication.throttled.replicas",
            ["", "*", "0:1,2:3"],
            ["*,*", "0", "a:b"],
        ),
        ("min.cleanable.dirty.ratio", ["0", "1"], ["1.1"]),
        ("segment.bytes", ["1048576"], ["1048575"]),
        ("internal.segment.bytes", ["1"], ["one"]),
        ("retention.ms", ["-1"], ["-2"]),
        ("local.retention.ms", ["-2"], ["-3"]),
    ],
)
def test_topic_validators_accept_and_reject_values(
    name: str, good: list[str], bad: list[str]
) -> None:
    for text in good:
        TOPIC[name].parse(text)
    for text in bad:
        with pytest.raises(ConfigError, match=name):
            TOPIC[name].parse(text)


def test_list_duplicates_count_once() -> None:
    assert BROKER["log.cleanup.policy"].parse("delete, compact,delete") == ("delete", "compact")
    assert BROKER["controller.quorum.voters"].parse("1@h:1,1@h:1") == ("1@h:1", "1@h:1")


def test_share_group_offset_reset_values() -> None:
    row = GROUP["share.auto.offset.reset"]
    for text in ("latest", "earliest", "by_duration:PT1H", "by_duration:P1DT2H3.5S"):
        row.parse(text)
    for text in ("Latest", "none", "by_duration:", "by_duration:P", "by_duration:PT"):
        with pytest.raises(ConfigError):
            row.parse(text)
    assert CLIENT_METRICS["metrics"].parse("*") == ("*",)


# Listeners

PLAIN = {"PLAINTEXT": "PLAINTEXT", "INTERNAL": "PLAINTEXT"}


def endpoints(*entries: str, distinct_ports: bool = True) -> tuple[ListenerEndpoint, ...]:
    return parse_endpoints("listeners", entries, PLAIN, distinct_ports=distinct_ports)


def test_listeners_are_parsed() -> None:
    assert endpoints("plaintext://:9092", "INTERNAL://[::1]:0") == (
        ListenerEndpoint("PLAINTEXT", "PLAINTEXT", "", 9092),
        ListenerEndpoint("INTERNAL", "PLAINTEXT", "::1", 0),
    )


@pytest.mark.parametrize(
    "entries",
    [
        ("localhost:9092",),
        ("PLAINTEXT://localhost",),
        ("PLAINTEXT://localhost:-1",),
        ("PLAINTEXT://localhost:65536",),
        ("PLAINTEXT://local host:1",),
        ("OTHER://localhost:1",),
        ("PLAINTEXT://a:1", "PLAINTEXT://b:2"),
        ("PLAINTEXT://a:1", "INTERNAL://b:1"),
        ("PLAINTEXT://127.0.0.1:1", "INTERNAL://127.0.0.2:1"),
        ("PLAINTEXT://127.0.0.1:1", "INTERNAL://:1"),
    ],
)
def test_invalid_listeners_are_rejected(entries: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="listeners"):
        endpoints(*entries)


def test_port_is_shared_by_ipv4_and_ipv6_only() -> None:
    endpoints("PLAINTEXT://127.0.0.1:1", "INTERNAL://[::1]:1")  # by IPv4 and IPv6
    endpoints("PLAINTEXT://:0", "INTERNAL://:0")  # both ports are chosen by the system
    endpoints("PLAINTEXT://a:1", "INTERNAL://b:1", distinct_ports=False)  # also used by others


def test_security_protocols_of_listeners() -> None:
    def found(
        text: str, *, explicit: bool, controllers: tuple[str, ...] = (), listeners: str = "A://:1"
    ) -> dict[str, str]:
        return security_protocols(
            text, explicit=explicit, controller_names=controllers, listeners=[listeners]
        )

    assert found("a:ssl , B:PLAINTEXT", explicit=True) == {"A": "SSL", "B": "PLAINTEXT"}
    assert found("A:SSL", explicit=False, controllers=("C",)) == {"A": "SSL", "C": "PLAINTEXT"}
    assert found("A:SSL", explicit=True, controllers=("C",)) == {"A": "SSL"}
    assert found("A:SSL", explicit=False, controllers=("C",), listeners="SSL://:1") == {"A": "SSL"}
    with pytest.raises(ConfigError, match="unknown security protocol"):
        found("A:TLS", explicit=True)
    with pytest.raises(ConfigError, match="key:value"):
        found("A", explicit=True)


def test_maps_split_at_the_last_colon() -> None:
    assert parse_map("x", " ::1:5 , h:6") == {"::1": "5", "h": "6"}
    assert parse_map("x", " ") == {}


def test_quorum_addresses_are_parsed() -> None:
    assert parse_voters("v", ["1@h:9", "2@[::1]:8"]) == (
        QuorumAddress(1, "h", 9),
        QuorumAddress(2, "::1", 8),
    )
    assert parse_bootstrap_servers("b", ["h:9"]) == (QuorumAddress(None, "h", 9),)
