"""Tests of the reassignment file and the status lines, without a broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.cli.errors import CommandFailed
from odradek.cli.reassignment_file import check_executable, dump, parse
from odradek.cli.reassignment_states import (
    DirectoryMoveState,
    PartitionReassignment,
    ReplicaDirectories,
    move_line,
    replica_directories,
    status_lines,
)
from odradek.client.log_dir_admin import LogDirectory, Replica, ReplicaInDirectory
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition

T0 = TopicPartition("t", 0)
ON_1 = Replica(1, "t", 0)


def text(*rows: dict[str, Any], version: Any = 1) -> str:
    return json.dumps({"version": version, "partitions": list(rows)})


def row(**changes: Any) -> dict[str, Any]:
    return {"topic": "t", "partition": 0, "replicas": [1], **changes}


def test_parse_log_dirs_of_replicas() -> None:
    """J-20."""
    file = parse(text(row(replicas=[2, 1], log_dirs=["any", "/b"]), row(partition=3)))
    assert file.partitions == {T0: (2, 1), TopicPartition("t", 3): (1,)}
    assert file.directories == {ON_1: "/b"}
    assert parse('{"partitions": []}').assignments == ()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("nonsense", "The input string is not a valid JSON"),
        ("[]", "The input string is not a valid JSON"),
        (text(version=2), "Not supported version field value 2"),
        (
            text(row(replicas=[1, 2], log_dirs=["/a"])),
            "Size of replicas list [1, 2] is different from size of log dirs list ['/a'] "
            "for partition t-0",
        ),
        (text(row(log_dirs=["disk1"])), "'disk1' for partition t-0 is neither an absolute path"),
        (text(row(log_dirs=[1])), "'log_dirs' is not a list of str"),
        (text(row(partition="0")), "'partition' is missing or not a int"),
        (text({"topic": "t", "partition": 0}), "'replicas' is missing"),
    ],
)
def test_parse_rejects_invalid_file(given: str, expected: str) -> None:
    """J-20: "any", or an absolute path that begins with '/'."""
    with pytest.raises(CommandFailed) as refused:
        parse(given)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (text(), "Partition reassignment list cannot be empty"),
        (text(row(replicas=[])), "Partition replica list cannot be empty"),
        (text(row(), row()), "Partition reassignment contains duplicate topic partitions: t-0"),
        (
            text(row(replicas=[1, 2, 1])),
            "Partition replica lists may not contain duplicate entries: "
            "t-0 contains multiple entries for 1",
        ),
    ],
)
def test_execute_rejects_empty_and_duplicate_entries(given: str, expected: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        check_executable(parse(given))
    assert str(refused.value) == expected


PATHS = st.sampled_from(["any", "/a", "/disk 2"])


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.text(min_size=1), st.integers(0, 99)),
        st.dictionaries(st.integers(0, 9), PATHS, min_size=1),
    )
)
def test_dump_of_reassignment_file_parses_back(
    wanted: dict[TopicPartition, dict[int, str]],
) -> None:
    directories = {
        Replica(broker, *where): path
        for where, brokers in wanted.items()
        for broker, path in brokers.items()
        if path != "any"
    }
    file = parse(dump({where: tuple(brokers) for where, brokers in wanted.items()}, directories))
    assert file.partitions == {where: tuple(wanted[where]) for where in sorted(wanted)}
    assert file.directories == directories


@pytest.mark.parametrize(
    ("place", "state", "line"),
    [
        (ReplicaDirectories("/b"), DirectoryMoveState.COMPLETED, "Reassignment of replica t-0-1 completed successfully."),
        (ReplicaDirectories("/a", "/b"), DirectoryMoveState.ACTIVE, "Reassignment of replica t-0-1 is still in progress."),
        (ReplicaDirectories("/b", "/a"), DirectoryMoveState.ELSEWHERE,
         "Partition t-0 on broker 1 is being moved to log dir /a instead of /b."),
        (ReplicaDirectories("/a"), DirectoryMoveState.CANCELLED,
         "Partition t-0 on broker 1 is not being moved from log dir /a to /b."),
        (ReplicaDirectories(None, None, True), DirectoryMoveState.OFFLINE,
         "Partition t-0 is not found in any live log dir on broker 1. There is likely an offline "
         "log directory on the broker."),
        (ReplicaDirectories(), DirectoryMoveState.MISSING,
         "Partition t-0 cannot be found in any live log directory on broker 1."),
    ],
)  # fmt: skip
def test_directory_move_states(
    place: ReplicaDirectories, state: DirectoryMoveState, line: str
) -> None:
    """J-22: the texts of Kafka's tool."""
    assert place.state_of_move_to("/b") is state
    assert move_line(ON_1, "/b", place) == line
    assert state.done == (state not in (DirectoryMoveState.ACTIVE, DirectoryMoveState.ELSEWHERE))


def test_replica_directories_from_descriptions() -> None:
    def directory(broker: int, path: str, error: ErrorCode, *replicas: Any) -> LogDirectory:
        return LogDirectory(broker, path, error, -1, -1, replicas)

    here = ReplicaInDirectory("t", 0, 10, 0, False)
    copy = ReplicaInDirectory("t", 0, 3, 0, True)
    found = [
        directory(1, "/a", ErrorCode.none, here),
        directory(1, "/b", ErrorCode.none, copy),
        directory(2, "/a", ErrorCode.kafka_storage_error),
    ]
    assert replica_directories([ON_1, Replica(2, "t", 0)], found) == {
        ON_1: ReplicaDirectories("/a", "/b"),
        Replica(2, "t", 0): ReplicaDirectories(None, None, broker_has_offline=True),
    }


def test_partition_reassignment_status() -> None:
    lines = status_lines(
        {
            TopicPartition("t", 1): PartitionReassignment((1,), (1,), active=False),
            T0: PartitionReassignment((1, 2), (1,), active=True),
            TopicPartition("u", 0): PartitionReassignment((1, 2), (2, 1), active=False),
        }
    )
    assert lines == [
        "Status of partition reassignment:",
        "Reassignment of partition t-0 is still in progress.",
        "Reassignment of partition t-1 is completed.",
        "There is no active reassignment of partition u-0, but replica set is 1,2 rather than 2,1.",
    ]
