"""Handling of Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch and FetchSnapshot requests.

The epoch and leader of a request are applied before its response is built, so a response always
carries the current epoch; `raft_client.py` persists that epoch first.
"""

from __future__ import annotations

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.election_state import OffsetAndEpoch, grants_vote
from odradek.replication.raft.follower_state import FollowerState
from odradek.replication.raft.leader_state import LeaderState
from odradek.replication.raft.messages import (
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.quorum_state import (
    CandidateState,
    ProspectiveState,
    QuorumState,
    ResignedState,
    UnattachedState,
)
from odradek.replication.raft.raft_log import NOTHING, election_end, validate_offset_and_epoch
from odradek.replication.raft.snapshots import SnapshotId
from odradek.replication.raft.voter_change_handler import VoterChangeHandler
from odradek.replication.raft.voters import NO_DIRECTORY, ReplicaKey


class InboundRequests:
    """Handles the requests of other nodes of the quorum."""

    def __init__(self, quorum: QuorumState, voter_change_handler: VoterChangeHandler) -> None:
        self._quorum = quorum
        self._voter_change_handler = voter_change_handler

    # Elections

    def handle_vote(self, request: VoteRequest, now_ms: int) -> VoteResponse:
        quorum = self._quorum
        impossible = request.last_epoch > request.epoch - (not request.pre_vote)
        if request.end_offset < 0 or request.last_epoch < 0 or impossible:
            return self._vote_response(ErrorCode.invalid_request)
        if error := self._voter_only(request.candidate.id, request.epoch):
            return self._vote_response(error)
        if request.epoch > quorum.epoch:
            quorum.transition_to_unattached(request.epoch, now_ms)
        if not self._is_me(request.voter):
            return self._vote_response(ErrorCode.invalid_voter_key)
        granted = self._grants(request)
        free = quorum.election.voted is None and (
            isinstance(quorum.state, (UnattachedState, ProspectiveState))
        )
        if granted and not request.pre_vote and free:
            quorum.grant_vote(request.candidate, now_ms)
        return self._vote_response(granted=granted)

    def _grants(self, request: VoteRequest) -> bool:
        quorum = self._quorum
        up_to_date = OffsetAndEpoch(request.last_epoch, request.end_offset) >= election_end(
            quorum.log
        )
        match quorum.state:
            case UnattachedState() | ProspectiveState():
                return grants_vote(
                    quorum.election,
                    request.candidate,
                    up_to_date=up_to_date,
                    pre_vote=request.pre_vote,
                )
            case CandidateState() | ResignedState():
                return request.pre_vote and up_to_date
            case FollowerState(has_leader_responded=has_leader_responded):
                return request.pre_vote and up_to_date and not has_leader_responded
            case LeaderState():
                return False

    def handle_begin_epoch(self, request: BeginEpochRequest, now_ms: int) -> BeginEpochResponse:
        quorum = self._quorum
        error = self._voter_only(request.leader_id, request.epoch)
        if error is None:
            self._apply_leader(request, now_ms)
            error = None if self._is_me(request.voter) else ErrorCode.invalid_voter_key
        return BeginEpochResponse(
            error=error or ErrorCode.none,
            epoch=quorum.epoch,
            leader_id=quorum.leader_id,
            leader_endpoints=quorum.leader_endpoints,
        )

    def handle_end_epoch(self, request: EndEpochRequest, now_ms: int) -> EndEpochResponse:
        """The leader resigns: start an election after a backoff by position among the
        successors."""
        quorum = self._quorum
        error = self._voter_only(request.leader_id, request.epoch)
        if error is None:
            self._apply_leader(request, now_ms)
            state = quorum.state
            if isinstance(state, FollowerState) and state.leader_id == request.leader_id:
                state.fetch_until_ms = now_ms + self._backoff_ms(request.successors)
        return EndEpochResponse(
            error=error or ErrorCode.none,
            epoch=quorum.epoch,
            leader_id=quorum.leader_id,
            leader_endpoints=quorum.leader_endpoints,
        )

    def _apply_leader(self, request: BeginEpochRequest | EndEpochRequest, now_ms: int) -> None:
        self._quorum.maybe_transition(
            request.epoch, request.leader_id, request.leader_endpoints, now_ms, by_leader=True
        )

    def _backoff_ms(self, successors: tuple[ReplicaKey, ...]) -> int:
        """Election backoff: 0 for the first successor, doubled for each one after the second."""
        longest = self._quorum.settings.election_backoff_max_ms
        places = [place for place, key in enumerate(successors) if self._is_me(key)]
        if not places:
            return longest if successors else 0
        if places[0] == 0:
            return 0
        shortest = longest >> (len(successors) - 1)
        return min(longest, shortest << (places[0] - 1))

    # The log

    def handle_fetch(self, request: FetchRequest, now_ms: int, *, again: bool) -> FetchResponse:
        """Validate the fetch offset, and update the replica's progress unless `again`."""
        quorum = self._quorum
        impossible = not 0 <= request.last_fetched_epoch <= request.epoch
        if request.max_wait_ms < 0 or request.fetch_offset < 0 or impossible:
            return self._fetch_response(ErrorCode.invalid_request)
        if error := self._leader_only(request.epoch):
            return self._fetch_response(error)
        if request.replica.id == quorum.me.id:
            return self._fetch_response(ErrorCode.unknown_server_error)
        leadership = quorum.state
        assert isinstance(leadership, LeaderState)
        check = validate_offset_and_epoch(
            quorum.log, request.fetch_offset, request.last_fetched_epoch
        )
        match check:
            case SnapshotId():
                return self._fetch_response(snapshot_id=check)
            case EpochEndOffset():
                return self._fetch_response(diverging=check)
        end = quorum.log.end_offset
        if not again and request.replica.id >= 0:
            moved = leadership.fetched(request.replica, request.fetch_offset, now_ms, end)
            if moved:
                self._voter_change_handler.high_watermark_advanced(leadership, now_ms)
        return self._fetch_response()

    def handle_fetch_snapshot(
        self, request: FetchSnapshotRequest, now_ms: int
    ) -> FetchSnapshotResponse:
        quorum = self._quorum
        if error := self._leader_only(request.epoch):
            return self._fetch_snapshot_response(request, error)
        size = quorum.log.snapshot_size(request.snapshot_id)
        if size is None or request.snapshot_id == NOTHING:
            return self._fetch_snapshot_response(request, ErrorCode.snapshot_not_found)
        if not 0 <= request.position < size:
            return self._fetch_snapshot_response(request, ErrorCode.position_out_of_range)
        leadership = quorum.state
        assert isinstance(leadership, LeaderState)
        leadership.update_check_quorum(request.replica, now_ms)
        return self._fetch_snapshot_response(request, size=size)

    # Validation

    def _voter_only(self, sender_id: int, epoch: int) -> ErrorCode | None:
        if epoch < self._quorum.epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.invalid_request if sender_id < 0 else None

    def _leader_only(self, epoch: int) -> ErrorCode | None:
        return self._voter_change_handler.leader_only(epoch)

    def _is_me(self, key: ReplicaKey | None) -> bool:
        """Whether the key names this node; old versions omit the voter or its directory."""
        me = self._quorum.me
        return key is None or (
            key.id == me.id and key.directory_id in (NO_DIRECTORY, me.directory_id)
        )

    # Responses

    def _vote_response(
        self, error: ErrorCode = ErrorCode.none, *, granted: bool = False
    ) -> VoteResponse:
        quorum = self._quorum
        return VoteResponse(
            error=error,
            epoch=quorum.epoch,
            leader_id=quorum.leader_id,
            leader_endpoints=quorum.leader_endpoints,
            granted=granted,
        )

    def _fetch_response(
        self,
        error: ErrorCode = ErrorCode.none,
        *,
        diverging: EpochEndOffset | None = None,
        snapshot_id: SnapshotId | None = None,
    ) -> FetchResponse:
        quorum = self._quorum
        known = -1
        if isinstance(quorum.state, LeaderState) and error is ErrorCode.none:
            known = quorum.state.high_watermark
        return FetchResponse(
            error=error,
            epoch=quorum.epoch,
            leader_id=quorum.leader_id,
            leader_endpoints=quorum.leader_endpoints,
            high_watermark=known,
            log_start_offset=quorum.log.start_offset,
            diverging=diverging,
            snapshot_id=snapshot_id,
        )

    def _fetch_snapshot_response(
        self, request: FetchSnapshotRequest, error: ErrorCode = ErrorCode.none, *, size: int = 0
    ) -> FetchSnapshotResponse:
        quorum = self._quorum
        return FetchSnapshotResponse(
            error=error,
            epoch=quorum.epoch,
            leader_id=quorum.leader_id,
            leader_endpoints=quorum.leader_endpoints,
            snapshot_id=request.snapshot_id if error is ErrorCode.none else None,
            size=size,
            position=request.position,
        )
