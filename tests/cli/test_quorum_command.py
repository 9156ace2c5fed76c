"""Tests of `odradek quorum` with one voter, and with a scripted controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from odradek.client.metadata import open_cluster
from odradek.client.quorum_admin import (
    QuorumReplica,
    QuorumState,
    VoterListener,
    add_voter,
    describe_quorum,
    remove_voter,
)
from odradek.protocol.apis import (
    ADD_RAFT_VOTER,
    DESCRIBE_CLUSTER,
    DESCRIBE_QUORUM,
    REMOVE_RAFT_VOTER,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.uuids import uuid_from_text
from odradek.seams.tcp import TcpNetwork
from tests.cli.command_line import CommandLine
from tests.support.scripted_broker import ReceivedRequest, ScriptedBroker, scripted_broker

DIRECTORY = "JEXY6aqzQY-32P5TStzaFg"


def test_describe_quorum_of_one_voter(odradek: CommandLine) -> None:
    found = odradek("quorum", "describe", "--json").json
    (voter,) = found["replicas"]
    assert (found["leader"], voter["node"], voter["role"]) == (1, 1, "leader")
    assert (found["max_lag"], found["max_lag_ms"], voter["lag"]) == (0, 0, 0)
    assert found["high_watermark"] > 0
    assert uuid_from_text(voter["directory"]).version == 4
    ran = odradek("quorum", "describe")
    assert ran.lines[0].startswith(f"leader 1, epoch {found['epoch']}, high watermark ")
    assert ran.words[1][:3] == ["NODE", "ROLE", "DIRECTORY"]
    assert ran.words[2][:3] == ["1", "leader", voter["directory"]]


def test_remove_unknown_voter_fails(odradek: CommandLine) -> None:
    assert (
        "controller 7 is not a voter; the voters are: 1"
        in odradek("quorum", "remove", "7", code=1).stderr
    )
    ran = odradek("quorum", "remove", "1", "--dry-run")
    assert ran.lines[0].startswith("DRY RUN of removing KRaft controller 1 with directory id ")
    shown = odradek("quorum", "remove", "1", "--dry-run", "--json").json
    assert shown == {"node": 1, "directory": ran.lines[0].split()[-1], "dry_run": True}


def test_add_voter_reads_config_and_directory(offline: CommandLine, tmp_path: Path) -> None:
    config = tmp_path / "controller.properties"
    config.write_text(
        "process.roles=controller\nnode.id=4\n"
        "controller.quorum.bootstrap.servers=127.0.0.1:9093\n"
        "listeners=CONTROLLER://[::1]:9393\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={tmp_path}/data\n"
    )
    words = ("quorum", "add", "--config", str(config), "--dry-run")
    assert "is not formatted" in offline(*words, code=1).stderr
    offline("storage", "format", "-t", "c", "-c", str(config), "--no-initial-controllers")
    (line,) = offline(*words).lines
    assert line.startswith("DRY RUN of adding controller 4 with directory id ")
    assert line.endswith(" and endpoints: CONTROLLER://[::1]:9393")
    shown = offline(*words, "--json").json
    assert (shown["node"], shown["listeners"]) == (4, ["CONTROLLER://[::1]:9393"])
    assert shown["directory"] in line
    config.write_text(config.read_text().replace("roles=controller", "roles=broker"))
    assert "controller" in offline(*words, code=2).stderr


def replica(number: int, end: int, caught_up_ms: int = -1) -> QuorumReplica:
    return QuorumReplica(number, UUID(int=number), end, -1, caught_up_ms, ())


@pytest.mark.parametrize(
    ("voters", "lag", "lag_ms"),
    [
        ([replica(1, 10, 900)], 0, 0),
        ([replica(1, 10, 900), replica(2, 10, 100), replica(3, 7, 400)], 3, 500),
        ([replica(1, 10, 900), replica(2, 9)], 1, -1),
        ([replica(2, 9), replica(3, 9)], None, -1),  # the leader is leaving
    ],
)
def test_max_lag_of_voters(voters: list[QuorumReplica], lag: int | None, lag_ms: int) -> None:
    state = QuorumState(1, 5, 9, tuple(voters), ())
    assert (state.max_lag, state.max_lag_ms) == (lag, lag_ms)


# An inactive controller returns the active one


class Controllers:
    """Controller 1 does not lead; controller 2 does."""

    def __init__(self) -> None:
        self.leader: ScriptedBroker | None = None
        self.error = ErrorCode.none

    def follower(self, asked: ReceivedRequest) -> Any:
        code = ErrorCode.not_leader_or_follower
        if asked.api is DESCRIBE_QUORUM:
            return {"error_code": 0, "error_message": None, "topics": [_quorum(code)], "nodes": []}
        if asked.api in (ADD_RAFT_VOTER, REMOVE_RAFT_VOTER):
            return {"error_code": code, "error_message": None}
        if asked.api is DESCRIBE_CLUSTER:
            assert self.leader is not None
            assert asked.body.endpoint_type == 2
            where = {"host": self.leader.address.host, "port": self.leader.address.port}
            return {
                "error_code": 0, "error_message": None, "endpoint_type": 2, "cluster_id": "c",
                "controller_id": 2,
                "brokers": [{"broker_id": 2, "rack": None, "is_fenced": False, **where}],
                "cluster_authorized_operations": 0,
            }  # fmt: skip
        return None

    def active(self, asked: ReceivedRequest) -> Any:
        if asked.api is DESCRIBE_QUORUM:
            listener = {"name": "CONTROLLER", "host": "h", "port": 9}
            return {
                "error_code": 0, "error_message": None, "topics": [_quorum(ErrorCode.none)],
                "nodes": [{"node_id": 2, "listeners": [listener]}],
            }  # fmt: skip
        if asked.api in (ADD_RAFT_VOTER, REMOVE_RAFT_VOTER):
            return {"error_code": self.error, "error_message": "as you like"}
        return None


def _quorum(code: ErrorCode) -> dict[str, Any]:
    voter = {
        "replica_id": 2, "replica_directory_id": uuid_from_text(DIRECTORY), "log_end_offset": 12,
        "last_fetch_timestamp": 5, "last_caught_up_timestamp": 6,
    }  # fmt: skip
    observer = {**voter, "replica_id": 3, "replica_directory_id": None, "log_end_offset": 11}
    partition = {
        "partition_index": 0, "error_code": code, "error_message": None, "leader_id": 2,
        "leader_epoch": 4, "high_watermark": 11, "current_voters": [voter], "observers": [observer],
    }  # fmt: skip
    return {"topic_name": "__cluster_metadata", "partitions": [partition]}


async def test_quorum_request_follows_active_controller() -> None:
    stage = Controllers()
    async with scripted_broker(stage.follower) as follower, scripted_broker(stage.active) as leader:
        stage.leader = leader
        async with open_cluster(TcpNetwork(), [follower.address]) as cluster:
            state = await describe_quorum(cluster)
            await add_voter(cluster, 4, UUID(int=4), [VoterListener("CONTROLLER", "::1", 1)])
            await remove_voter(cluster, 2, UUID(int=2))
            stage.error = ErrorCode.duplicate_voter
            with pytest.raises(KafkaError, match="as you like"):
                await add_voter(cluster, 4, UUID(int=4), [])
    (voter,), (observer,) = state.voters, state.observers
    assert (state.leader_id, state.leader_epoch, state.high_watermark) == (2, 4, 11)
    assert (voter.last_fetch_ms, voter.last_caught_up_ms) == (5, 6)
    assert [str(each) for each in voter.listeners] == ["CONTROLLER://h:9"]
    assert (observer.directory_id, state.lag(observer)) == (UUID(int=0), 1)
    (first, _) = leader.requests_of(ADD_RAFT_VOTER)
    assert (first.body.voter_id, first.body.voter_directory_id) == (4, UUID(int=4))
    assert [(each.name, each.host, each.port) for each in first.body.listeners] == [
        ("CONTROLLER", "::1", 1)
    ]
