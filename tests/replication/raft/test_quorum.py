"""Transitions of the Raft client (KIP-595, KIP-996): elections, persisted election state, and commits.

Voter changes, following, and unreachable leaders have their own files.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.actions import (
    AdvanceHighWatermark,
    AppendLeaderChangeMessage,
    PersistElectionState,
    RaftAction,
    SendRequest,
    SendResponse,
)
from odradek.replication.raft.election_state import ElectionState
from odradek.replication.raft.errors import InconsistentQuorum
from odradek.replication.raft.messages import (
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    FetchRequest,
    FetchResponse,
    RaftRequest,
    RaftResponse,
    RemoveVoterRequest,
    RemoveVoterResponse,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.quorum_state import QuorumRole, QuorumSettings
from odradek.replication.raft.raft_client import RaftClient
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER
from odradek.replication.raft.rpc_codec import EPOCH_MAX
from odradek.replication.raft.voters import NO_LEADER, ReplicaKey
from tests.replication.raft.raft_clients import key, machine, reply, sent, voter

HERE = UUID(int=1)


# Single voter


def test_single_voter_leads_the_next_epoch_at_once() -> None:
    lone = machine(1, election=ElectionState(epoch=4, leader_id=1))
    assert list(lone.start(0)) == [
        PersistElectionState(ElectionState(epoch=5, leader_id=1)),
        AppendLeaderChangeMessage(5, voters=(1,), granted=(1,)),
    ]
    assert (lone.role, lone.epoch, lone.leader_id) == (QuorumRole.LEADER, 5, 1)
    assert lone.deadline_ms is None, "there is no other voter"


def test_epoch_is_not_reused_after_quorum_state_loss() -> None:
    assert machine(1, election=ElectionState(epoch=2), log=[1, 6]).epoch == 6
    assert machine(1, election=ElectionState(epoch=9), log=[1, 6]).epoch == 9


def test_high_watermark_waits_for_flush_of_first_epoch_record() -> None:
    lone = machine(1, log=[1] * 10)
    lone.start(0)
    assert list(lone.flushed(10, lone.epoch, 1)) == []
    assert list(lone.flushed(11, lone.epoch - 1, 1)) == [], "a flush of an epoch before"
    assert list(lone.flushed(11, lone.epoch, 1)) == [AdvanceHighWatermark(11)]
    assert list(lone.flushed(11, lone.epoch, 1)) == []


def test_resigned_leader_commits_nothing_and_leads_later_epoch() -> None:
    lone = machine(1)
    lone.start(0)
    lone.flushed(4, 1, 0)
    assert list(lone.resign(10)) == []
    assert lone.role is QuorumRole.RESIGNED
    assert list(lone.flushed(9, 1, 11)) == []
    assert lone.deadline_ms is not None
    actions = lone.tick(lone.deadline_ms)
    assert actions[0] == PersistElectionState(ElectionState(epoch=3, leader_id=1))
    assert lone.role is QuorumRole.LEADER


# Start


@pytest.mark.parametrize(
    ("election", "role", "first"),
    [
        (ElectionState(), QuorumRole.UNATTACHED, FetchRequest),
        (ElectionState(3), QuorumRole.UNATTACHED, FetchRequest),
        (
            ElectionState(3, voted_id=2, voted_directory_id=UUID(int=2)),
            QuorumRole.UNATTACHED,
            FetchRequest,
        ),
        (
            ElectionState(3, voted_id=1, voted_directory_id=HERE),
            QuorumRole.UNATTACHED,
            FetchRequest,
        ),
        (ElectionState(3, leader_id=1), QuorumRole.RESIGNED, EndEpochRequest),
        (ElectionState(3, leader_id=2), QuorumRole.FOLLOWER, FetchRequest),
        (ElectionState(3, leader_id=9), QuorumRole.UNATTACHED, FetchRequest),
    ],
)
def test_first_role_follows_from_persisted_election_state(
    election: ElectionState, role: QuorumRole, first: type[RaftRequest]
) -> None:
    one = machine(1, 2, 3, election=election)
    actions = one.start(0)
    assert (one.role, one.epoch) == (role, election.epoch)
    assert [type(each.request) for each in sent(actions)][:1] == [first]
    assert not [each for each in actions if isinstance(each, PersistElectionState)], (
        "nothing is new"
    )


# Elections


def prospective(
    *others: int, log: Sequence[int] = (), epoch: int = 0
) -> tuple[RaftClient, list[SendRequest]]:
    one = machine(1, *others, log=log, election=ElectionState(epoch))
    one.start(0)
    assert one.deadline_ms == 1000
    return one, sent(one.tick(1000))


def candidate(*others: int, log: Sequence[int] = ()) -> tuple[RaftClient, list[SendRequest]]:
    one, asked = prospective(*others, log=log)
    actions: Sequence[RaftAction] = []
    for each in asked[: (len(others) + 1) // 2]:
        actions = one.handle_response(each.number, VoteResponse(granted=True), 1010)
    assert one.role is QuorumRole.CANDIDATE
    assert actions[0] == PersistElectionState(ElectionState(1, voted_id=1, voted_directory_id=HERE))
    return one, sent(actions)


def leader(*others: int, log: Sequence[int] = ()) -> RaftClient:
    one, asked = candidate(*others, log=log)
    for each in asked[: (len(others) + 1) // 2]:
        one.handle_response(each.number, VoteResponse(epoch=1, granted=True), 1020)
    assert one.role is QuorumRole.LEADER
    one.appended([], 1020)
    return one


def test_pre_vote_uses_current_epoch_and_changes_nothing() -> None:
    one, asked = prospective(2, 3, log=[1, 1, 2], epoch=4)
    assert (one.role, one.epoch) == (QuorumRole.PROSPECTIVE, 4)
    assert [each.to for each in asked] == [2, 3]
    assert asked[0].request == VoteRequest(
        voter=key(2), epoch=4, candidate=key(1), last_epoch=2, end_offset=3, pre_vote=True
    )


def test_elected_candidate_persists_and_sends_begin_quorum_epoch() -> None:
    one, asked = candidate(2, 3)
    assert [(each.to, each.request.epoch, each.request.pre_vote) for each in asked] == [  # type: ignore[attr-defined]
        (2, 1, False),
        (3, 1, False),
    ]
    actions = one.handle_response(asked[0].number, VoteResponse(epoch=1, granted=True), 1020)
    assert actions[:2] == [
        PersistElectionState(ElectionState(1, leader_id=1)),
        AppendLeaderChangeMessage(1, voters=(1, 2, 3), granted=(1, 2)),
    ]
    begun = BeginEpochRequest(
        voter=key(2), leader_id=1, epoch=1, leader_endpoints=voter(1).endpoints
    )
    assert sent(actions)[0].request == begun
    late = one.handle_response(asked[1].number, VoteResponse(epoch=1, granted=True), 1021)
    assert list(late) == [], "a late vote changes nothing"


def test_only_a_majority_elects_the_candidate() -> None:
    one, asked = candidate(2, 3, 4, 5)
    one.handle_response(asked[0].number, VoteResponse(epoch=1, granted=True), 1020)
    one.handle_response(asked[1].number, VoteResponse(epoch=1, granted=False), 1020)
    assert one.role is QuorumRole.CANDIDATE
    one.handle_response(asked[2].number, VoteResponse(epoch=1, granted=True), 1020)
    assert one.role is QuorumRole.LEADER


def test_candidate_that_lost_retries_after_election_timeout() -> None:
    one, asked = candidate(2, 3)
    for each in asked:
        assert list(one.handle_response(each.number, VoteResponse(epoch=1), 1020)) == []
    assert (one.role, one.deadline_ms) == (QuorumRole.CANDIDATE, 2010)
    assert [each.request.pre_vote for each in sent(one.tick(2010))] == [True, True]  # type: ignore[attr-defined]
    assert (one.role, one.epoch) == (QuorumRole.PROSPECTIVE, 1)


def test_prospective_voter_that_lost_follows_previous_leader() -> None:
    one = machine(1, 2, 3, election=ElectionState(3, leader_id=2))
    one.start(0)
    asked = sent(one.tick(2000))
    assert one.role is QuorumRole.PROSPECTIVE
    for each in asked:
        one.handle_response(each.number, VoteResponse(epoch=3, leader_id=2), 2010)
    assert (one.role, one.leader_id) == (QuorumRole.FOLLOWER, 2)

    other, asked = prospective(2, 3)
    for each in asked:
        other.handle_response(each.number, VoteResponse(), 1010)
    assert other.role is QuorumRole.UNATTACHED
    due = other.deadline_ms
    assert due is not None
    assert due > 1010


def test_voter_without_pre_vote_support_makes_it_candidate() -> None:
    one, asked = prospective(2, 3)
    one.handle_response(asked[0].number, VoteResponse(error=ErrorCode.unsupported_version), 1010)
    assert (one.role, one.epoch) == (QuorumRole.CANDIDATE, 1)


def test_failed_vote_request_is_retried_after_backoff() -> None:
    one, asked = prospective(2, 3)
    assert list(one.handle_request_failure(asked[0].number, 1010)) == []
    assert one.deadline_ms == 1030
    assert [each.to for each in sent(one.tick(1030))] == [2]
    assert list(one.handle_request_failure(asked[0].number, 1031)) == [], "an old number"


def test_vote_for_log_shortened_by_power_loss_does_not_elect() -> None:
    """Other voters may have committed records that the candidate had not flushed."""
    one, asked = prospective(2, 3, log=[1] * 5, epoch=1)
    (vote, _) = sent(
        one.handle_response(asked[0].number, VoteResponse(epoch=1, granted=True), 1010)
    )
    other = machine(2, 1, 3, log=[1] * 4, election=ElectionState(1))
    other.start(0)
    granted = reply(other.handle_request(vote.request, 1020))
    assert granted == VoteResponse(epoch=2, granted=True)

    again = machine(1, 2, 3, log=[1] * 3, election=one.election)
    assert {type(each.request) for each in sent(again.start(2000))} == {FetchRequest}
    asked = sent(again.tick(3000))
    assert (again.role, again.epoch) == (QuorumRole.PROSPECTIVE, 2)
    assert reply(other.handle_request(asked[0].request, 3010)) == VoteResponse(
        epoch=2, granted=False
    )


# Votes

UP, BEHIND = (2, 3), (1, 9)  # last epoch and end offset of the candidate; the voter has (2, 3)


def in_role(role: QuorumRole) -> RaftClient:
    """Return node 1 of three in epoch 4, whose log has three records of epochs up to 2."""
    leads = 2 if role is QuorumRole.FOLLOWER else 1 if role is QuorumRole.RESIGNED else NO_LEADER
    one = machine(1, 2, 3, log=[1, 2, 2], election=ElectionState(4, leader_id=leads))
    one.start(0)
    if role in (QuorumRole.PROSPECTIVE, QuorumRole.CANDIDATE, QuorumRole.LEADER):
        one = machine(
            1,
            2,
            3,
            log=[1, 2, 2],
            election=ElectionState(3 if role is not QuorumRole.PROSPECTIVE else 4),
        )
        one.start(0)
        asked = sent(one.tick(1000))
        if role is not QuorumRole.PROSPECTIVE:
            asked = sent(
                one.handle_response(asked[0].number, VoteResponse(epoch=3, granted=True), 1000)
            )
        if role is QuorumRole.LEADER:
            one.handle_response(asked[0].number, VoteResponse(epoch=4, granted=True), 1000)
    assert (one.role, one.epoch) == (role, 4)
    return one


def vote(
    end: tuple[int, int], *, epoch: int = 4, pre: bool = False, voter: ReplicaKey | None = None
) -> VoteRequest:
    return VoteRequest(
        voter=voter or key(1),
        epoch=epoch,
        candidate=key(3),
        last_epoch=end[0],
        end_offset=end[1],
        pre_vote=pre,
    )


GRANTED = [
    # role; results of a pre-vote and a vote in its epoch, and of a vote in the next one
    (QuorumRole.UNATTACHED, True, True, True),
    (QuorumRole.PROSPECTIVE, True, True, True),
    (QuorumRole.CANDIDATE, True, False, True),
    (QuorumRole.FOLLOWER, True, False, True),  # a follower that has not fetched in this epoch
    (QuorumRole.LEADER, False, False, True),
    (QuorumRole.RESIGNED, True, False, True),
]


@pytest.mark.parametrize(("role", "pre", "same", "later"), GRANTED)
def test_vote_is_granted_by_role_epoch_and_log(
    role: QuorumRole, pre: bool, same: bool, later: bool
) -> None:
    for request, granted in (
        (vote(UP, pre=True), pre),
        (vote(UP), same),
        (vote(UP, epoch=5), later),
    ):
        one = in_role(role)
        actions = one.handle_request(request, 1001)
        response = reply(actions)
        assert isinstance(response, VoteResponse)
        assert (response.error, response.granted) == (ErrorCode.none, granted), request
        voted = one.election.voted == key(3)
        assert voted == (granted and not request.pre_vote)
        if voted:
            assert actions[0] == PersistElectionState(one.election), "persisted before the response"
            assert reply(one.handle_request(request, 1002)) == response, "to the same one again"
    for request in (vote(BEHIND, pre=True), vote(BEHIND), vote(BEHIND, epoch=5)):
        response = reply(in_role(role).handle_request(request, 1001))
        assert isinstance(response, VoteResponse)
        assert not response.granted


def test_voter_grants_one_vote_per_epoch() -> None:
    one = in_role(QuorumRole.UNATTACHED)
    one.handle_request(vote(UP, epoch=5), 1)
    other = VoteRequest(voter=key(1), epoch=5, candidate=key(2), last_epoch=4, end_offset=99)
    response = reply(one.handle_request(other, 2))
    assert response == VoteResponse(epoch=5, granted=False)


def test_follower_of_live_leader_rejects_pre_votes() -> None:
    one = in_role(QuorumRole.FOLLOWER)
    fetch = next(each for each in sent(one.start(0)) if each.to == 2)
    one.handle_response(fetch.number, FetchResponse(epoch=4, leader_id=2), 5)
    assert reply(one.handle_request(vote((4, 99), pre=True), 6)) == VoteResponse(
        epoch=4, leader_id=2, leader_endpoints=voter(2).endpoints, granted=False
    )


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (vote(UP, epoch=3), ErrorCode.fenced_leader_epoch),
        (vote(UP, voter=key(2)), ErrorCode.invalid_voter_key),
        (vote(UP, voter=ReplicaKey(1, UUID(int=7))), ErrorCode.invalid_voter_key),
        (vote((4, 3)), ErrorCode.invalid_request),
        (vote((5, 3), pre=True), ErrorCode.invalid_request),
        (vote((2, -1)), ErrorCode.invalid_request),
        (
            VoteRequest(epoch=4, candidate=ReplicaKey(-1), last_epoch=2, end_offset=3),
            ErrorCode.invalid_request,
        ),
        (BeginEpochRequest(leader_id=2, epoch=3), ErrorCode.fenced_leader_epoch),
        (BeginEpochRequest(leader_id=-1, epoch=4), ErrorCode.invalid_request),
        (
            BeginEpochRequest(voter=key(3), leader_id=2, epoch=4),
            ErrorCode.invalid_voter_key,
        ),
        (EndEpochRequest(leader_id=2, epoch=3), ErrorCode.fenced_leader_epoch),
        (
            FetchRequest(replica=key(2), epoch=3, fetch_offset=0, last_fetched_epoch=0),
            ErrorCode.fenced_leader_epoch,
        ),
        (
            FetchRequest(replica=key(2), epoch=5, fetch_offset=0, last_fetched_epoch=0),
            ErrorCode.unknown_leader_epoch,
        ),
        (
            FetchRequest(replica=key(2), epoch=4, fetch_offset=0, last_fetched_epoch=0),
            ErrorCode.not_leader_or_follower,
        ),
        (
            FetchRequest(replica=key(2), epoch=4, fetch_offset=-1, last_fetched_epoch=0),
            ErrorCode.invalid_request,
        ),
        (
            FetchRequest(replica=key(2), epoch=4, fetch_offset=0, last_fetched_epoch=5),
            ErrorCode.invalid_request,
        ),
    ],
)
def test_invalid_requests_are_rejected(request_: RaftRequest, error: ErrorCode) -> None:
    one = in_role(QuorumRole.UNATTACHED)
    response = reply(one.handle_request(request_, 1))
    assert response.error is error


@pytest.mark.parametrize("epoch", [2**30 + 1, EPOCH_MAX])
def test_implausible_epoch_is_refused_and_elections_continue(
    epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One request would otherwise leave no epochs for further elections. Large epochs grow in small steps."""
    one = machine(1, 2, 3)
    one.start(0)
    refused = BeginEpochRequest(cluster_id=None, leader_id=2, epoch=epoch)
    assert reply(one.handle_request(refused, 1)).error is ErrorCode.invalid_request
    assert one.epoch == 0
    assert "implausible" in caplog.text
    adopted = BeginEpochRequest(cluster_id=None, leader_id=2, epoch=2**30)
    assert reply(one.handle_request(adopted, 1)).error is ErrorCode.none
    following = BeginEpochRequest(cluster_id=None, leader_id=3, epoch=2**30 + 2**16)
    assert reply(one.handle_request(following, 1)).error is ErrorCode.none
    assert one.epoch == 2**30 + 2**16


