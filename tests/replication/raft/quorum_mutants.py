"""Mutants that the simulation must find."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from odradek.replication.raft import inbound_requests, quorum_state, voter_changes
from odradek.replication.raft.actions import PersistElectionState, RaftAction
from odradek.replication.raft.leader_state import LeaderState
from odradek.replication.raft.raft_client import RaftClient
from odradek.replication.raft.raft_log import log_end
from odradek.replication.raft.voters import VoterSet


def vote_twice(patch: pytest.MonkeyPatch) -> None:
    """A voter grants a second vote in an epoch to any up-to-date candidate."""
    patch.setattr(inbound_requests, "grants_vote", lambda *_, up_to_date, **__: up_to_date)


def commit_before_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """Records of earlier epochs are committed by a majority alone (figure 8 of the Raft paper)."""
    honest = LeaderState.recount

    def recount(self: LeaderState) -> bool:
        start, self.start_offset = self.start_offset, -1
        try:
            return honest(self)
        finally:
            self.start_offset = start

    patch.setattr(LeaderState, "recount", recount)


def respond_before_persisting(patch: pytest.MonkeyPatch) -> None:
    """The election state is persisted after the messages are sent."""
    honest = RaftClient._actions

    def actions(self: RaftClient, now_ms: int) -> Sequence[RaftAction]:
        found = honest(self, now_ms)
        return sorted(found, key=lambda each: isinstance(each, PersistElectionState))

    patch.setattr(RaftClient, "_actions", actions)


def half_is_a_majority(patch: pytest.MonkeyPatch) -> None:
    """Half of an even number of voters is a majority; only a voter change yields an even number."""
    patch.setattr(VoterSet, "majority", property(lambda self: max((len(self) + 1) // 2, 1)))


def concurrent_voter_changes(patch: pytest.MonkeyPatch) -> None:
    """A voter change is accepted before the previous one is committed."""
    patch.setattr(voter_changes, "_check_dynamic", lambda leader, history, change="": None)


def forget_lost_records(patch: pytest.MonkeyPatch) -> None:
    """A voter that has lost flushed records votes and starts elections with its shorter log."""
    for module in (inbound_requests, quorum_state):
        patch.setattr(module, "election_end", log_end)


def start_elections_without_lost_records(patch: pytest.MonkeyPatch) -> None:
    """A voter that has lost flushed records does not vote for shorter logs, but starts elections."""
    patch.setattr(quorum_state, "election_end", log_end)


FOUND_WITH_LOSSES = [forget_lost_records, start_elections_without_lost_records]
FOUND_OFTEN = [
    vote_twice,
    respond_before_persisting,
    half_is_a_majority,
    concurrent_voter_changes,
]
FOUND_SELDOM = [commit_before_the_epoch]
