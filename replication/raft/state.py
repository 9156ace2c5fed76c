"""The quorum as one of its voters sees it: a state machine without I/O (KIP-595).

What happened goes in by a method's call, what is to be done comes out as actions, in the order in
which the driver does them; the next call may be made once they are done. Time comes as events, too.

    UNATTACHED --campaign--> CANDIDATE --votes of a majority--> LEADER --resign--> RESIGNED

- An epoch is durable (`Persist`) before anything is written or said in it, and no node votes twice in
  one: so an epoch has one leader.
- What is committed is what a majority has on its disk, and only once that reaches into the leader's
  own epoch (Raft, section 5.4.2): `StartEpoch` writes that epoch's first record at once.

A lone voter is its own majority: a campaign makes it leader in one step.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from odradek.seams.values import value_class

NOBODY = -1
NO_DIRECTORY = UUID(int=0)


class Role(enum.Enum):
    UNATTACHED = "unattached"  # knows an epoch, but no leader of it
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"  # led, and gave up until there is another epoch


@value_class
class Election:
    """What a voter must never forget; `quorum-state` holds it."""

    epoch: int = 0
    leader_id: int = NOBODY
    voted_id: int = NOBODY
    voted_directory_id: UUID = NO_DIRECTORY


@value_class
class Persist:
    """Make the election durable before anything else is done."""

    election: Election


@value_class
class StartEpoch:
    """Lead: append the epoch's LeaderChangeMessage."""

    epoch: int
    voters: tuple[int, ...]
    granted: tuple[int, ...]


@value_class
class Committed:
    """All below this offset is committed."""

    high_watermark: int


Action = Persist | StartEpoch | Committed


class WrongState(Exception):
    """An event that cannot happen in this role: a bug of the driver's."""


@dataclass(slots=True)
class _Leadership:
    """What a leader keeps of its epoch."""

    start_offset: int
    durable: dict[int, int] = field(default_factory=dict)  # voter to the end of what it has on disk


class Quorum:
    """See the module. `voters` are ids; `log_epoch` is that of the log's last record."""

    def __init__(
        self,
        node_id: int,
        directory_id: UUID,
        voters: Iterable[int],
        election: Election,
        *,
        log_epoch: int = 0,
    ) -> None:
        self.node_id = node_id
        self._directory_id = directory_id
        self.voters = tuple(sorted(set(voters)))
        if node_id not in self.voters:
            raise WrongState(f"{node_id} is no voter among {self.voters}")
        # A log may know of a later epoch than the file does, if the file was lost: never reuse one
        newer = log_epoch > election.epoch
        self.election = Election(log_epoch) if newer else election
        self.role = Role.UNATTACHED
        self.high_watermark = -1
        self._granted: set[int] = set()
        self._leadership: _Leadership | None = None

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def leader_id(self) -> int:
        return self.election.leader_id

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def campaign(self) -> Sequence[Action]:
        """Ask for votes in the next epoch, one's own first; with a lone voter that is all of them."""
        if self.role is Role.LEADER:
            raise WrongState("a leader has no reason to campaign")
        self.role = Role.CANDIDATE
        self.election = Election(
            self.epoch + 1, voted_id=self.node_id, voted_directory_id=self._directory_id
        )
        self._granted = {self.node_id}
        return self._lead_if_elected() or [Persist(self.election)]

    def granted(self, voter: int, epoch: int) -> Sequence[Action]:
        """A vote came in; those of another epoch, or that come too late, do not count."""
        if self.role is not Role.CANDIDATE or epoch != self.epoch or voter not in self.voters:
            return []
        self._granted.add(voter)
        return self._lead_if_elected()

    def _lead_if_elected(self) -> list[Action]:
        if len(self._granted) < self.majority:
            return []
        self.role = Role.LEADER
        self.election = replace(
            self.election,
            leader_id=self.node_id,
            voted_id=NOBODY,
            voted_directory_id=NO_DIRECTORY,
        )
        granted = tuple(sorted(self._granted))
        return [Persist(self.election), StartEpoch(self.epoch, self.voters, granted)]

    def started(self, start_offset: int) -> None:
        """The epoch's first record was appended at this offset."""
        if self.role is not Role.LEADER or self._leadership is not None:
            raise WrongState(f"no epoch to start as {self.role.value}")
        self._leadership = _Leadership(start_offset)

    def durable(self, voter: int, end_offset: int) -> Sequence[Action]:
        """A voter, this one too, has all below `end_offset` on its disk."""
        leadership = self._leadership
        if self.role is not Role.LEADER or leadership is None or voter not in self.voters:
            return []
        leadership.durable[voter] = max(end_offset, leadership.durable.get(voter, 0))
        ends = sorted((leadership.durable.get(each, 0) for each in self.voters), reverse=True)
        agreed = ends[self.majority - 1]
        if agreed <= max(self.high_watermark, leadership.start_offset):
            return []
        self.high_watermark = agreed
        return [Committed(agreed)]

    def resign(self) -> Sequence[Action]:
        """Lead no more in this epoch; the node is going to stop."""
        if self.role is Role.LEADER:
            self.role = Role.RESIGNED
            self._leadership = None
        return []