def test_request_of_another_cluster_is_rejected() -> None:
    one = machine(1, 2, 3, settings=QuorumSettings(cluster_id="here"))
    one.start(0)
    stranger = BeginEpochRequest(cluster_id="there", leader_id=2, epoch=9)
    assert reply(one.handle_request(stranger, 1)).error is ErrorCode.inconsistent_cluster_id
    assert one.epoch == 0
    change = reply(one.handle_request(RemoveVoterRequest(cluster_id="there", voter=key(2)), 1))
    assert change == RemoveVoterResponse(
        error=ErrorCode.inconsistent_cluster_id,
        message='The given id "there" doesn\'t match the cluster id "here"',
    )
    one.handle_request(BeginEpochRequest(leader_id=2, epoch=9), 1)
    assert one.epoch == 9, "a request without cluster id is accepted"


# Begin and end of leadership


def test_begin_quorum_epoch_makes_it_follower_and_it_fetches() -> None:
    one = in_role(QuorumRole.CANDIDATE)
    actions = one.handle_request(BeginEpochRequest(voter=key(1), leader_id=2, epoch=6), 1001)
    assert actions[0] == PersistElectionState(ElectionState(6, leader_id=2))
    assert reply(actions) == BeginEpochResponse(
        epoch=6, leader_id=2, leader_endpoints=voter(2).endpoints
    )
    (fetch,) = sent(actions)
    assert fetch.request == FetchRequest(
        replica=key(1),
        epoch=6,
        fetch_offset=3,
        last_fetched_epoch=2,
        max_wait_ms=500,
        max_bytes=1 << 20,
    )


