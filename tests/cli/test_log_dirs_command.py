"""Tests of `odradek log-dirs list` and `describe`: the JSON of KIP-113 and of Kafka 4, and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from odradek.cli.log_dirs_output import COLUMNS, LogDirFilter, kafka_json, kip_113_json, table
from odradek.client.log_dir_admin import LogDirectory, ReplicaInDirectory
from odradek.protocol.errors import ErrorCode
from tests.cli.command_line import CommandLine
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import deadline

NONE, OFFLINE = ErrorCode.none, ErrorCode.kafka_storage_error


def replica(
    topic: str, partition: int, size: int, *, lag: int = 0, is_future: bool = False
) -> ReplicaInDirectory:
    return ReplicaInDirectory(topic, partition, size, lag, is_future)


def directory(path: str, *replicas: ReplicaInDirectory, broker: int = 1) -> LogDirectory:
    return LogDirectory(broker, path, NONE, 10**12, 10**11, replicas)


MOVING = [
    directory("/a", replica("t", 0, 2000), replica("t", 1, 10)),
    directory("/b", replica("t", 0, 500, lag=30, is_future=True), replica("u", 0, 7)),
    LogDirectory(1, "/c", OFFLINE, -1, -1, ()),
]


def test_kip_113_json() -> None:
    """J-19, with a move in progress and an offline directory."""
    shown = kip_113_json(MOVING, LogDirFilter())
    assert json.dumps(shown) == json.dumps(
        {
            "version": 1,
            "log_dirs": [
                {
                    "is_live": True,
                    "path": "/a",
                    "partitions": [
                        {"topic": "t", "partition": 0, "size": 2000, "is_temporary": False},
                        {"topic": "t", "partition": 1, "size": 10, "is_temporary": False},
                    ],
                },
                {
                    "is_live": True,
                    "path": "/b",
                    "partitions": [
                        {"topic": "t", "partition": 0, "size": 500, "is_temporary": True},
                        {"topic": "u", "partition": 0, "size": 7, "is_temporary": False},
                    ],
                },
                {"is_live": False, "path": "/c", "partitions": []},
            ],
        }
    )


def test_filters_are_intersected() -> None:
    """J-17: filters of directories and topics."""
    only = LogDirFilter(frozenset({"t"}), frozenset({"/b", "/c"}))
    shown = kip_113_json(MOVING, only)
    assert [each["path"] for each in shown["log_dirs"]] == ["/b", "/c"]
    assert [[row["topic"] for row in each["partitions"]] for each in shown["log_dirs"]] == [
        ["t"],
        [],
    ]


def test_kip_113_json_of_several_brokers_has_broker_ids() -> None:
    shown = kip_113_json([directory("/a", broker=1), directory("/a", broker=2)], LogDirFilter())
    assert [each["broker"] for each in shown["log_dirs"]] == [1, 2]


def test_kafka_json_has_exception_class() -> None:
    """J-19: the JSON of Kafka 4."""
    (broker,) = kafka_json(MOVING, LogDirFilter())["brokers"]
    assert broker["broker"] == 1
    first, second, third = broker["logDirs"]
    assert first["error"] is None
    assert second["partitions"][0] == {
        "partition": "t-0", "size": 500, "offsetLag": 30, "isFuture": True
    }  # fmt: skip
    assert third == {
        "logDir": "/c",
        "error": "org.apache.kafka.common.errors.KafkaStorageException",
        "partitions": [],
    }


def test_table_shows_move_at_source_or_target() -> None:
    """J-18: a future replica (is_temporary) in the table."""
    assert COLUMNS[-1] == "MOVE"
    assert table(MOVING, LogDirFilter()) == [
        (1, "/a", "t", 0, "2.0 KiB", 0, "to /b, 25 %"),
        (1, "/a", "t", 1, "10 B", 0, None),
        (1, "/b", "u", 0, "7 B", 0, None),
        (1, "/c", "offline [KAFKA_STORAGE_ERROR]", None, None, None, None),
    ]
    assert table(MOVING, LogDirFilter(directories=frozenset({"/b"})))[0] == (
        1, "/b", "t", 0, "500 B", 30, "from /a, 25 %"
    )  # fmt: skip


# Against a broker


def partitions(shown: Any) -> dict[tuple[str, int], dict[str, Any]]:
    return {
        (row["topic"], row["partition"]): {**row, "path": each["path"]}
        for each in shown["log_dirs"]
        for row in each["partitions"]
    }


def test_replicas_are_described(odradek: CommandLine, topic: str) -> None:
    odradek("produce", "-t", topic, "-p", "0", stdin=b"x" * 1000)
    found = partitions(odradek("log-dirs", "describe", "-t", topic, "--json").json)
    assert set(found) == {(topic, partition) for partition in range(3)}
    assert found[topic, 0]["size"] > 1000
    assert found[topic, 1]["size"] == found[topic, 2]["size"] == 0
    words = odradek("log-dirs", "describe", "--broker", "1").words
    assert words[0] == list(COLUMNS)
    assert topic in {line[2] for line in words[1:]}
    kafkas = odradek("log-dirs", "describe", "--topic-list", topic, "--kafka-json").json
    names = [
        row["partition"] for each in kafkas["brokers"][0]["logDirs"] for row in each["partitions"]
    ]
    assert sorted(names) == [f"{topic}-{partition}" for partition in range(3)]


def test_directories_are_listed(
    odradek: CommandLine, cli_broker: BrokerProcess, topic: str
) -> None:
    listed = odradek("log-dirs", "list", "--json").json
    assert [row["path"] for row in listed] == [str(path) for path in cli_broker.log_dirs]
    assert all(row["error"] is None and row["total_bytes"] > 0 for row in listed)
    words = odradek("log-dirs", "list").words
    assert words[0] == ["BROKER", "DIRECTORY", "STATE", "REPLICAS", "SIZE", "FREE", "DISK"]
    assert [line[1:3] for line in words[1:]] == [[str(p), "ok"] for p in cli_broker.log_dirs]


def test_list_shows_cordoned_directory(odradek: CommandLine, cli_broker: BrokerProcess) -> None:
    """KIP-1066."""
    _, second = map(str, cli_broker.log_dirs)
    alter = ["configs", "alter", "broker", "1"]
    odradek(*alter, "--set", f"cordoned.log.dirs={second}")
    try:
        with deadline(10, "the config") as check:  # a Kafka's broker learns of it a little later
            while not odradek("log-dirs", "list", "--dir", second, "--json").json[0]["is_cordoned"]:
                check()
        states = [line[2] for line in odradek("log-dirs", "list").words[1:]]
        assert states == ["ok", "cordoned"]
    finally:
        odradek(*alter, "--unset", "cordoned.log.dirs")


def test_describe_filters_directories_by_broker(
    odradek: CommandLine, cli_broker: BrokerProcess, topic: str
) -> None:
    """J-17: filter by directory, which the request does not support."""
    # On an Apache Kafka, a replica is there once it is written to
    for partition in ("0", "1", "2"):
        odradek("produce", "-t", topic, "-p", partition, stdin=b"x")
    first, second = map(str, cli_broker.log_dirs)
    rows = odradek("log-dirs", "list", "--dir", second, "--json").json
    assert [row["path"] for row in rows] == [second]
    describe = ["log-dirs", "describe", "--topics", f"{topic},none", "--json", "--broker-list", "1"]
    everything = partitions(odradek(*describe).json)
    for path in (first, second):
        shown = odradek(*describe, "--log-dirs", path).json
        assert [each["path"] for each in shown["log_dirs"]] == [path]
        wanted = {key for key, row in everything.items() if row["path"] == path}
        assert set(partitions(shown)) == wanted
    assert set(everything) == {(topic, partition) for partition in range(3)}


def test_unknown_topics_directories_and_brokers_are_reported(odradek: CommandLine) -> None:
    missing = odradek("log-dirs", "list", "--dir", "/nowhere", code=1)
    assert "no broker has the log directory /nowhere" in missing.stderr
    unknown = odradek("log-dirs", "describe", "--broker-list", "1,7", code=1)
    assert "The given brokers do not exist from --broker-list: 7. Current existent brokers: 1" in (
        unknown.stderr
    )
    no_topic = odradek("log-dirs", "describe", "-t", "nothing-here", "--json")
    assert "no log directory has a replica of nothing-here" in no_topic.stderr
    assert partitions(no_topic.json) == {}


def test_format_new_log_directory(offline: CommandLine, tmp_path: Path) -> None:
    """Format a directory for the node of another directory, without a broker."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    (old / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=7\n")
    output = offline("log-dirs", "format", str(new), "--like", str(old)).stdout.decode()
    assert "is now a log directory of node 7" in output
    written = (new / "meta.properties").read_text()
    assert "cluster.id=c\n" in written
    assert "directory.id=" in written
    refused = offline("log-dirs", "format", str(new), "--like", str(old), code=1)
    assert "is already formatted" in refused.stderr
