"""Fetch validation, truncation and snapshots of the Raft log (KIP-595, KIP-630)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.actions import (
    AdvanceHighWatermark,
    AppendFetchedRecords,
    AppendSnapshotBytes,
    CreateSnapshotFile,
    InstallSnapshot,
    RaftAction,
    TruncateLog,
)
from odradek.replication.raft.election_state import ElectionState
from odradek.replication.raft.errors import InconsistentQuorum
from odradek.replication.raft.messages import (
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    VoteResponse,
)
from odradek.replication.raft.raft_client import RaftClient
from odradek.replication.raft.raft_log import (
    OffsetValidation,
    ValidOffset,
    truncation_offset,
    validate_offset_and_epoch,
)
from odradek.replication.raft.snapshots import SnapshotId
from odradek.replication.raft.voter_history import ControlChange
from tests.replication.raft.memory_raft_log import MemoryLog
from tests.replication.raft.raft_clients import key, machine, reply, sent, voter

# Log of the leader: epochs 1 1 2 2 2 5 5
LOG = [1, 1, 2, 2, 2, 5, 5]


@pytest.mark.parametrize(
    ("offset", "epoch", "check"),
    [
        (0, 0, ValidOffset()),
        (2, 1, ValidOffset()),
        (3, 2, ValidOffset()),
        (5, 2, ValidOffset()),
        (7, 5, ValidOffset()),
        (3, 1, EpochEndOffset(1, 2)),  # has more records of epoch 1 than the leader
        (6, 2, EpochEndOffset(2, 5)),
        (6, 3, EpochEndOffset(2, 5)),  # an epoch that the leader does not have
        (8, 5, EpochEndOffset(5, 7)),
        (9, 7, EpochEndOffset(5, 7)),
    ],
)
def test_fetch_offset_validation(offset: int, epoch: int, check: OffsetValidation) -> None:
    assert validate_offset_and_epoch(MemoryLog(LOG), offset, epoch) == check


@pytest.mark.parametrize(
    ("offset", "epoch", "check"),
    [
        (0, 0, SnapshotId(3, 2)),
        (2, 1, SnapshotId(3, 2)),
        (3, 1, SnapshotId(3, 2)),
        (3, 2, ValidOffset()),
        (4, 1, SnapshotId(3, 2)),
        (6, 2, EpochEndOffset(2, 5)),
        (7, 5, ValidOffset()),
    ],
)
def test_fetch_below_log_start_returns_snapshot_id(
    offset: int, epoch: int, check: OffsetValidation
) -> None:
    log = MemoryLog(LOG)
    log.snapshot(3)
    assert validate_offset_and_epoch(log, offset, epoch) == check


@pytest.mark.parametrize(
    ("mine", "reported", "end"),
    [
        ([1, 1, 1, 1], EpochEndOffset(1, 2), 2),
        ([1, 1, 2, 2], EpochEndOffset(1, 5), 2),
        ([1, 1, 3, 3], EpochEndOffset(2, 5), 2),
        ([1, 2, 2, 2], EpochEndOffset(2, 3), 3),
        ([3, 3], EpochEndOffset(2, 5), 0),
        ([0, 0, 1], EpochEndOffset(0, 1), 1),
    ],
)
def test_truncation_offset_of_a_follower(
    mine: list[int], reported: EpochEndOffset, end: int
) -> None:
    assert truncation_offset(MemoryLog(mine), reported) == end


# Followers


class Follower:
    """Return node 1, which follows node 2 in epoch 6."""

    def __init__(self, epochs: Sequence[int] = (1, 1, 3), *, observes: bool = False) -> None:
        self.log = MemoryLog(epochs)
        others = (2, 3)
        self.machine: RaftClient = machine(
            1, *others, observes=observes, log=self.log, election=ElectionState(6, leader_id=2)
        )
        self.actions = self.machine.start(0)

    @property
    def fetch(self) -> int:
        (asked,) = sent(self.actions)
        return asked.number

    def is_reported(self, **response: object) -> Sequence[RaftAction]:
        reported = FetchResponse(epoch=6, leader_id=2, **response)  # type: ignore[arg-type]
        self.actions = self.machine.handle_response(self.fetch, reported, 100)
        return self.actions


def test_fetched_records_are_appended_before_the_next_fetch() -> None:
    one = Follower()
    actions = one.is_reported(records=["x", "y"], high_watermark=4)
    assert list(actions) == [AppendFetchedRecords(["x", "y"], 6, durable=True)]
    assert list(one.machine.tick(150)) == [], "no fetch before the truncation"
    one.log.append([*MemoryLog([6, 6]).entries])
    actions = one.machine.appended([], 160)
    assert actions[0] == AdvanceHighWatermark(4)
    (asked,) = sent(actions)
    assert isinstance(asked.request, FetchRequest)
    assert (asked.request.fetch_offset, asked.request.last_fetched_epoch) == (5, 6)
    assert asked.request.high_watermark == 4


def test_high_watermark_does_not_exceed_log_end() -> None:
    one = Follower()
    assert AdvanceHighWatermark(3) in one.is_reported(high_watermark=9)


def test_diverging_log_is_truncated_before_the_next_fetch() -> None:
    one = Follower([1, 1, 3])
    actions = one.is_reported(diverging=EpochEndOffset(2, 7))
    assert list(actions) == [TruncateLog(2)]
    one.log.truncate(2)
    (asked,) = sent(one.machine.truncated(110))
    assert isinstance(asked.request, FetchRequest)
    assert (asked.request.fetch_offset, asked.request.last_fetched_epoch) == (2, 1)


def test_truncation_below_high_watermark_raises() -> None:
    one = Follower([1, 1, 3])
    one.is_reported(high_watermark=3)
    with pytest.raises(InconsistentQuorum):
        one.is_reported(diverging=EpochEndOffset(2, 7))


def test_truncation_restores_previous_voters() -> None:
    log = MemoryLog([1])
    one = machine(1, 2, 3, log=log, election=ElectionState(6, leader_id=2), kraft_version=1)
    actions = one.start(0)
    log.append(MemoryLog([2]).entries)
    reported = FetchResponse(epoch=6, leader_id=2, records=["voters"])
    one.handle_response(sent(actions)[0].number, reported, 1)
    actions = one.appended([ControlChange(1, voters=(voter(2), voter(3)))], 1)
    assert (one.voters.ids, one.is_voter) == ((2, 3), False)
    assert one.deadline_ms == 2001, (
        "its removal may never be committed, so it may still start an election"
    )
    reported = FetchResponse(epoch=6, leader_id=2, diverging=EpochEndOffset(1, 1))
    one.handle_response(sent(actions)[0].number, reported, 2)
    assert (one.voters.ids, one.is_voter) == ((1, 2, 3), True)


def test_removed_voter_starts_no_election_after_commit() -> None:
    log = MemoryLog([1])
    one = machine(1, 2, 3, log=log, election=ElectionState(6, leader_id=2), kraft_version=1)
    actions = one.start(0)
    log.append(MemoryLog([2]).entries)
    reported = FetchResponse(epoch=6, leader_id=2, records=["voters"], high_watermark=2)
    one.handle_response(sent(actions)[0].number, reported, 1)
    one.appended([ControlChange(1, voters=(voter(2), voter(3)))], 1)
    one.tick(10_000)
    assert (one.role.value, one.is_voter) == ("follower", False)


# Snapshots


def test_snapshot_is_fetched_in_chunks_and_installed() -> None:
    one = Follower()
    wanted = SnapshotId(9, 5)
    actions = one.is_reported(snapshot_id=wanted)
    assert actions[0] == CreateSnapshotFile(wanted)
    asked = sent(actions)[0]
    assert asked.request == FetchSnapshotRequest(
        replica=key(1), epoch=6, snapshot_id=wanted, position=0, max_bytes=1 << 20
    )

    def piece(position: int, data: bytes) -> FetchSnapshotResponse:
        return FetchSnapshotResponse(
            epoch=6, leader_id=2, snapshot_id=wanted, size=5, position=position, data=data
        )

    actions = one.machine.handle_response(asked.number, piece(0, b"abc"), 110)
    assert actions[0] == AppendSnapshotBytes(0, b"abc")
    asked = sent(actions)[0]
    assert isinstance(asked.request, FetchSnapshotRequest)
    assert asked.request.position == 3
    actions = one.machine.handle_response(asked.number, piece(3, b"de"), 120)
    assert list(actions) == [AppendSnapshotBytes(3, b"de"), InstallSnapshot(wanted)]
    one.log.install(MemoryLog([5] * 9).entries, wanted)
    actions = one.machine.installed([ControlChange(8, kraft_version=1)], 130)
    assert actions[0] == AdvanceHighWatermark(9)
    asked = sent(actions)[0]
    assert isinstance(asked.request, FetchRequest)
    assert (asked.request.fetch_offset, asked.request.last_fetched_epoch) == (9, 5)
    assert one.machine.kraft_version == 1


@pytest.mark.parametrize(
    "response",
    [
        FetchSnapshotResponse(epoch=6, leader_id=2, error=ErrorCode.snapshot_not_found),
        FetchSnapshotResponse(epoch=6, leader_id=2, snapshot_id=SnapshotId(9, 5), position=7),
        FetchSnapshotResponse(epoch=6, leader_id=2, snapshot_id=SnapshotId(8, 5)),
    ],
)
def test_deleted_snapshot_is_abandoned(response: FetchSnapshotResponse) -> None:
    one = Follower()
    (asked,) = sent(one.is_reported(snapshot_id=SnapshotId(9, 5)))
    (asked,) = sent(one.machine.handle_response(asked.number, response, 110))
    assert isinstance(asked.request, FetchRequest)


@pytest.mark.parametrize(
    ("wanted", "position", "error"),
    [
        (SnapshotId(2, 0), 0, ErrorCode.none),
        (SnapshotId(2, 0), 1, ErrorCode.none),
        (SnapshotId(2, 0), 2, ErrorCode.position_out_of_range),
        (SnapshotId(2, 0), -1, ErrorCode.position_out_of_range),
        (SnapshotId(1, 0), 0, ErrorCode.snapshot_not_found),
        (SnapshotId(0, 0), 0, ErrorCode.snapshot_not_found),
    ],
)
def test_fetch_snapshot_position_validation(
    wanted: SnapshotId, position: int, error: ErrorCode
) -> None:
    log = MemoryLog([0, 0, 0])
    log.snapshot(2)
    one = machine(1, 2, log=log)
    one.start(0)
    for asked in sent(one.tick(1000)):
        actions = one.handle_response(asked.number, VoteResponse(granted=True), 1001)
    for asked in sent(actions):
        one.handle_response(asked.number, VoteResponse(epoch=1, granted=True), 1002)
    request = FetchSnapshotRequest(replica=key(2), epoch=1, snapshot_id=wanted, position=position)
    response = reply(one.handle_request(request, 1003))
    assert isinstance(response, FetchSnapshotResponse)
    # In bytes; a snapshot of this log has one byte per record
    size = 2 if error is ErrorCode.none else 0
    assert (response.error, response.size) == (error, size)
