"""State machine of one node of the metadata quorum, without I/O (KIP-595, 630, 853, 996).

Kafka's `KafkaRaftClient`. Requests, responses, timeouts and completed log changes come in as method
calls with the time in ms of a monotonic clock. Each call returns actions (`actions.py`), which
`raft_client_driver.py` executes in order before the next call. `tick` is due at `deadline_ms`.

- The election state is durable (`PersistElectionState`, always first) before any message of that epoch is sent. A
  voter votes at most once per epoch, so an epoch has one leader (`quorum_state.py`, `election_state.py`).
- A record is committed when a majority has it on disk and the high watermark has reached the leader's
  own epoch. `AppendLeaderChangeMessage` writes the first record of the epoch at once (`leader_state.py`).
- A voter that has lost records, which it had reported as durable, compares the end that it had reported with those of
  candidates, and starts no election (`raft_log.election_end`).
- A follower flushes before it fetches, so that a fetch offset is durable (`outbound_requests.py`).
- The voter set in the log applies as soon as it is appended, and changes one voter at a time
  (`voter_changes.py`).

A single voter is its own majority: `start` makes it the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.raft.actions import PersistElectionState, RaftAction, SendResponse
from odradek.replication.raft.election_state import ElectionState
from odradek.replication.raft.errors import UnexpectedRaftEvent
from odradek.replication.raft.follower_state import FollowerState
from odradek.replication.raft.inbound_requests import InboundRequests
from odradek.replication.raft.leader_state import LeaderState
from odradek.replication.raft.messages import (
    AddVoterRequest,
    AddVoterResponse,
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    Endpoints,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftRequest,
    RaftResponse,
    RemoveVoterRequest,
    RemoveVoterResponse,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.outbound_requests import OutboundRequests
from odradek.replication.raft.quorum_state import (
    ElectionInProgressState,
    ProspectiveState,
    QuorumRole,
    QuorumSettings,
    QuorumState,
    ResignedState,
    UnattachedState,
)
from odradek.replication.raft.raft_log import RaftLog
from odradek.replication.raft.voter_change_handler import VoterChangeHandler
from odradek.replication.raft.voter_changes import VoterChangeError
from odradek.replication.raft.voter_history import ControlChange, VoterHistory
from odradek.replication.raft.voters import NO_LEADER, Voter, VoterSet

log = logging.getLogger("odradek.metadata")

EPOCH_WITHOUT_LIMIT = 2**30
"""Epochs of requests may have any value up to this one, because a node may have been away for long."""
EPOCH_STEP_MAX = 2**16
"""Largest difference of a larger epoch from the epoch of this node."""

RESPONSES: dict[type[RaftRequest], type[RaftResponse]] = {
    VoteRequest: VoteResponse,
    BeginEpochRequest: BeginEpochResponse,
    EndEpochRequest: EndEpochResponse,
    FetchRequest: FetchResponse,
    FetchSnapshotRequest: FetchSnapshotResponse,
    AddVoterRequest: AddVoterResponse,
    RemoveVoterRequest: RemoveVoterResponse,
    UpdateVoterRequest: UpdateVoterResponse,
}


class RaftClient:
    """Kafka's KafkaRaftClient. `me` is this node as a voter; `history` and `log` are as read
    from a flushed log, `election` as read from `quorum-state`."""

    def __init__(
        self,
        me: Voter,
        log: RaftLog,
        history: VoterHistory,
        election: ElectionState,
        *,
        settings: QuorumSettings | None = None,
        jitter: Callable[[int], int] = lambda bound: 0,
    ) -> None:
        settings = settings or QuorumSettings()
        self._quorum = QuorumState(me, log, history, election, settings, jitter)
        self._voter_change_handler = VoterChangeHandler(self._quorum)
        self._inbound_requests = InboundRequests(self._quorum, self._voter_change_handler)
        self._outbound_requests = OutboundRequests(self._quorum, self._voter_change_handler)

    # State

    @property
    def role(self) -> QuorumRole:
        return self._quorum.role

    @property
    def epoch(self) -> int:
        return self._quorum.epoch

    @property
    def leader_id(self) -> int:
        return self._quorum.leader_id

    @property
    def leader_endpoints(self) -> Endpoints:
        """Endpoints of the leader; empty while they are unknown."""
        quorum = self._quorum
        return quorum.leader_endpoints or quorum.voters.endpoints(quorum.leader_id)

    @property
    def election(self) -> ElectionState:
        return self._quorum.election

    @property
    def high_watermark(self) -> int:
        """End of the committed log; -1 while it is unknown."""
        return self._quorum.high_watermark

    @property
    def max_reported_high_watermark(self) -> int:
        """The highest high watermark that any node has reported, even above this node's log end."""
        return max(self._quorum.high_watermark, self._quorum.max_reported_high_watermark)

    @property
    def voters(self) -> VoterSet:
        """The newest voter set in the log, committed or not."""
        return self._quorum.voters

    @property
    def kraft_version(self) -> int:
        return self._quorum.history.kraft_version

    @property
    def is_voter(self) -> bool:
        return self._quorum.is_voter

    @property
    def is_only_voter(self) -> bool:
        """Whether this node is the only voter."""
        return self._quorum.is_only_voter

    @property
    def leadership(self) -> LeaderState | None:
        """State of this leader's epoch; None if this node does not lead."""
        state = self._quorum.state
        return state if isinstance(state, LeaderState) else None

    @property
    def may_stop(self) -> bool:
        """Whether the node may exit after `shut_down`: the quorum no longer depends on it."""
        quorum = self._quorum
        led_by_another = quorum.leader_id not in (NO_LEADER, quorum.me.id)
        return not quorum.is_voter or quorum.is_only_voter or led_by_another

    # Time

    def start(self, now_ms: int) -> Sequence[RaftAction]:
        """Enter the first role; called once, before all other events."""
        self._quorum.initialize(now_ms)
        return self._actions(now_ms)

    @property
    def deadline_ms(self) -> int | None:
        """Time at which `tick` is due; None if no timeout is running."""
        response, role = self._quorum.requests.deadline_ms, self._role_deadline_ms()
        if response is None or role is None:
            return role if response is None else response
        return min(response, role)

    def _role_deadline_ms(self) -> int | None:
        quorum = self._quorum
        match quorum.state:
            case LeaderState() as leadership:
                return leadership.deadline_ms
            case _ if quorum.closing:
                return None
            case UnattachedState(until_ms):
                return until_ms if quorum.can_start_election else None
            case ElectionInProgressState(until_ms=until_ms) | ResignedState(until_ms):
                return until_ms
            case FollowerState() as following:
                due = following.fetch_until_ms if quorum.can_start_election else None
                if following.changing_log or not quorum.requests.is_ready(following.leader_id):
                    return due
                update_ms = following.update_voter_at_ms
                return update_ms if due is None else min(due, update_ms)

    def tick(self, now_ms: int) -> Sequence[RaftAction]:
        """Handle every timeout that has expired."""
        quorum = self._quorum
        quorum.requests.expire(now_ms)
        match quorum.state:
            case LeaderState() as leadership:
                self._voter_change_handler.expire(leadership, now_ms)
                due = leadership.resign_at_ms
                if due is not None and now_ms >= due:
                    quorum.transition_to_resigned(now_ms)
            case _ if not quorum.closing:
                self._time_out(now_ms)
        return self._actions(now_ms)

    def _time_out(self, now_ms: int) -> None:
        """A role may change to the next one with the remaining timeout, which may have expired
        as well."""
        quorum = self._quorum
        match quorum.state:
            case ProspectiveState(until_ms=until_ms) if now_ms >= until_ms:
                quorum.handle_lost_election(now_ms)
            case ElectionInProgressState(until_ms=until_ms) if now_ms >= until_ms:
                quorum.transition_to_prospective(now_ms)
            case FollowerState() as following if (
                quorum.can_start_election and now_ms >= following.fetch_until_ms
            ):
                quorum.transition_to_prospective(now_ms)
            case ResignedState(until_ms) if now_ms >= until_ms:
                quorum.transition_to_unattached(quorum.epoch + 1, now_ms)
        match quorum.state:
            case UnattachedState(until_ms) if quorum.can_start_election and now_ms >= until_ms:
                quorum.transition_to_prospective(now_ms)

    # Requests and responses

    def handle_request(
        self, request: RaftRequest, now_ms: int, *, again: bool = False
    ) -> Sequence[RaftAction]:
        """Handle a request. Its `SendResponse` is among the actions, or follows later (voter changes).

        `again`: a Fetch that found no new records has waited, and must be completed now.
        """
        quorum = self._quorum
        known = quorum.settings.cluster_id
        if known is not None and request.cluster_id not in (None, known):
            quorum.out.append(SendResponse(request, _of_another_cluster(request, known)))
            return self._actions(now_ms)
        if _is_implausible(request, quorum.epoch):
            log.warning(
                "refused a request whose epoch is implausible after epoch %d: %s",
                quorum.epoch,
                request,
            )
            quorum.out.append(
                SendResponse(request, RESPONSES[type(request)](error=ErrorCode.invalid_request))
            )
            return self._actions(now_ms)
        match request:
            case VoteRequest():
                response: RaftResponse = self._inbound_requests.handle_vote(request, now_ms)
            case BeginEpochRequest():
                response = self._inbound_requests.handle_begin_epoch(request, now_ms)
            case EndEpochRequest():
                response = self._inbound_requests.handle_end_epoch(request, now_ms)
            case FetchRequest():
                response = self._inbound_requests.handle_fetch(request, now_ms, again=again)
            case FetchSnapshotRequest():
                response = self._inbound_requests.handle_fetch_snapshot(request, now_ms)
            case _:
                self._change_voters(request, now_ms)
                return self._actions(now_ms)
        quorum.out.append(SendResponse(request, response))
        return self._actions(now_ms)

    def _change_voters(self, request: RaftRequest, now_ms: int) -> None:
        match request:
            case AddVoterRequest():
                self._voter_change_handler.handle_add(request, now_ms)
            case RemoveVoterRequest():
                self._voter_change_handler.handle_remove(request, now_ms)
            case UpdateVoterRequest():
                self._voter_change_handler.handle_update(request, now_ms)
            case _:
                raise UnexpectedRaftEvent(f"{request} is not a request of the Raft protocol")

    def handle_response(
        self, number: int, response: RaftResponse, now_ms: int
    ) -> Sequence[RaftAction]:
        """Handle the response to request `number`; ignored if that request is no longer in
        flight."""
        sent = self._quorum.requests.take(number)
        if sent is None:
            return []
        if not self._outbound_requests.handle_response(sent, response, now_ms):
            self._quorum.requests.back_off(sent.to, now_ms)
        return self._actions(now_ms)

    def handle_request_failure(
        self, number: int, now_ms: int, *, refused: bool = False
    ) -> Sequence[RaftAction]:
        """Request `number` failed without a response; `refused`: the connection was refused."""
        sent = self._quorum.requests.take(number)
        if sent is None:
            return []
        self._outbound_requests.handle_request_failure(sent, now_ms, refused=refused)
        self._quorum.requests.back_off(sent.to, now_ms)
        return self._actions(now_ms)

    # Completed actions

    def appended(self, changes: Sequence[ControlChange], now_ms: int) -> Sequence[RaftAction]:
        """Handle the completion of an action that appends; `changes` are the appended control records.

        The actions are `AppendLeaderChangeMessage`, `AppendVotersRecord` and `AppendFetchedRecords`. The leader's
        metadata records need no such call.
        """
        quorum = self._quorum
        quorum.history.append(changes)
        match quorum.state:
            case LeaderState():
                self._voter_change_handler.appended(changes, now_ms)
            case FollowerState() as following:
                following.changing_log = False
                self._outbound_requests.follow_high_watermark(following)
        return self._actions(now_ms)

    def not_appended(self, error: KafkaError, now_ms: int) -> Sequence[RaftAction]:
        """Handle a failed `AppendVotersRecord`: the disk is full, and the log is unchanged."""
        if isinstance(self._quorum.state, LeaderState):
            self._voter_change_handler.not_appended(error)
        return self._actions(now_ms)

    def truncated(self, now_ms: int) -> Sequence[RaftAction]:
        """Handle the completion of `TruncateLog`: the follower may fetch again."""
        if isinstance(self._quorum.state, FollowerState):
            self._quorum.state.changing_log = False
        return self._actions(now_ms)

    def snapshot_abandoned(self, now_ms: int) -> Sequence[RaftAction]:
        """The disk is full: the snapshot being fetched was removed, and the next Fetch decides
        how to continue. A pending `InstallSnapshot` is not executed."""
        following = self._quorum.state
        if isinstance(following, FollowerState):
            following.download = None
            following.changing_log = False
        return self._actions(now_ms)

    def installed(self, changes: Sequence[ControlChange], now_ms: int) -> Sequence[RaftAction]:
        """`InstallSnapshot` is done. The log is empty and starts at the snapshot's end;
        `changes` are the snapshot's control records."""
        quorum = self._quorum
        quorum.history.reset(changes)
        quorum.update_high_watermark(quorum.log.end_offset)
        if isinstance(quorum.state, FollowerState):
            quorum.state.changing_log = False
        return self._actions(now_ms)

    def flushed(self, end_offset: int, epoch: int, now_ms: int) -> Sequence[RaftAction]:
        """A flush is done that began in `epoch`, when the log ended at `end_offset`.

        A flush that began in an earlier epoch is ignored: the log may have been truncated since.
        """
        leads = self.leadership
        if leads is not None and epoch == self.epoch and leads.flushed(end_offset):
            self._voter_change_handler.high_watermark_advanced(leads, now_ms)
        return self._actions(now_ms)

    # Requests of this node

    def upgrade(
        self, kraft_version: int, now_ms: int, *, validate_only: bool = False
    ) -> tuple[VoterChangeError | None, Sequence[RaftAction]]:
        """Raise kraft.version (KIP-853). Returns the error, if any, and the actions."""
        refusal = self._voter_change_handler.handle_upgrade(
            kraft_version, validate_only=validate_only
        )
        return refusal, self._actions(now_ms)

    def resign(self, now_ms: int) -> Sequence[RaftAction]:
        """Give up the leadership of this epoch."""
        if isinstance(self._quorum.state, LeaderState):
            self._quorum.transition_to_resigned(now_ms)
        return self._actions(now_ms)

    def shut_down(self, now_ms: int) -> Sequence[RaftAction]:
        """Resign, and start no election any more: a leader that is shutting down could not serve
        requests."""
        self._quorum.closing = True
        if isinstance(self._quorum.state, ElectionInProgressState):
            self._quorum.handle_lost_election(now_ms)
        return self.resign(now_ms)

    def _actions(self, now_ms: int) -> Sequence[RaftAction]:
        """Collected actions; a changed election state is persisted first."""
        quorum = self._quorum
        self._outbound_requests.send_due_requests(now_ms)
        actions, quorum.out = quorum.out, []
        if quorum.election != quorum.persisted:
            quorum.persisted = quorum.election
            actions.insert(0, PersistElectionState(quorum.election))
        return actions


def _is_implausible(request: RaftRequest, epoch: int) -> bool:
    """Whether only a faulty or hostile peer can have sent the epoch of a request. Adopting it would leave too few epochs
    for further elections: large epochs have to grow in small steps."""
    match request:
        case (
            VoteRequest()
            | BeginEpochRequest()
            | EndEpochRequest()
            | FetchRequest()
            | FetchSnapshotRequest()
        ):
            return request.epoch > max(EPOCH_WITHOUT_LIMIT, epoch + EPOCH_STEP_MAX)
        case _:
            return False


def _of_another_cluster(request: RaftRequest, known: str) -> RaftResponse:
    values: dict[str, Any] = {"error": ErrorCode.inconsistent_cluster_id}
    if isinstance(request, AddVoterRequest | RemoveVoterRequest):
        values["message"] = (
            f'The given id "{request.cluster_id}" doesn\'t match the cluster id "{known}"'
        )
    return RESPONSES[type(request)](**values)
