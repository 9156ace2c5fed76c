"""Test of an empty log that a directory which failed during creation has left, while the replica is in another
directory."""

from __future__ import annotations

import time

from odradek.protocol.errors import ErrorCode
from odradek.testing.virtual_files import VirtualFiles
from tests.broker.directories.node import A, B, running, two_disks


def test_empty_leftover_is_not_led_while_directory_is_offline() -> None:
    disk = two_disks()
    with running(disk, topics={"t": 2}) as node:
        assert {node.produce("t", index, "there") for index in range(2)} == {ErrorCode.none}
        where = node.where()
        (index,) = (index for index in range(2) if where["t", index] == str(B))
        time.sleep(0.3)  # the report is asynchronous
    name, metadata = f"t-{index}", "partition.metadata"
    files = VirtualFiles(disk)
    files.make_directory(A / name)
    files.write_new(A / name / metadata, files.read(B / name / metadata))
    fault = disk.fail(f"{B}/*")
    with running(disk) as node:
        time.sleep(0.5)  # the log in /a would be reported and led
        assert node.produce("t", index, "over it") is not ErrorCode.none
        assert node.metadata("t")[index].leader_id == -1
        assert node.produce("t", 1 - index, "elsewhere") is ErrorCode.none
    disk.heal(fault)
    with running(disk) as node:
        assert node.where()["t", index] == str(B)
        assert node.produce("t", index, "after it") is ErrorCode.none
