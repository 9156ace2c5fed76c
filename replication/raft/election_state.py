"""Elections: what a voter must not forget, who may have its vote, and how votes are counted.

No node votes for two in an epoch, and none for one whose log is behind its own: so an epoch has at
most one leader, and that leader has all that is committed (Raft, sections 5.2 and 5.4.1). A pre-vote
(KIP-996) asks how a vote would end: it binds nobody and changes no epoch.
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
    """What a voter must never forget; `quorum-state` holds it."""

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
    """How far a log reaches; the greater of two has more: by the last epoch first, then the end."""

    epoch: int
    end_offset: int


def grants_vote(
    election: ElectionState, candidate: ReplicaKey, *, up_to_date: bool, pre_vote: bool
) -> bool:
    """Whether a voter that neither leads, follows nor campaigns gives `candidate` its vote.

    `up_to_date`: the candidate's log reaches as far as its own. A vote given once is given again.
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
    """The votes of one election among the voters as they were when it began."""

    voters: VoterSet
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)

    def record(self, voter_id: int, *, granted: bool) -> None:
        """The last word of a voter counts; strangers have none."""
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
        """Not even all who have not answered yet would make a majority."""
        return self.lost_without()

    def lost_without(self, *voter_ids: int) -> bool:
        """Whether it is lost if these voters do not answer."""
        return len(self.voters) - len(self.rejected.union(voter_ids)) < self.voters.majority

    @property
    def unrecorded(self) -> Iterable[int]:
        return [id for id in self.voters.ids if id not in self.granted | self.rejected]
