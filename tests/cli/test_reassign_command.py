"""Tests of `odradek reassign` with a broker that has two log directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odradek.cli import reassign
from odradek.client.reassignment_admin import Reassignment
from odradek.protocol.topics import TopicPartition
from tests.cli.command_line import CommandLine, Ran
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import deadline

MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def reassignment(tmp_path: Path, topic: str, *log_dirs: str, replicas: Any = (1,)) -> str:
    """A reassignment file with the topic's partitions in these directories."""
    rows = [
        {"topic": topic, "partition": partition, "replicas": list(replicas), "log_dirs": [path]}
        for partition, path in enumerate(log_dirs)
    ]
    file = tmp_path / "reassignment.json"
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(file)


def placed(odradek: CommandLine, topic: str) -> dict[int, str]:
    shown = odradek("log-dirs", "describe", "-t", topic, "--json").json
    return {
        row["partition"]: each["path"]
        for each in shown["log_dirs"]
        for row in each["partitions"]
        if not row["is_temporary"]
    }


def others(odradek: CommandLine, broker: BrokerProcess, topic: str) -> list[str]:
    """For each partition, the directory that does not contain it."""
    paths = [str(path) for path in broker.log_dirs]
    found = placed(odradek, topic)
    return [next(path for path in paths if path != found[number]) for number in sorted(found)]


def verified(odradek: CommandLine, file: str) -> Ran:
    """Output of the first --verify without moves in progress."""
    with deadline(30, "the moves to be over") as check:
        while True:
            ran = odradek("reassign", "--verify", "--file", file, code=None)
            if b"still in progress" not in ran.stdout:
                return ran
            check()


def written(odradek: CommandLine, topic: str) -> None:
    for partition in ("0", "1", "2"):
        odradek("produce", "-t", topic, "-p", partition, stdin=b"one\ntwo\n")