def test_two_leaders_of_an_epoch_raise_inconsistent_quorum() -> None:
    one = in_role(QuorumRole.FOLLOWER)
    with pytest.raises(InconsistentQuorum):
        one.handle_request(BeginEpochRequest(leader_id=3, epoch=4), 1)


def test_leader_without_known_endpoints_is_discovered() -> None:
    one = in_role(QuorumRole.UNATTACHED)
    one.handle_request(BeginEpochRequest(leader_id=9, epoch=6), 1)
    assert (one.role, one.leader_id) == (QuorumRole.UNATTACHED, 9)
    one.handle_request(
        BeginEpochRequest(leader_id=9, epoch=6, leader_endpoints=voter(9).endpoints), 2
    )
    assert (one.role, one.leader_id) == (QuorumRole.FOLLOWER, 9)


def test_endpoints_of_the_leader_override_those_of_other_nodes() -> None:
    one = machine(2, 1, 3, election=ElectionState(4, leader_id=1))
    (fetch,) = sent(one.start(0))
    assert fetch.endpoints == voter(1).endpoints
    moved = voter(1, port=9999).endpoints
    elsewhere = FetchResponse(
        epoch=4, leader_id=1, leader_endpoints=moved, error=ErrorCode.not_leader_or_follower
    )
    (anyone,) = sent(one.handle_request_failure(fetch.number, 1))
    one.handle_response(anyone.number, elsewhere, 2)
    (fetch,) = [each for each in sent(one.tick(22)) if each.to == 1]
    assert fetch.endpoints == voter(1).endpoints
    begin = BeginEpochRequest(voter=key(2), leader_id=1, epoch=4, leader_endpoints=moved)
    (fetch,) = sent(one.handle_request(begin, 23))
    assert (fetch.to, fetch.endpoints) == (1, moved)
    assert not sent(one.handle_request(begin, 24)), "nothing new"
    old = BeginEpochRequest(leader_id=1, epoch=4)
    assert not sent(one.handle_request(old, 25)), "an old version has no endpoints"


