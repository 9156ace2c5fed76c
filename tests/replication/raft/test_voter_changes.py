"""Voters are added, removed and updated (KIP-853), and a static quorum is upgraded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.actions import (
    AdvanceHighWatermark,
    AppendVotersRecord,
    RaftAction,
    SendResponse,
)
from odradek.replication.raft.election_state import ElectionState
from odradek.replication.raft.messages import (
    AddVoterRequest,
    AddVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    EndEpochRequest,
    FetchRequest,
    FetchResponse,
    RaftRequest,
    RaftResponse,
    RemoveVoterRequest,
    RemoveVoterResponse,
    UpdateVoterRequest,
    VoteResponse,
)
from odradek.replication.raft.quorum_state import QuorumRole, QuorumSettings
from odradek.replication.raft.raft_client import RaftClient
from odradek.replication.raft.voter_history import ControlChange, VoterHistory
from odradek.replication.raft.voters import ReplicaKey, Voter, VoterEndpoint
from tests.replication.raft.memory_raft_log import Entry, MemoryLog
from tests.replication.raft.raft_clients import key, machine, reply, sent, voter

ELSEWHERE = (VoterEndpoint("NOT-THE-QUORUMS", "h", 1),)
REPORTED = ApiVersionsResponse(kraft_versions=(0, 1))


class QuorumLeader:
    """Node 1, which leads the voters and `others` in epoch 1 and has committed its first records."""

    def __init__(self, *others: int, kraft_version: int = 1, committed: bool = True) -> None:
        self.log = MemoryLog()
        self.machine: RaftClient = machine(1, *others, log=self.log, kraft_version=kraft_version)
        self.now = 1000
        self.others = others
        actions = self.machine.start(0)
        if others:
            for asked in sent(self.machine.tick(1000)):
                actions = [*actions, *self.responses(asked.number, VoteResponse(granted=True))]
            for asked in sent(actions):
                self.responses(asked.number, VoteResponse(epoch=1, granted=True))
        assert self.machine.role is QuorumRole.LEADER
        first = [ControlChange(1, kraft_version=1), ControlChange(2, voters=self.voters())]
        self.append(first if kraft_version else [], leader=True)
        if committed:
            self.all_fetch()
            assert self.machine.high_watermark == self.log.end_offset

    def voters(self) -> tuple[Voter, ...]:
        return tuple(self.machine.voters)

    def responses(self, number: int, response: RaftResponse) -> Sequence[RaftAction]:
        return self.machine.handle_response(number, response, self.now)

    def receives(self, request: RaftRequest) -> Sequence[RaftAction]:
        return self.machine.handle_request(request, self.now)

    def append(
        self, changes: Sequence[ControlChange], *, leader: bool = False
    ) -> Sequence[RaftAction]:
        self.log.append([Entry(1, "leader")] if leader else [])
        self.log.append(Entry(1, None, change) for change in changes)
        return self.machine.appended(changes, self.now)

    def append_voters(self, action: RaftAction) -> Sequence[RaftAction]:
        assert isinstance(action, AppendVotersRecord)
        return self.append([ControlChange(self.log.end_offset, voters=action.voters)])

    def flush(self) -> Sequence[RaftAction]:
        return self.machine.flushed(self.log.end_offset, 1, self.now)

    def fetch(self, node_id: int) -> Sequence[RaftAction]:
        """Fetch from the log end offset, as a replica that has caught up."""
        request = FetchRequest(
            replica=key(node_id),
            epoch=1,
            fetch_offset=self.log.end_offset,
            last_fetched_epoch=1,
        )
        return self.receives(request)

    def all_fetch(self) -> list[RaftAction]:
        actions = list(self.flush())
        for each in self.others:
            actions += self.fetch(each)
        return actions


def replies(actions: Sequence[RaftAction]) -> list[RaftResponse]:
    return [each.response for each in actions if isinstance(each, SendResponse)]


ADD_4 = AddVoterRequest(voter=voter(4))


def test_voter_is_added_after_it_has_caught_up() -> None:
    quorum = QuorumLeader(2, 3)
    quorum.fetch(4)
    asked = sent(quorum.receives(ADD_4))[-1]
    assert (asked.to, asked.endpoints) == (4, voter(4).endpoints)
    assert isinstance(asked.request, ApiVersionsRequest)
    (appends,) = quorum.responses(asked.number, REPORTED)
    assert appends == AppendVotersRecord(1, tuple(voter(each) for each in (1, 2, 3, 4)))
    quorum.append_voters(appends)
    assert quorum.machine.voters.ids == (1, 2, 3, 4)
    assert replies(quorum.flush()) == []
    two_of_four = quorum.fetch(2)
    assert [type(each) for each in replies(two_of_four)] == [FetchResponse]
    actions = quorum.fetch(3)
    assert AdvanceHighWatermark(quorum.log.end_offset) in actions
    assert AddVoterResponse() in replies(actions)


def test_add_voter_without_ack_when_committed_responds_after_append() -> None:
    quorum = QuorumLeader(2, 3)
    quorum.fetch(4)
    asked = sent(quorum.receives(replace(ADD_4, ack_when_committed=False)))[-1]
    (appends,) = quorum.responses(asked.number, REPORTED)
    assert replies(quorum.append_voters(appends)) == [AddVoterResponse()]
    assert [type(each) for each in replies(quorum.all_fetch())].count(AddVoterResponse) == 0


@pytest.mark.parametrize(
    ("fetches", "reported", "error"),
    [
        (False, REPORTED, ErrorCode.request_timed_out),  # has not caught up
        (True, ApiVersionsResponse(kraft_versions=(0, 0)), ErrorCode.invalid_request),
        (True, ApiVersionsResponse(), ErrorCode.invalid_request),
        (True, ApiVersionsResponse(error=ErrorCode.invalid_request), ErrorCode.request_timed_out),
        (True, None, ErrorCode.request_timed_out),  # unreachable
    ],
)
def test_unsuitable_voter_is_rejected(
    fetches: bool, reported: ApiVersionsResponse | None, error: ErrorCode
) -> None:
    quorum = QuorumLeader(2, 3)
    if fetches:
        quorum.fetch(4)
    asked = sent(quorum.receives(ADD_4))[-1]
    if reported is None:
        actions = quorum.machine.handle_request_failure(asked.number, quorum.now)
    else:
        actions = quorum.responses(asked.number, reported)
    assert reply(actions).error is error
    assert quorum.machine.voters.ids == (1, 2, 3)
    assert quorum.machine.leadership is not None
    assert quorum.machine.leadership.pending is None


def test_add_voter_times_out() -> None:
    quorum = QuorumLeader(2, 3)
    quorum.fetch(4)
    quorum.receives(ADD_4)
    assert reply(quorum.machine.tick(3000)).error is ErrorCode.request_timed_out


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (AddVoterRequest(voter=voter(2)), ErrorCode.duplicate_voter),
        (
            AddVoterRequest(voter=replace(voter(2), directory_id=UUID(int=9))),
            ErrorCode.duplicate_voter,
        ),
        (AddVoterRequest(voter=Voter(4)), ErrorCode.invalid_request),
        (AddVoterRequest(voter=replace(voter(4), endpoints=())), ErrorCode.invalid_request),
        (AddVoterRequest(voter=replace(voter(4), endpoints=ELSEWHERE)), ErrorCode.invalid_request),
        (AddVoterRequest(voter=replace(voter(4), id=-1)), ErrorCode.invalid_request),
        (RemoveVoterRequest(voter=key(4)), ErrorCode.voter_not_found),
        (RemoveVoterRequest(voter=ReplicaKey(2, UUID(int=9))), ErrorCode.voter_not_found),
        (RemoveVoterRequest(voter=ReplicaKey(2)), ErrorCode.invalid_request),
        (UpdateVoterRequest(voter=voter(4), epoch=1), ErrorCode.voter_not_found),
        (UpdateVoterRequest(voter=voter(2), epoch=0), ErrorCode.fenced_leader_epoch),
        (UpdateVoterRequest(voter=voter(2), epoch=2), ErrorCode.unknown_leader_epoch),
        (
            UpdateVoterRequest(voter=replace(voter(2), kraft_versions=(0, 0)), epoch=1),
            ErrorCode.invalid_request,
        ),
        (
            UpdateVoterRequest(voter=replace(voter(2), endpoints=()), epoch=1),
            ErrorCode.invalid_request,
        ),
        (
            UpdateVoterRequest(voter=replace(voter(2), endpoints=ELSEWHERE), epoch=1),
            ErrorCode.invalid_request,
        ),
    ],
)
def test_invalid_voter_change_is_rejected(request_: RaftRequest, error: ErrorCode) -> None:
    assert reply(QuorumLeader(2, 3).receives(request_)).error is error


CHANGES: list[RaftRequest] = [
    ADD_4,
    RemoveVoterRequest(voter=key(2)),
    UpdateVoterRequest(voter=voter(2, 9095), epoch=1),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: type(each).__name__)
def test_voter_change_requires_leader_and_committed_voters(change: RaftRequest) -> None:
    unknown = QuorumLeader(2, 3, committed=False)
    assert reply(unknown.receives(change)).error is ErrorCode.request_timed_out

    one_by_one = QuorumLeader(2, 3)
    (appends, *_) = one_by_one.receives(RemoveVoterRequest(voter=key(3)))
    assert reply(one_by_one.receives(change)).error is ErrorCode.request_timed_out
    one_by_one.append_voters(appends)
    # The request has timed out, and the change is still not committed
    one_by_one.machine.tick(3000)
    assert reply(one_by_one.receives(change)).error is ErrorCode.request_timed_out

    follower = QuorumLeader(2, 3)
    follower.machine.resign(follower.now)
    again = replace(change)
    assert reply(follower.receives(again)).error is ErrorCode.not_leader_or_follower

    closing = QuorumLeader(2, 3)
    closing.machine.shut_down(closing.now)
    assert closing.machine.role is QuorumRole.RESIGNED


@pytest.mark.parametrize("change", CHANGES[:2], ids=lambda each: type(each).__name__)
def test_static_voters_cannot_change(change: RaftRequest) -> None:
    assert (
        reply(QuorumLeader(2, 3, kraft_version=0).receives(change)).error
        is ErrorCode.unsupported_version
    )


def test_removal_applies_as_soon_as_appended() -> None:
    quorum = QuorumLeader(2, 3)
    (appends,) = quorum.receives(RemoveVoterRequest(voter=key(3)))
    quorum.append_voters(appends)
    quorum.flush()
    assert [each for each in quorum.fetch(3) if isinstance(each, AdvanceHighWatermark)] == []
    assert RemoveVoterResponse() in replies(quorum.fetch(2))
    leadership = quorum.machine.leadership
    assert leadership is not None
    assert [each.key for each in leadership.observer_progress(quorum.now)] == [key(3)]


def test_last_voter_cannot_be_removed() -> None:
    response = reply(QuorumLeader().receives(RemoveVoterRequest(voter=key(1))))
    assert response.error is ErrorCode.voter_not_found


def test_leader_that_removed_itself_leads_until_commit() -> None:
    quorum = QuorumLeader(2, 3)
    (appends,) = quorum.receives(RemoveVoterRequest(voter=key(1)))
    quorum.append_voters(appends)
    assert quorum.flush() == []
    quorum.fetch(2)
    assert quorum.machine.role is QuorumRole.LEADER, "it does not count itself"
    actions = quorum.fetch(3)
    assert RemoveVoterResponse() in replies(actions)
    assert quorum.machine.role is QuorumRole.LEADER, "waiting fetches are completed"
    assert quorum.machine.deadline_ms == quorum.now
    actions = quorum.machine.tick(quorum.now)
    assert quorum.machine.role is QuorumRole.RESIGNED
    assert {each.to for each in sent(actions) if isinstance(each.request, EndEpochRequest)} == {
        2,
        3,
    }
    assert quorum.machine.may_stop
    quorum.machine.tick(5000)
    quorum.machine.tick(50_000)
    assert quorum.machine.role is QuorumRole.UNATTACHED, "it is not elected again"


def test_pending_voter_change_fails_when_leadership_is_lost() -> None:
    quorum = QuorumLeader(2, 3)
    quorum.receives(RemoveVoterRequest(voter=key(3)))
    response = reply(quorum.machine.resign(quorum.now))
    assert (type(response), response.error) == (
        RemoveVoterResponse,
        ErrorCode.not_leader_or_follower,
    )


def test_voter_updates_its_endpoints() -> None:
    quorum = QuorumLeader(2, 3)
    appends, responded = quorum.receives(UpdateVoterRequest(voter=voter(2, 9095), epoch=1))
    assert appends == AppendVotersRecord(1, (voter(1), voter(2, 9095), voter(3)))
    assert isinstance(responded, SendResponse)
    assert responded.response.error is ErrorCode.none


def test_static_quorum_becomes_dynamic() -> None:
    quorum = QuorumLeader(2, 3, kraft_version=0)
    machine = quorum.machine
    unnamed = [replace(each, directory_id=UUID(int=0)) for each in quorum.voters()]
    quorum_state = machine._quorum
    quorum_state.history = VoterHistory(unnamed)
    quorum_state.in_memory_voters = quorum_state.history.voters.updated(
        voter(1), any_directory=True
    )  # type: ignore[assignment]
    refusal, _ = machine.upgrade(1, quorum.now)
    assert refusal is not None
    assert "[2, 3]" in refusal.message, "their directories are not known"
    for each in (2, 3):
        reported = reply(quorum.receives(UpdateVoterRequest(voter=voter(each), epoch=1)))
        assert reported.error is ErrorCode.none
    refusal, actions = machine.upgrade(1, quorum.now)
    assert refusal is None
    named = tuple(voter(each) for each in (1, 2, 3))
    assert list(actions) == [AppendVotersRecord(1, named, kraft_version=1)]
    end = quorum.log.end_offset
    quorum.append([ControlChange(end, kraft_version=1), ControlChange(end + 1, voters=named)])
    assert (machine.kraft_version, tuple(machine.voters)) == (1, named)
    refusal, _ = machine.upgrade(0, quorum.now)
    assert refusal is not None


def follower_request(
    me: Voter, *, voters: tuple[Voter, ...], auto_join: bool
) -> RaftRequest | None:
    """Request about itself that follower sends to leader 2 when its update timeout expires."""
    history = VoterHistory(
        (), [ControlChange(-1, kraft_version=1), ControlChange(-1, voters=voters)]
    )
    settings = QuorumSettings(fetch_timeout_ms=2000, auto_join=auto_join)
    quorum = RaftClient(me, MemoryLog(), history, ElectionState(3, leader_id=2), settings=settings)
    (fetch,) = sent(quorum.start(0))
    for now in (1500, 2001):
        (fetch,) = sent(
            quorum.handle_response(fetch.number, FetchResponse(epoch=3, leader_id=2), now)
        )
    return None if isinstance(fetch.request, FetchRequest) else fetch.request


def test_voter_request_about_itself() -> None:
    two = (voter(2), voter(3))
    known = (voter(1), *two)
    moved, wiped = voter(1, 9095), replace(voter(1), directory_id=UUID(int=77))
    joins = AddVoterRequest(voter=voter(1), ack_when_committed=False, timeout_ms=2000)
    assert follower_request(voter(1), voters=known, auto_join=True) is None
    assert follower_request(moved, voters=known, auto_join=False) == UpdateVoterRequest(
        voter=moved, epoch=3
    )
    assert follower_request(voter(1), voters=two, auto_join=False) is None
    assert follower_request(voter(1), voters=two, auto_join=True) == joins
    assert follower_request(wiped, voters=known, auto_join=True) == RemoveVoterRequest(voter=key(1))


def test_order_of_endpoints_does_not_cause_an_update() -> None:
    """Kafka stores endpoints by listener name."""
    two = (*voter(1).endpoints, VoterEndpoint("SECURE", "h1", 9094))
    known = (replace(voter(1), endpoints=two[::-1]), voter(2), voter(3))
    assert follower_request(replace(voter(1), endpoints=two), voters=known, auto_join=False) is None
    fewer = replace(voter(1), endpoints=two[:1])
    assert follower_request(fewer, voters=known, auto_join=False) == UpdateVoterRequest(
        voter=fewer, epoch=3
    )


def test_voter_history_follows_the_log() -> None:
    one, two, three = voter(1), voter(2), voter(3)
    history = VoterHistory([one])
    assert (history.voters.ids, history.voters_offset, history.kraft_version) == ((1,), None, 0)
    history.append([ControlChange(3, kraft_version=1), ControlChange(4, voters=(one, two))])
    history.append([ControlChange(9, voters=(one, two, three))])
    assert (history.voters.ids, history.voters_offset, history.kraft_version) == ((1, 2, 3), 9, 1)
    assert history.at(9)[1].ids == (1, 2)
    history.compact(7)
    history.truncate(9)
    assert (history.voters.ids, history.voters_offset, history.kraft_version) == ((1, 2), 4, 1)
    history.truncate(4)
    assert (history.voters.ids, history.kraft_version) == ((1,), 1)
    history.reset([ControlChange(20, voters=(three,))])
    assert (history.voters.ids, history.kraft_version) == ((3,), 0)
