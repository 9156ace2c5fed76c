"""The quorum's state machine: elections, what must be durable, what is committed (KIP-595)."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.replication.raft.state import (
    Committed,
    Election,
    Persist,
    Quorum,
    Role,
    StartEpoch,
    WrongState,
)

HERE = UUID(int=1 << 64)


def quorum(*voters: int, election: Election | None = None, log_epoch: int = 0) -> Quorum:
    return Quorum(1, HERE, voters or [1], election or Election(), log_epoch=log_epoch)


def leader(*voters: int, start: int = 0) -> Quorum:
    found = quorum(*voters)
    found.campaign()
    for voter in voters:
        found.granted(voter, found.epoch)
    found.started(start)
    return found


def test_a_lone_voter_leads_the_next_epoch_at_once() -> None:
    lone = quorum(election=Election(epoch=4, leader_id=1))
    assert lone.role is Role.UNATTACHED
    assert list(lone.campaign()) == [
        Persist(Election(epoch=5, leader_id=1)),
        StartEpoch(5, voters=(1,), granted=(1,)),
    ]
    assert (lone.role, lone.epoch, lone.leader_id) == (Role.LEADER, 5, 1)


def test_no_epoch_is_used_twice_even_if_the_file_was_lost() -> None:
    assert quorum(election=Election(epoch=2), log_epoch=6).epoch == 6
    assert quorum(election=Election(epoch=9), log_epoch=6).epoch == 9


def test_one_of_three_persists_its_vote_and_waits() -> None:
    one = quorum(1, 2, 3)
    assert list(one.campaign()) == [
        Persist(Election(epoch=1, voted_id=1, voted_directory_id=HERE)),
    ]
    assert (one.role, one.leader_id) == (Role.CANDIDATE, -1)
    assert list(one.granted(2, 1)) == [
        Persist(Election(epoch=1, leader_id=1)),
        StartEpoch(1, voters=(1, 2, 3), granted=(1, 2)),
    ]
    assert list(one.granted(3, 1)) == [], "a late vote changes nothing"


def test_votes_of_other_epochs_and_strangers_do_not_count() -> None:
    one = quorum(1, 2, 3)
    one.campaign()
    assert list(one.granted(2, 0)) == []
    assert list(one.granted(9, 1)) == []
    assert one.role is Role.CANDIDATE


def test_who_is_no_voter_has_no_quorum() -> None:
    with pytest.raises(WrongState):
        quorum(2, 3)


def test_a_leader_does_not_campaign() -> None:
    lone = leader()
    with pytest.raises(WrongState):
        lone.campaign()
    with pytest.raises(WrongState):
        lone.started(1)


def test_nothing_is_committed_before_the_epoch_has_begun_on_disk() -> None:
    lone = leader(start=10)
    assert list(lone.durable(1, 10)) == []
    assert list(lone.durable(1, 11)) == [Committed(11)]
    assert list(lone.durable(1, 11)) == []


def test_a_majority_commits() -> None:
    one = leader(1, 2, 3, start=0)
    assert list(one.durable(1, 8)) == []
    assert list(one.durable(2, 5)) == [Committed(5)]
    assert list(one.durable(3, 7)) == [Committed(7)]
    assert list(one.durable(3, 6)) == [], "what is durable stays so"
    assert list(one.durable(9, 99)) == []


@given(
    voters=st.integers(1, 5),
    events=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 50)), max_size=30),
)
def test_the_high_watermark_is_what_a_majority_has(
    voters: int, events: list[tuple[int, int]]
) -> None:
    one = leader(*range(1, voters + 1), start=3)
    ends = dict.fromkeys(range(1, voters + 1), 0)
    last = -1
    for voter, end in events:
        actions = one.durable(voter, end)
        if voter in ends:
            ends[voter] = max(ends[voter], end)
        having = [sum(each >= offset for each in ends.values()) for offset in range(51)]
        agreed = max(offset for offset in range(51) if having[offset] > voters // 2)
        if agreed > max(last, 3):
            assert list(actions) == [Committed(agreed)]
            last = agreed
        else:
            assert list(actions) == []


def test_who_resigned_commits_no_more() -> None:
    lone = leader()
    lone.durable(1, 4)
    lone.resign()
    assert lone.role is Role.RESIGNED
    assert list(lone.durable(1, 9)) == []
    assert lone.epoch == 1
    assert lone.campaign()[0] == Persist(Election(epoch=2, leader_id=1))
