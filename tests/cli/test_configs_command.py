"""Tests of `odradek configs`."""

from __future__ import annotations

from tests.cli.command_line import CommandLine
from tests.support.waiting import deadline


def described(
    odradek: CommandLine, topic: str, *words: str, retention: str
) -> dict[str, tuple[str, str]]:
    """Value and source of a topic's configs, after retention.ms has its new value."""
    with deadline(10, "the config") as check:  # a Kafka's broker learns of it a little later
        while True:
            shown = odradek("configs", "describe", "topic", topic, *words, "--json").json
            values = {row["name"]: (row["value"], row["source"]) for row in shown}
            if values.get("retention.ms", ("",))[0] == retention:
                return values
            check()


def test_configs_of_a_topic(odradek: CommandLine, topic: str) -> None:
    alter = ["configs", "alter", "topic", topic]
    odradek(*alter, "--set", "retention.ms=1000", "--append", "cleanup.policy=compact")
    values = described(odradek, topic, retention="1000")
    assert values["retention.ms"] == ("1000", "topic")
    assert values["cleanup.policy"] == ("delete,compact", "topic")
    assert "segment.bytes" not in values
    odradek(*alter, "--unset", "retention.ms", "--subtract", "cleanup.policy=compact")
    values = described(odradek, topic, "--all", retention="604800000")
    assert values["retention.ms"] == ("604800000", "default")
    assert values["cleanup.policy"] == ("delete", "topic")
    one = odradek("configs", "describe", "topic", topic, "--key", "segment.bytes").words
    assert one == [
        ["CONFIG", "VALUE", "SOURCE", "READ-ONLY"],
        ["segment.bytes", "1073741824", "default", "no"],
    ]


def test_alter_validate_only_changes_no_config(odradek: CommandLine, topic: str) -> None:
    odradek("configs", "alter", "topic", topic, "--set", "retention.ms=9", "--validate-only")
    shown = odradek("configs", "describe", "topic", topic, "--json").json
    assert "retention.ms" not in {row["name"] for row in shown}


def test_configs_of_brokers(odradek: CommandLine) -> None:
    everything = odradek("configs", "describe", "broker", "1", "--all", "--json").json
    (node_id,) = (row for row in everything if row["name"] == "node.id")
    assert (node_id["value"], node_id["read_only"]) == ("1", True)
    odradek("configs", "alter", "broker", "default", "--set", "log.retention.ms=86400001")
    try:
        with deadline(10, "the config") as check:  # a Kafka's broker learns of it a little later
            while True:
                shown = odradek("configs", "describe", "broker", "default", "--json").json
                if ("log.retention.ms", "86400001") in {(r["name"], r["value"]) for r in shown}:
                    break
                check()
    finally:
        odradek("configs", "alter", "broker", "default", "--unset", "log.retention.ms")


def test_config_resources_are_listed(odradek: CommandLine, topic: str) -> None:
    assert {"type": "topic", "name": topic} in odradek("configs", "list", "--json").json
    assert ["topic", topic] in odradek("configs", "list", "topic").words
    assert odradek("configs", "list", "broker", "--json").json == [{"type": "broker", "name": "1"}]


def test_errors_are_reported(odradek: CommandLine, topic: str) -> None:
    for words, text in [
        (["describe", "topic", "nothing-here"], "UNKNOWN_TOPIC_OR_PARTITION"),
        (["describe", "broker", "one"], "a broker's name is its id"),
        (
            ["describe", "broker", "7"],
            "node 7 is not in the cluster now\n`odradek configs list broker` lists",
        ),
        (["alter", "topic", topic, "--set", "segment.bytes=1"], "segment.bytes"),
        (["alter", "topic", topic, "--set", "no.such.config=1"], "no.such.config"),
        (["alter", "broker", "1", "--set", "node.id=5"], "node.id"),
    ]:
        ran = odradek("configs", *words, code=1)
        assert text in ran.stderr, ran
    odradek("configs", "alter", "topic", topic, code=2)
    odradek("configs", "describe", "planet", "earth", code=2)
