"""Role and epoch of a node in the quorum, and the transitions between roles (Kafka's
`QuorumState`).

    UNATTACHED --election timeout--> PROSPECTIVE --majority of pre-votes--> CANDIDATE --majority--> LEADER
    PROSPECTIVE --lost or timeout--> FOLLOWER of its last leader, else UNATTACHED
    CANDIDATE --timeout--> PROSPECTIVE
    FOLLOWER --fetch timeout, or the leader has stopped--> PROSPECTIVE
    LEADER --resigns, or no majority fetches--> RESIGNED --timeout--> UNATTACHED, next epoch
    any --learns of a later epoch--> UNATTACHED, or FOLLOWER if its leader is known
    any but LEADER --learns of the leader of its epoch--> FOLLOWER

The epoch never decreases, and has at most one leader. An observer is UNATTACHED or FOLLOWER and
never starts an election.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import field, replace
from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.actions import (
    AdvanceHighWatermark,
    AppendLeaderChangeMessage,
    RaftAction,
    SendRequest,
    SendResponse,
)
from odradek.replication.raft.election_state import ElectionState, VoteTally
from odradek.replication.raft.errors import InconsistentQuorum
from odradek.replication.raft.follower_state import FollowerState
from odradek.replication.raft.leader_state import LeaderState
from odradek.replication.raft.messages import (
    AddVoterRequest,
    AddVoterResponse,
    Endpoints,
    RaftRequest,
    RemoveVoterResponse,
)
from odradek.replication.raft.raft_log import RaftLog, election_end, log_end
from odradek.replication.raft.request_manager import RequestManager
from odradek.replication.raft.voter_changes import PendingVoterChange
from odradek.replication.raft.voter_history import BEFORE_THE_LOG, VoterHistory
from odradek.replication.raft.voters import NO_LEADER, ReplicaKey, Voter, VoterSet
from odradek.seams.values import state_class, value_class

KIB: Final = 1024


class QuorumRole(enum.Enum):
    UNATTACHED = "unattached"  # no known leader of the epoch
    PROSPECTIVE = "prospective"  # sends pre-votes
    CANDIDATE = "candidate"
    FOLLOWER = "follower"
    LEADER = "leader"
    RESIGNED = "resigned"  # was the leader of this epoch


@value_class
class QuorumSettings:
    """Kafka's `controller.quorum.*` configs with its defaults; times in ms.

    `can_become_voter`: a controller, whose appends are always flushed; a broker only observes.
    """

    cluster_id: str | None = None
    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 1024 * KIB
    fetch_snapshot_max_bytes: int = 1024 * KIB
    auto_join: bool = False
    can_become_voter: bool = True


@state_class
class UnattachedState:
    until_ms: int


@state_class
class ElectionInProgressState:
    """Common part of ProspectiveState and CandidateState: the votes and the election timeout.

    `leader_stopped`: as far as this node knows, the leader of this epoch has stopped.
    """

    tally: VoteTally
    until_ms: int
    leader_stopped: bool = False


@state_class
class ProspectiveState(ElectionInProgressState):
    """The node requests pre-votes and has not increased its epoch (KIP-996)."""


@state_class
class CandidateState(ElectionInProgressState):
    """The node requests votes in an epoch of its own (KIP-595)."""


@state_class
class ResignedState:
    until_ms: int
    successors: tuple[ReplicaKey, ...]
    unacknowledged: set[int] = field(default_factory=set)


EpochState = (
    UnattachedState
    | ProspectiveState
    | CandidateState
    | FollowerState
    | LeaderState
    | ResignedState
)


class QuorumState:
    """Current role, epoch, and pending actions (`out`) of this node.

    `jitter(n)` returns a random integer in [0, n).
    """

    def __init__(
        self,
        me: Voter,
        log: RaftLog,
        history: VoterHistory,
        election: ElectionState,
        settings: QuorumSettings,
        jitter: Callable[[int], int],
    ) -> None:
        self.me = me
        self.log = log
        self.history = history
        self.settings = settings
        self._jitter = jitter
        self.persisted = election
        # A log may know of a later epoch than the file does, if the file was lost: never reuse one
        newer = log.last_epoch > election.epoch
        self.election = ElectionState(log.last_epoch) if newer else election
        self.high_watermark = -1
        self.max_reported_high_watermark = -1
        self.leader_endpoints: Endpoints = ()
        self.closing = False
        self.requests = RequestManager(
            timeout_ms=settings.request_timeout_ms, backoff_ms=settings.retry_backoff_ms
        )
        self.out: list[RaftAction] = []
        self.state: EpochState = UnattachedState(0)
        # Static voters, with the endpoints and versions that they reported
        self.in_memory_voters = VoterSet()

    # State

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def leader_id(self) -> int:
        return self.election.leader_id

    @property
    def role(self) -> QuorumRole:
        match self.state:
            case UnattachedState():
                return QuorumRole.UNATTACHED
            case ProspectiveState():
                return QuorumRole.PROSPECTIVE
            case CandidateState():
                return QuorumRole.CANDIDATE
            case FollowerState():
                return QuorumRole.FOLLOWER
            case LeaderState():
                return QuorumRole.LEADER
            case ResignedState():
                return QuorumRole.RESIGNED

    @property
    def voters(self) -> VoterSet:
        return self.history.voters

    @property
    def is_voter(self) -> bool:
        return self.voters.includes(self.me.key)

    @property
    def listener(self) -> str | None:
        """The listener on which voters connect to each other: the first endpoint of this node."""
        return self.me.endpoints[0].listener if self.me.endpoints else None

    @property
    def is_only_voter(self) -> bool:
        return len(self.voters) == 1 and self.is_voter

    @property
    def can_start_election(self) -> bool:
        """Whether this node starts elections: it is a voter, or its removal may still be
        uncommitted.

        Of two voters, the remaining one may lack the record of the removal. It could then not be
        elected without the removed voter (Raft dissertation, 4.2.2). Kafka stalls in this case.

        A voter that has lost synced records starts no election: its log may lack committed records.
        """
        if election_end(self.log) > log_end(self.log):
            return False
        if self.is_voter:
            return True
        removed_at = self.history.voters_offset
        if removed_at is None or removed_at < self.high_watermark:
            return False
        return self.history.at(removed_at)[1].includes(self.me.key)

    def random_election_timeout_ms(self) -> int:
        base = self.settings.election_timeout_ms
        return base + (self._jitter(base) if base else 0)

    def random_election_backoff_ms(self) -> int:
        return 1 + self._jitter(max(self.settings.election_backoff_max_ms, 1))

    # Transitions

    def initialize(self, now_ms: int) -> None:
        """Enter the role that the persisted election state implies. A node never starts as
        leader or candidate: unflushed records of that epoch may be lost, so it needs votes in a
        new epoch."""
        until_ms = now_ms + self.random_election_timeout_ms()
        endpoints = self.voters.endpoints(self.leader_id)
        if self.leader_id == self.me.id:
            self.state = ResignedState(until_ms, (), set(self.voters.ids) - {self.me.id})
        elif self.leader_id != NO_LEADER and endpoints:
            self.transition_to_follower(self.epoch, self.leader_id, endpoints, now_ms)
        else:
            self.state = UnattachedState(until_ms)
        if self.is_only_voter:
            self.transition_to_prospective(now_ms)

    def _become(self, state: EpochState, election: ElectionState | None = None) -> None:
        if isinstance(self.state, LeaderState):
            self._abort_voter_change(self.state)
        self.state = state
        self.election = election or self.election
        self.requests.reset_all()

    def transition_to_unattached(
        self, epoch: int, now_ms: int, *, leader_id: int = NO_LEADER
    ) -> None:
        """Transition to UNATTACHED, keeping the rest of a running election timeout."""
        match self.state:
            case UnattachedState(until_ms) | ResignedState(until_ms):
                until = until_ms
            case ElectionInProgressState(tally=tally, until_ms=until_ms) if not tally.lost:
                until = until_ms
            case CandidateState(until_ms=until_ms):
                until = until_ms
            case _:
                until = now_ms + self.random_election_timeout_ms()
        same = epoch == self.epoch
        self.leader_endpoints = ()
        election = replace(self.election, leader_id=leader_id) if same else ElectionState(epoch)
        self._become(UnattachedState(until), election)

    def transition_to_prospective(self, now_ms: int) -> None:
        """Transition to PROSPECTIVE; a single voter becomes LEADER at once."""
        in_progress = ProspectiveState(self._own_vote(), now_ms + self.random_election_timeout_ms())
        in_progress.leader_stopped = (
            isinstance(self.state, FollowerState) and self.state.leader_stopped
        )
        self._become(in_progress)
        self.advance_election(now_ms)

    def _own_vote(self) -> VoteTally:
        """A new tally that holds this node's own vote."""
        tally = VoteTally(self.voters)
        tally.record(self.me.id, granted=True)
        return tally

    def advance_election(self, now_ms: int) -> None:
        """Transition from PROSPECTIVE to CANDIDATE, or from CANDIDATE to LEADER, after a
        majority of votes."""
        if isinstance(self.state, ProspectiveState) and self.state.tally.won:
            self.transition_to_candidate(now_ms)
        if isinstance(self.state, CandidateState) and self.state.tally.won:
            self._transition_to_leader(now_ms)

    def transition_to_candidate(self, now_ms: int) -> None:
        """Transition to CANDIDATE in the next epoch."""
        self.leader_endpoints = ()
        self._become(
            CandidateState(self._own_vote(), now_ms + self.random_election_timeout_ms()),
            ElectionState(
                self.epoch + 1, voted_id=self.me.id, voted_directory_id=self.me.directory_id
            ),
        )

    def _transition_to_leader(self, now_ms: int) -> None:
        assert isinstance(self.state, CandidateState)
        leadership = LeaderState(
            self.me.key,
            epoch=self.epoch,
            start_offset=self.log.end_offset,
            voters=self.voters,
            granted=self.state.tally.granted,
            fetch_timeout_ms=self.settings.fetch_timeout_ms,
            now_ms=now_ms,
        )
        self.leader_endpoints = self.me.endpoints
        self._become(leadership, ElectionState(self.epoch, leader_id=self.me.id))
        self.out.append(
            AppendLeaderChangeMessage(
                self.epoch, self.voters.ids, leadership.granted, self._quorum_records_of_epoch()
            )
        )
        leadership.appending_voters = True
        self.in_memory_voters = self.voters.updated(self.me, any_directory=True) or self.voters

    def _quorum_records_of_epoch(self) -> tuple[int, tuple[Voter, ...]] | None:
        """kraft.version and voters for the epoch's first batch, if it must contain them
        (KIP-853)."""
        if self.history.kraft_version < 1:
            return None
        updated = (self.voters.updated(self.me) if self.me.endpoints else None) or self.voters
        if self.history.voters_offset == BEFORE_THE_LOG or updated != self.voters:
            return self.history.kraft_version, tuple(updated)
        return None

    def transition_to_follower(
        self, epoch: int, leader_id: int, endpoints: Endpoints, now_ms: int
    ) -> None:
        """Transition to FOLLOWER; to UNATTACHED if the leader's endpoints are unknown."""
        if not endpoints:
            self.transition_to_unattached(epoch, now_ms)
            self.election = replace(self.election, leader_id=leader_id)
            return
        same = epoch == self.epoch
        election = self.election if same else ElectionState(epoch)
        timeout_ms = self.settings.fetch_timeout_ms
        self._become(
            FollowerState(leader_id, endpoints, now_ms + timeout_ms, now_ms + timeout_ms),
            replace(election, leader_id=leader_id),
        )
        self.leader_endpoints = endpoints

    def transition_to_resigned(self, now_ms: int) -> None:
        """Transition from LEADER to RESIGNED. EndQuorumEpoch lists the voters by log end offset,
        largest first."""
        assert isinstance(self.state, LeaderState)
        self._become(
            ResignedState(
                now_ms + self.random_election_timeout_ms(),
                self.state.successors(),
                set(self.voters.ids) - {self.me.id},
            )
        )

    def handle_lost_election(self, now_ms: int) -> None:
        """Leave PROSPECTIVE without an election: follow the previous leader, if any. If that
        leader has stopped, retry after the election backoff."""
        ended = isinstance(self.state, ElectionInProgressState) and self.state.leader_stopped
        if self.leader_id != NO_LEADER and self.leader_endpoints:
            self.transition_to_follower(self.epoch, self.leader_id, self.leader_endpoints, now_ms)
            if ended and isinstance(self.state, FollowerState):
                self.state.shorten_fetch_timeout(now_ms + self.random_election_backoff_ms())
        else:
            self.transition_to_unattached(self.epoch, now_ms, leader_id=self.leader_id)

    def grant_vote(self, candidate: ReplicaKey, now_ms: int) -> None:
        """Record a vote as UNATTACHED or PROSPECTIVE, and restart the election timeout."""
        until_ms = now_ms + self.random_election_timeout_ms()
        self._become(
            ProspectiveState(self._own_vote(), until_ms)
            if isinstance(self.state, ElectionInProgressState)
            else UnattachedState(until_ms),
            replace(
                self.election, voted_id=candidate.id, voted_directory_id=candidate.directory_id
            ),
        )

    def maybe_transition(
        self,
        epoch: int,
        leader_id: int,
        endpoints: Endpoints,
        now_ms: int,
        *,
        by_leader: bool = False,
    ) -> bool:
        """Apply a leader, epoch and endpoints from a message. Returns whether the state changed.

        Other nodes may know fewer or older endpoints of the leader. Theirs apply only if there are
        more of them; the leader's own always apply.

        Raises InconsistentQuorum if an epoch has two leaders.
        """
        if leader_id == self.me.id:  # a former leadership of this node
            leader_id, endpoints = (NO_LEADER if epoch > self.epoch else leader_id), ()
            if epoch <= self.epoch:
                return False
        known = self.leader_endpoints
        moved = by_leader and endpoints not in ((), known)
        endpoints = endpoints or self.voters.endpoints(leader_id)
        if epoch > self.epoch:
            if leader_id == NO_LEADER:
                self.transition_to_unattached(epoch, now_ms)
            else:
                self.transition_to_follower(epoch, leader_id, endpoints, now_ms)
            return True
        if epoch < self.epoch or leader_id == NO_LEADER:
            return False
        if self.leader_id not in (NO_LEADER, leader_id):
            raise InconsistentQuorum(
                f"epoch {epoch} has two leaders, {self.leader_id} and {leader_id}"
            )
        if self.leader_id == NO_LEADER or moved or len(endpoints) > len(known):
            self.transition_to_follower(epoch, leader_id, endpoints, now_ms)
            return True
        return False

    # High watermark and requests

    def update_high_watermark(self, high_watermark: int) -> None:
        """Advance the high watermark."""
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            self.out.append(AdvanceHighWatermark(high_watermark))

    def send_request(self, to: int, request: RaftRequest, endpoints: Endpoints, now_ms: int) -> int:
        """Send a request; returns its number."""
        number = self.requests.on_request_sent(to, request, now_ms)
        self.out.append(SendRequest(number, to, endpoints, request))
        return number

    # Pending voter changes

    def complete_voter_change(
        self,
        change: PendingVoterChange,
        error: ErrorCode = ErrorCode.none,
        message: str | None = None,
    ) -> None:
        """Send the response to a voter change, once."""
        if not change.responded:
            change.responded = True
            kind = (
                AddVoterResponse
                if isinstance(change.request, AddVoterRequest)
                else RemoveVoterResponse
            )
            self.out.append(SendResponse(change.request, kind(error=error, message=message)))

    def _abort_voter_change(self, leadership: LeaderState) -> None:
        if leadership.pending is not None:
            self.complete_voter_change(leadership.pending, ErrorCode.not_leader_or_follower)