def test_execute_moves_replicas_to_directories(
    odradek: CommandLine, cli_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """J-20, J-21, J-22: execute and verify; no record is lost."""
    written(odradek, topic)
    wanted = others(odradek, cli_broker, topic)
    file = reassignment(tmp_path, topic, *wanted)
    lines = odradek("reassign", "--execute", "--file", file).lines
    current = json.loads(lines[2])  # the current assignment, for a rollback
    assert current["partitions"][0]["log_dirs"] != [wanted[0]]
    assert (
        f"Successfully started partition reassignments for {topic}-0,{topic}-1,{topic}-2" in lines
    )
    for number, path in enumerate(wanted):
        assert (
            f"Successfully started moving log directory to {path} for replica {topic}-{number} "
            "with broker 1" in lines
        )
    done = verified(odradek, file)
    assert done.code == 0
    for number in range(3):
        assert f"Reassignment of partition {topic}-{number} is completed." in done.lines
        assert f"Reassignment of replica {topic}-{number}-1 completed successfully." in done.lines
    assert placed(odradek, topic) == dict(enumerate(wanted))
    shown = odradek("consume", "-t", topic, "-o", "beginning", "-e")
    assert sorted(shown.lines) == ["one"] * 3 + ["two"] * 3
    # and back, by the file that it printed
    undo = tmp_path / "undo.json"
    undo.write_text(lines[2])
    odradek("reassign", "--execute", "--file", str(undo))
    assert verified(odradek, str(undo)).code == 0
    assert placed(odradek, topic) != dict(enumerate(wanted))


def test_execute_rejects_cordoned_directory(
    odradek: CommandLine, cli_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """KIP-1066."""
    written(odradek, topic)
    target, *_ = others(odradek, cli_broker, topic)
    alter = ["configs", "alter", "broker", "1"]
    odradek(*alter, "--set", f"cordoned.log.dirs={target}")
    try:
        with deadline(10, "the config") as check:  # a Kafka's broker learns of it a little later
            while not odradek("log-dirs", "list", "--dir", target, "--json").json[0]["is_cordoned"]:
                check()
        file = reassignment(tmp_path, topic, target)
        ran = odradek("reassign", "--execute", "--file", file, code=1)
    finally:
        odradek(*alter, "--unset", "cordoned.log.dirs")
    assert f"alter dir for {topic}-0-1 to {target} [INVALID_REPLICA_ASSIGNMENT]" in ran.stderr
    assert "is cordoned" in ran.stderr


def test_execute_with_unknown_directory_moves_nothing(
    odradek: CommandLine, topic: str, tmp_path: Path
) -> None:
    """J-21: an error other than REPLICA_NOT_AVAILABLE fails the command."""
    file = reassignment(tmp_path, topic, "/nowhere")
    ran = odradek("reassign", "--execute", "--file", file, code=1)
    assert f"Failed to alter dir for {topic}-0-1 to /nowhere [LOG_DIR_NOT_FOUND]" in ran.stderr
    assert "odradek log-dirs list" in ran.stderr
    assert not any("Successfully" in line for line in ran.lines)
    not_moving = odradek("reassign", "--verify", "--file", file, code=1)
    assert any(
        line.startswith(f"Partition {topic}-0 on broker 1 is not being moved from log dir")
        for line in not_moving.lines
    )


def test_throttles_are_set_and_removed(
    odradek: CommandLine, cli_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """J-23: --throttle does not limit moves between directories."""

    def rates() -> dict[str, str]:
        shown = odradek("configs", "describe", "broker", "1", "--json").json
        return {row["name"]: row["value"] for row in shown if "per.second" in row["name"] or
                "throttled.rate" in row["name"]}  # fmt: skip

    def until(expected: dict[str, str]) -> None:
        with deadline(
            10, f"the throttles {expected}"
        ) as check:  # a broker of Apache Kafka applies it later
            while rates() != expected:
                check()

    file = reassignment(tmp_path, topic, *others(odradek, cli_broker, topic))
    execute = ["reassign", "--execute", "--file", file]
    ran = odradek(*execute, "--throttle", "5000000")
    assert "The inter-broker throttle limit was set to 5000000 B/s" in ran.lines
    assert any("You must run --verify periodically" in line for line in ran.lines)
    replication = {
        "leader.replication.throttled.rate": "5000000",
        "follower.replication.throttled.rate": "5000000",
    }
    until(replication)
    ran = odradek(*execute, "--replica-alter-log-dirs-throttle", "7000000")
    assert "The replica-alter-dir throttle limit was set to 7000000 B/s" in ran.lines
    until({**replication, MOVE_RATE: "7000000"})
    done = verified(odradek, file)
    assert "Clearing broker-level throttles on broker 1" in done.lines
    assert f"Clearing topic-level throttles on topic {topic}" in done.lines
    until({})


def test_any_directory_sends_no_alter_replica_log_dirs(
    odradek: CommandLine, topic: str, tmp_path: Path
) -> None:
    """J-21: AlterReplicaLogDirs is not sent if all directories are "any"."""
    file = reassignment(tmp_path, topic, "any", "any", "any")
    lines = odradek("reassign", "--execute", "--file", file).lines
    assert not any("moving log directory" in line for line in lines)
    assert odradek("reassign", "--verify", "--file", file).lines[:2] == [
        "Status of partition reassignment:",
        f"Reassignment of partition {topic}-0 is completed.",
    ]
    cancelled = odradek("reassign", "--cancel", "--file", file).lines
    assert cancelled[:2] == [
        "None of the specified partition reassignments are active.",
        "None of the specified partition moves are active.",
    ]
    assert odradek("reassign", "--list").lines == ["No partition reassignments found."]


def test_json_of_execute_and_verify(
    odradek: CommandLine, cli_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    before = placed(odradek, topic)
    wanted = others(odradek, cli_broker, topic)
    file = reassignment(tmp_path, topic, *wanted)
    limits = ("--throttle", "5000000", "--replica-alter-log-dirs-throttle", "7000000")
    started = odradek("reassign", "--execute", "--file", file, "--json", *limits).json
    assert started == {
        "current": {
            "version": 1,
            "partitions": [
                {"topic": topic, "partition": n, "replicas": [1], "log_dirs": [before[n]]}
                for n in range(3)
            ],
        },
        "throttle": 5000000,
        "replica_alter_log_dirs_throttle": 7000000,
        "partitions": [{"topic": topic, "partition": n, "replicas": [1]} for n in range(3)],
        "log_dir_moves": [
            {"topic": topic, "partition": n, "broker": 1, "log_dir": wanted[n]} for n in range(3)
        ],
    }
    with deadline(30, "the moves to be over") as check:
        while not (shown := odradek("reassign", "--verify", "--file", file, "--json").json)[
            "throttles_removed"
        ]:
            assert {each["state"] for each in shown["log_dir_moves"]} <= {"active", "completed"}
            check()
    assert shown["partitions"] == [
        {
            "topic": topic,
            "partition": n,
            "state": "completed",
            "replicas": [1],
            "target_replicas": [1],
        }
        for n in range(3)
    ]
    assert shown["log_dir_moves"] == [
        {
            "topic": topic,
            "partition": n,
            "broker": 1,
            "state": "completed",
            "log_dir": wanted[n],
            "future_log_dir": None,
            "target_log_dir": wanted[n],
        }
        for n in range(3)
    ]
    undo = tmp_path / "undo.json"
    undo.write_text(json.dumps(started["current"]))
    odradek("reassign", "--execute", "--file", str(undo), "--json")
    assert verified(odradek, str(undo)).code == 0
    assert placed(odradek, topic) == before


def test_json_of_failed_execute_has_what_was_done(
    odradek: CommandLine, topic: str, tmp_path: Path
) -> None:
    """The current assignment is needed for a rollback. An error before it leaves stdout empty."""
    file = reassignment(tmp_path, topic, "/nowhere")
    ran = odradek("reassign", "--execute", "--file", file, "--json", code=1)
    assert [each["topic"] for each in ran.json["current"]["partitions"]] == [topic]
    assert (ran.json["partitions"], ran.json["log_dir_moves"]) == ([], [])
    assert "[LOG_DIR_NOT_FOUND]" in ran.stderr
    shown = odradek("reassign", "--verify", "--file", file, "--json", code=1).json
    assert [each["state"] for each in shown["log_dir_moves"]] == ["cancelled"]
    file = reassignment(tmp_path, topic, "any", replicas=[7])
    ran = odradek("reassign", "--execute", "--file", file, "--json", code=1)
    assert (ran.stdout, "Unknown broker id 7" in ran.stderr) == (b"", True)
    shown = odradek("reassign", "--verify", "--file", file, "--json", code=1).json
    assert [each["state"] for each in shown["partitions"]] == ["inactive"]


def test_json_of_cancel_and_list_without_moves(
    odradek: CommandLine, topic: str, tmp_path: Path
) -> None:
    file = reassignment(tmp_path, topic, "any")
    assert odradek("reassign", "--cancel", "--file", file, "--json").json == {
        "partitions": [],
        "log_dir_moves": [],
        "throttles_removed": True,
    }
    kept = odradek("reassign", "--cancel", "--file", file, "--json", "--preserve-throttles").json
    assert kept["throttles_removed"] is False
    assert odradek("reassign", "--list", "--json").json == []


def test_json_of_cancel_and_list_with_active_reassignments(
    odradek: CommandLine, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a cluster with several brokers."""
    active = {TopicPartition(topic, 0): Reassignment((1, 2, 3), (2, 3), (1,))}
    cancelled: list[Any] = []

    async def list_active(*args: object) -> dict[TopicPartition, Reassignment]:
        return active

    async def alter(cluster: object, wanted: Any) -> dict[TopicPartition, Any]:
        cancelled.append(wanted)
        return {}

    monkeypatch.setattr(reassign, "list_reassignments", list_active)
    monkeypatch.setattr(reassign, "alter_reassignments", alter)
    assert odradek("reassign", "--list", "--json").json == [
        {"topic": topic, "partition": 0, "replicas": [1, 2, 3], "adding": [2, 3], "removing": [1]}
    ]
    file = reassignment(tmp_path, topic, "any", replicas=[3])
    shown = odradek("reassign", "--cancel", "--file", file, "--json").json
    assert shown["partitions"] == [{"topic": topic, "partition": 0}]
    assert cancelled == [{TopicPartition(topic, 0): None}]
    shown = odradek("reassign", "--verify", "--file", file, "--json").json
    assert [each["state"] for each in shown["partitions"]] == ["active"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "one of the arguments --execute --verify --cancel --list is required"),
        (["--execute", "--verify", "--file", "f"], 2, "not allowed with"),
        (["--execute"], 2, "--file is missing"),
        (["--execute", "--file", "/no/such/file"], 1, "/no/such/file: No such file"),
    ],
)
def test_wrong_usage(odradek: CommandLine, words: list[str], code: int, text: str) -> None:
    assert text in odradek("reassign", *words, code=code).stderr


def test_unknown_brokers_and_partitions_are_reported(
    odradek: CommandLine, topic: str, tmp_path: Path
) -> None:
    """J-21: an offline or unknown broker fails the command."""
    file = reassignment(tmp_path, topic, "/a", replicas=[7])
    assert "Unknown broker id 7" in odradek("reassign", "--execute", "--file", file, code=1).stderr
    file = reassignment(tmp_path, f"{topic}-none", "any")
    ran = odradek("reassign", "--execute", "--file", file, code=1)
    assert f"Unable to find partition: {topic}-none-0" in ran.stderr
    ran = odradek("reassign", "--verify", "--file", file, code=1)
    assert f"partition {topic}-none-0" in ran.stdout.decode()
    file = reassignment(tmp_path, topic, *["any"] * 5)
    ran = odradek("reassign", "--execute", "--file", file, code=1)
    assert f"Unable to find partition: {topic}-3, {topic}-4" in ran.stderr
