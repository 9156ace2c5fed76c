"""Tests of the responses of each API for partitions in a failed log directory, and for other partitions. Part B
of the requirements, “dir failure”, and scenario 22 for one broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.testing.virtual_disk import VirtualDisk
from tests.broker.directories.node import (
    A,
    B,
    Node,
    Where,
    partition_results,
    running,
    two_disks,
)
from tests.support.waiting import wait_until

STORAGE_ERROR = ErrorCode.kafka_storage_error
PARTITIONS = 6


@pytest.fixture
def disk() -> VirtualDisk:
    return two_disks()


@pytest.fixture
def node(disk: VirtualDisk) -> Iterator[Node]:
    with running(disk, topics={"t": PARTITIONS}) as node:
        yield node


def fail_directory(node: Node, directory: object, operations: set[str] | None = None) -> Where:
    """Make the directory fail at its next write; returns the directories of the partitions."""
    for index in range(PARTITIONS):
        assert node.produce("t", index, "before") is ErrorCode.none
    where = node.where()
    node.disk.fail(f"{directory}/*", operations=operations or {"write"})
    victim = next(
        index for (name, index), at in where.items() if (name, at) == ("t", str(directory))
    )
    assert node.produce("t", victim, "lost") is STORAGE_ERROR
    return where


def test_partition_apis_return_storage_error_others_succeed(node: Node) -> None:
    where = fail_directory(node, B)
    for index in range(PARTITIONS):
        is_lost = where["t", index] == str(B)
        wanted = STORAGE_ERROR if is_lost else ErrorCode.none
        for acks in (1, -1):
            assert node.produce("t", index, "after", acks=acks) is wanted
        for response in partition_results(node, "t", index):
            assert response.error_code is wanted, (index, response)


@pytest.mark.parametrize(
    ("version", "wanted"), [(5, ErrorCode.not_leader_or_follower), (6, STORAGE_ERROR)]
)
def test_old_fetch_version_gets_not_leader_for_storage_error(
    node: Node, version: int, wanted: ErrorCode
) -> None:
    where = fail_directory(node, B)
    lost = next(index for index in range(PARTITIONS) if where["t", index] == str(B))
    fetched = {"partition": lost, "fetch_offset": 0, "partition_max_bytes": 1000}
    response = node.ask(
        apis.FETCH, version, topics=[{"topic": "t", "partitions": [fetched]}], max_bytes=1000
    )
    assert response.responses[0].partitions[0].error_code is wanted


def test_metadata_lists_lost_partition_as_offline_without_leader(node: Node) -> None:
    where = fail_directory(node, B)

    def leaderless() -> bool:
        found = node.metadata("t")
        return all((found[i].leader_id == -1) == (where["t", i] == str(B)) for i in found)

    wait_until(leaderless)
    for index, partition in node.metadata("t").items():
        if where["t", index] == str(B):
            assert partition.error_code is ErrorCode.leader_not_available
            assert partition.offline_replicas == (1,)
        else:
            assert (partition.error_code, partition.leader_id) == (ErrorCode.none, 1)
            assert partition.offline_replicas == ()


def test_describe_log_dirs_returns_error_without_sizes(node: Node) -> None:
    """J-18: an offline directory is an error; without sizes (scenario 23)."""
    fail_directory(node, B)
    dirs = node.log_dirs()
    assert (dirs[str(A)].error_code, dirs[str(B)].error_code) == (ErrorCode.none, STORAGE_ERROR)
    assert (dirs[str(B)].total_bytes, dirs[str(B)].usable_bytes, dirs[str(B)].topics) == (
        -1,
        -1,
        (),
    )


def test_new_partitions_use_online_directories(node: Node) -> None:
    fail_directory(node, B)
    node.broker.create_topic("new", partitions=3)
    assert [node.produce("new", index, "x") for index in range(3)] == [ErrorCode.none] * 3
    assert {at for (name, _), at in node.where().items() if name == "new"} == {str(A)}


def test_coordinator_of_lost_partition_is_not_available(node: Node) -> None:
    """Groups and transactional ids of the other directory's partitions keep working."""
    open_coordinators(node)
    where = fail_directory(node, B)
    groups = [f"g{n}" for n in range(12)]
    found = {group: coordinator(node, group) for group in groups}
    lost = [name for (name, _), at in where.items() if name.startswith("__") and at == str(B)]
    assert lost, "half of 16 partitions are there, and only six are of t"
    for group, code in found.items():
        index = partition_of(group)
        assert (code is ErrorCode.none) == (where["__consumer_offsets", index] == str(A))
        wanted = ErrorCode.none if code is ErrorCode.none else ErrorCode.not_coordinator
        assert heartbeat_of_unknown_member(node, group) in (ErrorCode.unknown_member_id, wanted)
        assert (heartbeat_of_unknown_member(node, group) is ErrorCode.not_coordinator) == (
            code is not ErrorCode.none
        )
        assert commit(node, group) is wanted
        code = coordinator(node, group, key_type=1)
        is_served = where["__transaction_state", index] == str(A)
        assert code is (ErrorCode.none if is_served else ErrorCode.coordinator_not_available)
        code = init_producer(node, group)
        assert code is (ErrorCode.none if is_served else ErrorCode.not_coordinator)


def open_coordinators(node: Node) -> None:
    """Create the internal topics and open all their partitions."""
    for key_type in (0, 1):
        assert coordinator(node, "g", key_type=key_type) is ErrorCode.none
    wait_until(lambda: sum(name.startswith("__") for name, _ in node.where()) == 10)


def partition_of(key: str) -> int:
    from odradek.broker.coordination.coordinator_log import partition_for

    return partition_for(key, 5)


def coordinator(node: Node, key: str, key_type: int = 0) -> ErrorCode:
    response = node.ask(apis.FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=[key])
    code: ErrorCode = response.coordinators[0].error_code
    return code


def heartbeat_of_unknown_member(node: Node, group: str) -> ErrorCode:
    response = node.ask(
        apis.HEARTBEAT, 4, group_id=group, generation_id=1, member_id="m", group_instance_id=None
    )
    code: ErrorCode = response.error_code
    return code


def commit(node: Node, group: str) -> ErrorCode:
    committed = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    response = node.ask(
        apis.OFFSET_COMMIT,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": "t", "partitions": [committed]}],
    )
    code: ErrorCode = response.topics[0].partitions[0].error_code
    return code


def init_producer(node: Node, transactional_id: str) -> ErrorCode:
    response = node.ask(
        apis.INIT_PRODUCER_ID,
        4,
        transactional_id=transactional_id,
        transaction_timeout=10_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    code: ErrorCode = response.error_code
    return code
