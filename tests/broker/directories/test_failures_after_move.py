"""Test that a moved replica fails with its new log directory, and not with the old one."""

from __future__ import annotations

import time

import pytest

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.seams.files import Path
from tests.broker.directories.node import A, B, Node, running, two_disks
from tests.support.waiting import deadline

PARTITIONS = 4


def move(node: Node, index: int, to: Path) -> None:
    wanted = {"path": str(to), "topics": [{"name": "t", "partitions": [index]}]}
    response = node.ask(apis.ALTER_REPLICA_LOG_DIRS, 2, dirs=[wanted])
    assert response.results[0].partitions[0].error_code is ErrorCode.none
    with deadline(10, "the move") as check:
        while node.where()["t", index] != str(to):
            check(0.01)


@pytest.mark.parametrize("to", [A, B])
def test_moved_replica_fails_with_its_current_directory(to: Path) -> None:
    disk = two_disks()
    with running(disk, topics={"t": PARTITIONS}) as node:
        for index in range(PARTITIONS):
            assert node.produce("t", index, "before") is ErrorCode.none
        source = B if to == A else A
        where = node.where()
        moved = next(index for index in range(PARTITIONS) if where["t", index] == str(source))
        move(node, moved, to)
        time.sleep(0.3)  # the report is asynchronous
        disk.fail("/b*")
        lost = {i for i in range(PARTITIONS) if node.where().get(("t", i), str(B)) == str(B)}
        with deadline(10, "the failure to be known") as check:
            while {i for i, p in node.metadata("t").items() if p.leader_id == -1} != lost:
                check(0.01)
        assert (moved in lost) == (to == B)
        for index in range(PARTITIONS):
            wanted = ErrorCode.kafka_storage_error if index in lost else ErrorCode.none
            assert node.produce("t", index, "after") is wanted
