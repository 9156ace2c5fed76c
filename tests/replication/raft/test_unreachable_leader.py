"""Voters start an election without waiting for the fetch timeout if the leader's host refuses connections.

See docs/metadata.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.actions import RaftAction
from odradek.replication.raft.election_state import ElectionState
from odradek.replication.raft.messages import FetchResponse, VoteRequest, VoteResponse
from odradek.replication.raft.quorum_state import QuorumRole
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER
from tests.replication.raft.raft_clients import key, machine, reply, sent


class Follower:
    """Follower of node 1 in epoch 4, which has responded to a fetch at time 0."""

    def __init__(
        self, me: int, *others: int, received: bool = True, observes: bool = False
    ) -> None:
        election = ElectionState(4, leader_id=1)
        self.machine = machine(me, 1, *others, observes=observes, election=election)
        self._see(self.machine.start(0), 0)
        if received:
            self.receive(0)

    def _see(self, actions: Sequence[RaftAction], now_ms: int) -> None:
        for each in sent(actions):
            if each.to == 1:
                self._fetch = each.number
            elif each.to == BOOTSTRAP_SERVER:
                reported = FetchResponse(
                    epoch=4, leader_id=1, error=ErrorCode.not_leader_or_follower
                )
                self._see(self.machine.handle_response(each.number, reported, now_ms), now_ms)

    def pass_time(self, until_ms: int) -> None:
        while (due := self.machine.deadline_ms) is not None and due <= until_ms:
            self._see(self.machine.tick(due), due)

    def receive(self, now_ms: int) -> None:
        """Deliver a response of the leader."""
        self.pass_time(now_ms)
        response = FetchResponse(epoch=4, leader_id=1)
        self._see(self.machine.handle_response(self._fetch, response, now_ms), now_ms)

    def miss(self, now_ms: int, *, refused: bool = True) -> None:
        """Fail the requests to the leader: its host refuses the connection, or there is no response."""
        self.pass_time(now_ms)
        self._see(self.machine.handle_request_failure(self._fetch, now_ms, refused=refused), now_ms)

    def helps_another(self, now_ms: int) -> bool:
        self.pass_time(now_ms)
        me, other = self.machine.voters.get(2), key(3)
        assert me is not None
        asking = VoteRequest(
            voter=me.key, epoch=4, candidate=other, last_epoch=0, end_offset=0, pre_vote=True
        )
        response = reply(self.machine.handle_request(asking, now_ms))
        assert isinstance(response, VoteResponse)
        return response.granted

    def campaigns_at(self) -> int:
        """Return the time of the next election if no message arrives."""
        while self.machine.role is QuorumRole.FOLLOWER:
            due = self.machine.deadline_ms
            assert due is not None
            self._see(self.machine.tick(due), due)
        return due


@pytest.mark.parametrize(
    ("me", "others", "turn_ms"), [(2, (3,), 50), (3, (2,), 100), (5, (2, 3, 4), 200)]
)
def test_voters_start_elections_in_turn_after_leader_stopped(
    me: int, others: tuple[int, ...], turn_ms: int
) -> None:
    one = Follower(me, *others)
    one.miss(400)
    one.miss(420)
    assert one.campaigns_at() == 400 + turn_ms, "the first refusal counts"


def test_staggered_election_starts_no_later_than_fetch_timeout() -> None:
    one = Follower(3, 2)
    one.miss(1980)
    assert one.campaigns_at() == 2000


def test_unreachable_leader_is_followed_until_fetch_timeout() -> None:
    one = Follower(2, 3)
    one.miss(400, refused=False)
    assert one.campaigns_at() == 2000


def test_follower_waits_for_leader_that_has_not_responded_yet() -> None:
    """All nodes may have started together, and know the last leader."""
    one = Follower(2, 3, received=False)
    one.miss(400)
    assert one.campaigns_at() == 2000


def test_refused_connection_to_other_node_is_ignored() -> None:
    one = machine(2, 1, 3, election=ElectionState(4, leader_id=1))
    (fetch,) = sent(one.start(0))
    (fetch,) = sent(one.handle_response(fetch.number, FetchResponse(epoch=4, leader_id=1), 0))
    (anyone,) = sent(one.handle_request_failure(fetch.number, 400))
    assert anyone.to == BOOTSTRAP_SERVER
    one.handle_request_failure(anyone.number, 400, refused=True)
    one.tick(1999)
    assert one.role is QuorumRole.FOLLOWER


def test_refused_endpoint_is_ignored_if_leader_only_responded_as_bootstrap_server() -> None:
    """Its advertised endpoint may be wrong for this host; it still responds as a bootstrap server."""
    one = machine(2, 1, 3, election=ElectionState(4, leader_id=1))
    under_way = {each.number: (each.to, 0) for each in sent(one.start(0))}
    refusals = 0
    for now in range(0, 6000, 10):
        actions = list(one.tick(now))
        for number, (to, since) in list(under_way.items()):
            if to == 1:
                refusals += 1
                actions += one.handle_request_failure(number, now, refused=True)
            elif now >= since + 100:
                actions += one.handle_response(number, FetchResponse(epoch=4, leader_id=1), now)
            else:
                continue
            del under_way[number]
        under_way |= {each.number: (each.to, now) for each in sent(actions)}
        assert one.role is QuorumRole.FOLLOWER
    assert refusals > 10


def test_leader_that_responds_before_the_election_is_followed() -> None:
    one = Follower(2, 3)
    one.miss(400)
    one.receive(430)
    assert one.campaigns_at() == 2430


def test_follower_grants_pre_vote_after_leader_stopped() -> None:
    one = Follower(2, 3)
    assert not one.helps_another(399)
    one.miss(400)
    assert one.helps_another(401)
    one.receive(430)
    assert not one.helps_another(431)


def test_rejected_prospective_voter_follows_live_leader_with_full_timeout() -> None:
    one = Follower(2, 3)
    one.miss(400)
    for asked in sent(one.machine.tick(450)):
        one._see(
            one.machine.handle_response(asked.number, VoteResponse(epoch=4, leader_id=1), 460), 460
        )
    assert (one.machine.role, one.machine.epoch) == (QuorumRole.FOLLOWER, 4)
    one.miss(480)
    assert one.campaigns_at() == 2460


def losing(*others: int, received: bool = True) -> tuple[Follower, dict[int, int]]:
    """Return node 2 as a prospective voter at time 2000, and the number of the pre-vote request to each node."""
    one = Follower(2, *others, received=received)
    one.miss(1960, refused=received)
    asked = {each.to: each.number for each in sent(one.machine.tick(2000))}
    assert one.machine.role is QuorumRole.PROSPECTIVE
    return one, asked


NO, YES = VoteResponse(epoch=4, leader_id=1), VoteResponse(epoch=4, leader_id=1, granted=True)


@pytest.mark.parametrize("refused_first", [False, True])
def test_prospective_voter_without_majority_retries_after_election_backoff(
    refused_first: bool,
) -> None:
    one, asked = losing(3)
    if refused_first:
        one.machine.handle_request_failure(asked[1], 2001, refused=True)
        one.machine.handle_response(asked[3], NO, 2002)
        assert one.machine.role is QuorumRole.PROSPECTIVE
        (again,) = sent(one.machine.tick(2021))
        asked[1] = again.number
    else:
        one.machine.handle_response(asked[3], NO, 2002)
    one._see(one.machine.handle_request_failure(asked[1], 2030, refused=True), 2030)
    assert one.machine.role is QuorumRole.FOLLOWER
    assert one.campaigns_at() == 2031


def test_lost_election_before_refused_connection_is_retried_after_backoff() -> None:
    one, asked = losing(3, 4, 5)
    for voter_id in (3, 4, 5):
        assert one.machine.role is QuorumRole.PROSPECTIVE
        one._see(one.machine.handle_response(asked[voter_id], NO, 2002), 2002)
    assert one.machine.role is QuorumRole.FOLLOWER
    assert one.campaigns_at() == 2003


def test_restarted_leader_may_grant_pre_vote() -> None:
    """The third voter has not responded, so the election is not lost yet."""
    one, asked = losing(3)
    one.machine.handle_request_failure(asked[1], 2001, refused=True)
    (again,) = sent(one.machine.tick(2021))
    one.machine.handle_response(again.number, YES, 2022)
    assert (one.machine.role, one.machine.epoch) == (QuorumRole.CANDIDATE, 5)


def test_prospective_voter_waits_for_leader_that_has_not_responded_yet() -> None:
    """All nodes may have started together, so the leader may be the next to grant a pre-vote."""
    one, asked = losing(3, received=False)
    one.machine.handle_response(asked[3], NO, 2002)
    one.machine.handle_request_failure(asked[1], 2003, refused=True)
    assert one.machine.role is QuorumRole.PROSPECTIVE


def test_observer_starts_no_election_after_leader_stopped() -> None:
    one = Follower(7, 2, 3, observes=True)
    one.miss(400)
    one.pass_time(5000)
    assert one.machine.role is QuorumRole.FOLLOWER