@pytest.mark.parametrize(
    ("successors", "due_ms"),
    [((1, 3), 0), ((3, 1), 500), ((4, 3, 1), 500), ((3, 4, 5, 1), 500), ((3,), 1000), ((), 0)],
)
def test_resigning_leader_sends_preferred_successors(
    successors: tuple[int, ...], due_ms: int
) -> None:
    one = in_role(QuorumRole.FOLLOWER)
    request = EndEpochRequest(
        leader_id=2, epoch=4, successors=tuple(key(each) for each in successors)
    )
    one.handle_request(request, 100)
    assert one.deadline_ms == 100 + due_ms
    one.tick(100 + due_ms)
    assert one.role is QuorumRole.PROSPECTIVE


def test_end_quorum_epoch_is_retried_until_acknowledged() -> None:
    one = leader(2, 3)
    fetch = FetchRequest(replica=key(3), epoch=1, fetch_offset=0, last_fetched_epoch=0)
    one.handle_request(fetch, 1030)
    actions = one.shut_down(1040)
    assert one.role is QuorumRole.RESIGNED
    assert [each.to for each in sent(actions)] == [2, 3]
    assert sent(actions)[0].request == EndEpochRequest(
        leader_id=1,
        epoch=1,
        successors=(key(3), key(2)),
        leader_endpoints=voter(1).endpoints,
    )
    assert not one.may_stop
    one.handle_request(BeginEpochRequest(leader_id=3, epoch=2), 1100)
    assert one.may_stop
    assert reply(one.handle_request(fetch, 1101)).error is ErrorCode.fenced_leader_epoch


