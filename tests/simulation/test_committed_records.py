"""CommittedRecords compares each replica with the committed records during a run."""

from __future__ import annotations

import pytest
import trio

from odradek.protocol.records.records import Record, build_batch
from odradek.replication.controller.image import PartitionImage
from odradek.replication.partition.partition import Partition
from odradek.seams.files import Path
from odradek.testing.simulation.committed_records import CommittedRecords, ReplicaSnapshot
from odradek.testing.simulation.plan import Fault, FaultKind, SimulationPlan
from odradek.testing.simulation.run import simulate
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles

STOPS = Fault(1.0, FaultKind.STOP, 1, 2, seconds=0.3, amount=0.5)
LOG = "t-0"
DIRECTORY = Path("/data/t-0")


def batch(base: int, value: bytes) -> bytes:
    """Return a batch of two records."""
    built = build_batch([Record(0, 1000, None, value), Record(1, 1000, None, value)])
    return base.to_bytes(8, "big") + bytes(built[8:])


class Node:
    def __init__(self, name: str) -> None:
        self.name = name
        self.files = VirtualFiles(VirtualDisk())
        self.files.make_directory(DIRECTORY)
        self.end = 0

    def append(self, *values: bytes, segment: int = 0) -> None:
        path = DIRECTORY / f"{segment:020}.log"
        file = self.files.open(path, create=not self.files.exists(path), write=True)
        for value in values:
            file.append_v([batch(self.end, value)])
            self.end += 2

    def cut(self, end: int) -> None:
        size = len(batch(0, b"a")) * end // 2
        self.files.open(DIRECTORY / f"{0:020}.log", write=True).truncate(size)
        self.end = end

    def seen(
        self, high: int, *, epoch: int = 0, leads: bool = False, start: int = 0
    ) -> ReplicaSnapshot:
        return ReplicaSnapshot(
            self.name, self.name, self.files.disk, DIRECTORY, start, high, self.end, epoch, leads
        )


@pytest.fixture
def nodes() -> tuple[CommittedRecords, Node, Node]:
    committed, one, two = CommittedRecords(), Node("one"), Node("two")
    one.append(b"a", b"b", b"c")
    assert committed.compare(LOG, one.seen(4, leads=True)) is None
    assert committed.high(LOG) == 4
    return committed, one, two


Nodes = tuple[CommittedRecords, Node, Node]


def test_equal_replicas_have_no_violation(nodes: Nodes) -> None:
    committed, _, two = nodes
    two.append(b"a")
    assert committed.compare(LOG, two.seen(2)) is None
    two.append(b"b", b"x")  # the last batch is not committed
    assert committed.compare(LOG, two.seen(4)) is None


def test_different_record_below_the_high_watermark_is_found(nodes: Nodes) -> None:
    committed, _, two = nodes
    two.append(b"a", b"x")
    assert committed.compare(LOG, two.seen(2)) is None
    found = committed.compare(LOG, two.seen(4))
    assert found is not None
    assert "two has BatchFingerprint(base=2, next=4" in found


def test_records_appended_after_truncation_are_compared_again(nodes: Nodes) -> None:
    committed, one, _ = nodes
    one.cut(2)
    assert committed.compare(LOG, one.seen(2)) is None
    one.append(b"x")
    assert committed.compare(LOG, one.seen(4)) is not None


def test_leader_of_the_newest_epoch_must_have_all_committed_records(nodes: Nodes) -> None:
    committed, one, two = nodes
    two.append(b"a")
    assert committed.compare(LOG, two.seen(2)) is None
    found = committed.compare(LOG, two.seen(2, epoch=1, leads=True))
    assert found == "two is the leader, but its log ends at 2 before 4"
    two.append(b"x")
    assert committed.compare(LOG, two.seen(2, epoch=1, leads=True)) is not None
    one.cut(2)  # no longer the leader of the newest epoch: it may lack records
    assert committed.compare(LOG, one.seen(2, leads=True)) is None


def test_log_with_a_later_start_is_compared_from_its_start(nodes: Nodes) -> None:
    committed, one, two = nodes
    two.end = 2
    two.append(b"b", b"c", segment=2)
    assert committed.compare(LOG, two.seen(6, start=2)) is None
    assert committed.high(LOG) == 6
    assert committed.compare(LOG, one.seen(6)) is None


def test_file_without_committed_records_is_found(nodes: Nodes) -> None:
    committed, _, two = nodes
    two.append(b"a")
    two.end = 4
    assert committed.compare(LOG, two.seen(4)) is not None


def test_unclean_election_may_lose_committed_records(nodes: Nodes) -> None:
    committed, _, two = nodes
    committed.forget(LOG)
    two.append(b"x")
    assert committed.compare(LOG, two.seen(2, epoch=1, leads=True)) is None


def test_short_leadership_of_a_second_leader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two checks, followers become leader of the same epoch and are then corrected."""
    honest = Partition.update

    def update(self: Partition, image: PartitionImage) -> None:
        honest(self, image)
        if self.topic == "records" and self.leader not in (-1, self._node_id):
            self.leader = self._node_id
            trio.lowlevel.spawn_system_task(restore_follower, self, image.leader)

    async def restore_follower(partition: Partition, leader: int) -> None:
        await trio.sleep(0.0001)
        partition.leader = leader

    monkeypatch.setattr(Partition, "update", update)
    kinds = {each.kind for each in simulate(SimulationPlan(3, (STOPS,))).anomalies}
    assert "two leaders" in kinds
