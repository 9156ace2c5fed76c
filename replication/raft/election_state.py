"""Elections: the persistent election state, the vote rule, and the vote count.

A voter votes once per epoch and only for a candidate with a log at least as long as its own. So an
epoch has at most one leader, which has all committed records (Raft, sections 5.2 and 5.4.1). A
pre-vote (KIP-996) does not bind the voter and does not change its epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import NamedTuple
from uuid import UUID

from odradek.replication.raft.voters import NO_DIRECTORY, NO_LEADER, ReplicaKey, VoterSet
from odradek.seams.values import state_class, value_class


@value_class
class ElectionState:
    """Epoch, leader and vote, as persisted in `quorum-state`."""

    epoch: int = 0
    leader_id: int = NO_LEADER
    voted_id: int = NO_LEADER
    voted_directory_id: UUID = NO_DIRECTORY

    @property
    def voted(self) -> ReplicaKey | None:
        if self.voted_id == NO_LEADER:
            return None
        return ReplicaKey(self.voted_id, self.voted_directory_id)


class OffsetAndEpoch(NamedTuple):
    """End of a log. Ordered by last epoch, then by end offset."""

    epoch: int
    end_offset: int


def grants_vote(
    election: ElectionState, candidate: ReplicaKey, *, up_to_date: bool, pre_vote: bool
) -> bool:
    """Whether an unattached or prospective voter grants its vote to `candidate`.

    `up_to_date`: the candidate's log is at least as long as the voter's. A vote is repeated on
    retry.
    """
    if pre_vote:
        return up_to_date
    voted = election.voted
    if voted is not None:
        return voted.id == candidate.id and voted.directory_id in (
            NO_DIRECTORY,
            candidate.directory_id,
        )
    return election.leader_id == NO_LEADER and up_to_date


@state_class
class VoteTally:
    """Votes of one election, counted over the voter set at its start."""

    voters: VoterSet
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)

    def record(self, voter_id: int, *, granted: bool) -> None:
        """The last vote of a voter counts; other nodes are ignored."""
        if self.voters.get(voter_id) is None:
            return
        for votes, has_it in ((self.granted, granted), (self.rejected, not granted)):
            if has_it:
                votes.add(voter_id)
            else:
                votes.discard(voter_id)

    @property
    def won(self) -> bool:
        return len(self.granted) >= self.voters.majority

    @property
    def lost(self) -> bool:
        """Whether the outstanding votes cannot make a majority."""
        return self.lost_without()

    def lost_without(self, *voter_ids: int) -> bool:
        """Whether the election is lost if these voters do not respond."""
        return len(self.voters) - len(self.rejected.union(voter_ids)) < self.voters.majority

    @property
    def unrecorded(self) -> Iterable[int]:
        return [id for id in self.voters.ids if id not in self.granted | self.rejected]