@pytest.mark.parametrize("role", [QuorumRole.PROSPECTIVE, QuorumRole.CANDIDATE])
def test_node_shutting_down_during_election_is_not_elected(role: QuorumRole) -> None:
    one, asked = (prospective if role is QuorumRole.PROSPECTIVE else candidate)(2, 3)
    epoch = one.epoch
    assert sent(one.shut_down(1015)) == []
    for each in asked:
        assert (
            sent(one.handle_response(each.number, VoteResponse(epoch=epoch, granted=True), 1020))
            == []
        )
    assert (one.role, one.epoch) == (QuorumRole.UNATTACHED, epoch)
    assert reply(one.handle_request(vote(UP, epoch=epoch + 9), 1030)) == VoteResponse(
        epoch=epoch + 9, granted=True
    ), "it still grants votes"


def test_leader_without_fetching_majority_resigns() -> None:
    one = leader(2, 3)
    fetch = FetchRequest(replica=key(3), epoch=1, fetch_offset=0, last_fetched_epoch=0)
    one.handle_request(fetch, 3000)
    assert one.leadership is not None
    assert one.leadership.check_quorum_at_ms == 6000
    one.tick(5999)
    assert one.role is QuorumRole.LEADER
    actions = one.tick(6000)
    assert one.role is QuorumRole.RESIGNED
    assert {type(each.request) for each in sent(actions)} == {EndEpochRequest}


