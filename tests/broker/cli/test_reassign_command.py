"""`odradek reassign` against a broker with two log directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.broker.cli.conftest import CommandLine

MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def reassignment(tmp_path: Path, topic: str, *log_dirs: str, replicas: Any = (1,)) -> str:
    """A file: the topic's partitions in these directories."""
    rows = [
        {"topic": topic, "partition": partition, "replicas": list(replicas), "log_dirs": [path]}
        for partition, path in enumerate(log_dirs)
    ]
    file = tmp_path / "reassignment.json"
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(file)


def test_any_asks_no_broker_for_a_move(odradek: CommandLine, topic: str, tmp_path: Path) -> None:
    """J-21: skipped if all are "any"."""
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


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "one of the arguments --execute --verify --cancel --list is required"),
        (["--execute", "--verify", "--file", "f"], 2, "not allowed with"),
        (["--execute"], 2, "Give --file"),
        (["--execute", "--file", "/no/such/file"], 1, "/no/such/file: No such file"),
    ],
)
def test_wrong_usage(odradek: CommandLine, words: list[str], code: int, text: str) -> None:
    assert text in odradek("reassign", *words, code=code).stderr


def test_what_is_not_there_is_named(odradek: CommandLine, topic: str, tmp_path: Path) -> None:
    """J-21: an offline or unknown broker fails."""
    file = reassignment(tmp_path, topic, "/a", replicas=[7])
    assert "Unknown broker id 7" in odradek("reassign", "--execute", "--file", file, code=1).stderr
    file = reassignment(tmp_path, f"{topic}-none", "any")
    ran = odradek("reassign", "--execute", "--file", file, code=1)
    assert f"topic {topic}-none does not exist" in ran.stderr
    file = reassignment(tmp_path, topic, *["any"] * 5)
    ran = odradek("reassign", "--execute", "--file", file, code=1)
    assert f"Unable to find partition: {topic}-3, {topic}-4" in ran.stderr
