"""Tests of one failing file operation during requests: each request gets a response. The node has restarted, so
that files are read, opened and written for the first time while a request waits."""

from __future__ import annotations

import errno

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.testing.virtual_disk import VirtualDisk
from tests.broker.directories.node import A, Node, Where, partition_results, running, two_disks
from tests.support.raw_client import RawClient

PARTITIONS = 4
FINE = {ErrorCode.none}
REFUSED = {ErrorCode.none, ErrorCode.kafka_storage_error}
TIMES = 10**6
SMALL = {"internal.segment.bytes": "1500", "index.interval.bytes": "200", "retention.ms": "-1"}


def talk(node: Node, where: Where) -> int:
    """Send all requests about partitions and return the number of responses with errors."""
    refusals = 0
    for index in range(PARTITIONS):
        allowed = FINE if where["t", index] == str(A) else REFUSED
        codes = [node.produce("t", index, "more " * 40) for _ in range(3)]
        codes += responses(node, index)
        assert set(codes) <= allowed, (index, codes)
        refusals += sum(code is not ErrorCode.none for code in codes)
    return refusals


def responses(node: Node, index: int) -> list[ErrorCode]:
    """Error codes of the APIs other than Produce.

    The last one is a Fetch whose records are read during the send: its connection is closed, and the next
    request gets the error.
    """
    codes = []
    try:
        codes += [response.error_code for response in partition_results(node, "t", index)]
    except ConnectionResetError:
        node.client = RawClient(node.broker.bootstrap)
        codes = [response.error_code for response in partition_results(node, "t", index)]
        assert codes[-1] is ErrorCode.kafka_storage_error
    return codes


@pytest.fixture
def stopped_node() -> tuple[VirtualDisk, Where]:
    """Disks of a node after a clean shutdown, and the directories of its partitions."""
    disk = two_disks()
    with running(disk) as node:
        node.broker.create_topic("t", PARTITIONS, SMALL)
        for index in range(PARTITIONS):
            for number in range(12):
                assert node.produce("t", index, f"{number} " * 60) is ErrorCode.none
        where = node.where()
    return disk, where


@pytest.mark.parametrize("operation", ["read", "open", "write", "create"])
def test_failing_call_returns_error_for_each_request(
    stopped_node: tuple[VirtualDisk, Where], operation: str
) -> None:
    disk, where = stopped_node
    counted = disk.crash(0)
    with running(counted) as node:
        # The start is not counted.
        fault = counted.fail("/b/t-*", errno.EIO, {operation}, passes=TIMES)
        assert talk(node, where) == 0
        total = TIMES - fault.passes
    assert total > 0
    seen = 0
    for number in sorted({0, 1, 2, 3, total // 2, total - 1}):
        broken = disk.crash(0)
        with running(broken) as node:
            broken.fail("/b/t-*", errno.EIO, {operation}, passes=number, times=1)
            refusals = talk(node, where)
            again = talk(node, where)
            assert again or not refusals, "offline is for good"
            seen += refusals + again
    assert seen, "none of it was noticed"