def test_begin_quorum_epoch_is_repeated_to_voters_that_do_not_fetch() -> None:
    one = leader(2, 3)
    one.handle_request(
        FetchRequest(replica=key(3), epoch=1, fetch_offset=0, last_fetched_epoch=0), 1500
    )
    assert sent(one.tick(2020)) == [], "2 has not responded yet, and 3 fetches"
    assert sent(one.tick(3020)) == [], "a request that timed out starts a backoff"
    assert [each.to for each in sent(one.tick(4020))] == [2, 3]


# Commits


def test_records_on_a_majority_are_committed() -> None:
    one = leader(2, 3, log=[0] * 4)
    fetched = FetchRequest(replica=key(2), epoch=1, fetch_offset=4, last_fetched_epoch=0)
    assert [
        each for each in one.handle_request(fetched, 1030) if isinstance(each, AdvanceHighWatermark)
    ] == []
    assert list(one.flushed(8, 1, 1040)) == []
    one.leadership.fetched(key(2), 5, 1050, 8)  # type: ignore[union-attr]
    assert list(one.flushed(8, 1, 1050)) == []
    assert one.leadership is not None
    assert one.leadership.high_watermark == 5
    assert one.leadership.fetched(key(3), 7, 1060, 8)
    assert not one.leadership.fetched(key(3), 6, 1060, 8), "the high watermark does not decrease"
    assert not one.leadership.fetched(key(9), 99, 1060, 8), "an unknown replica is an observer"
    assert one.leadership.high_watermark == 7


@given(
    voters=st.integers(1, 5),
    events=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 50)), max_size=30),
)
def test_high_watermark_is_the_offset_of_a_majority(
    voters: int, events: list[tuple[int, int]]
) -> None:
    one = leader(*range(2, voters + 1), log=[0] * 3) if voters > 1 else machine(1, log=[1] * 3)
    if voters == 1:
        one.start(0)
    leadership = one.leadership
    assert leadership is not None
    ends = dict.fromkeys(range(1, voters + 1), -1)
    last = -1
    for node, end in events:
        if node == 1:
            moved = leadership.flushed(end)
            ends[1] = max(ends[1], end)
        else:
            moved = leadership.fetched(key(node), end, 0, 50)
            if node in ends:
                ends[node] = end
        agreed = max(
            (end for end in range(51) if sum(each >= end for each in ends.values()) > voters // 2),
            default=-1,
        )
        assert moved == (agreed > max(last, 3))
        last = agreed if moved else last
        assert leadership.high_watermark == last


# Discovery of the leader


def test_unattached_node_fetches_from_bootstrap_servers_with_backoff() -> None:
    one = machine(4, 1, 2, 3, observes=True)
    (asked,) = sent(one.start(0))
    assert asked.to == BOOTSTRAP_SERVER
    no_voters = RaftResponse(epoch=0, error=ErrorCode.not_leader_or_follower)
    found = FetchResponse(epoch=no_voters.epoch, error=no_voters.error)
    assert list(one.handle_response(asked.number, found, 5)) == []
    assert one.deadline_ms == 25
    (asked,) = sent(one.tick(25))
    led = FetchResponse(epoch=2, leader_id=3, error=ErrorCode.not_leader_or_follower)
    actions = one.handle_response(asked.number, led, 30)
    assert actions[0] == PersistElectionState(ElectionState(2, leader_id=3))
    assert [each.to for each in sent(actions)] == [3]
    assert one.role is QuorumRole.FOLLOWER
    one.tick(2031)
    assert one.role is QuorumRole.FOLLOWER, "an observer starts no election"


def test_follower_without_reachable_leader_fetches_from_bootstrap_servers() -> None:
    one = in_role(QuorumRole.FOLLOWER)
    (asked,) = sent(one.start(0))
    actions = one.handle_request_failure(asked.number, 10)
    assert [each.to for each in sent(actions)] == [BOOTSTRAP_SERVER]


# Order of actions


def test_responses_follow_the_persisted_election_state() -> None:
    actions = in_role(QuorumRole.UNATTACHED).handle_request(vote(UP, epoch=7), 1)
    assert [type(each) for each in actions][:2] == [PersistElectionState, SendResponse]
