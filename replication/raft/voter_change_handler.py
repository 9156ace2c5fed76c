"""Voter changes on the leader: validates, appends, waits for the commit, and responds (KIP-853).

The rules are in `voter_changes.py`. A new voter set applies as soon as it is appended, so that its own
majority commits it. A leader that was removed leads until the removal is committed, and resigns at the
next tick.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.raft.actions import AppendVotersRecord, SendResponse
from odradek.replication.raft.leader_state import LeaderState
from odradek.replication.raft.messages import (
    AddVoterRequest,
    AddVoterResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    RemoveVoterRequest,
    RemoveVoterResponse,
    UpdateVoterRequest,
    UpdateVoterResponse,
)
from odradek.replication.raft.quorum_state import QuorumState
from odradek.replication.raft.voter_changes import (
    PendingVoterChange,
    VoterChangeError,
    complete_addition,
    decide_addition,
    decide_removal,
    decide_update,
    decide_upgrade,
)
from odradek.replication.raft.voter_history import ControlChange
from odradek.replication.raft.voters import NO_DIRECTORY, Voter, VoterSet


class VoterChangeHandler:
    """Handles AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter and upgrades of kraft.version."""

    def __init__(self, quorum: QuorumState) -> None:
        self._quorum = quorum

    def leader_only(self, epoch: int) -> ErrorCode | None:
        """Error of a request that requires the leader of `epoch`; None if this node is the leader."""
        quorum = self._quorum
        if epoch != quorum.epoch:
            older = epoch < quorum.epoch
            return ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch
        if not isinstance(quorum.state, LeaderState):
            return ErrorCode.not_leader_or_follower
        return ErrorCode.broker_not_available if quorum.closing else None

    # Requests

    def handle_add(self, request: AddVoterRequest, now_ms: int) -> None:
        """Validate an addition and send ApiVersions to the new voter.

        `handle_api_versions_response` continues it.
        """
        quorum, voter = self._quorum, request.voter
        refusal = self._validate_voter(voter.id, named=voter.directory_id != NO_DIRECTORY)
        if refusal is None and not self._is_reachable(voter):
            refusal = VoterChangeError(
                ErrorCode.invalid_request,
                f"Add voter request didn't include the endpoint ({voter.endpoints}) for the default "
                f"listener {self._quorum.listener}",
            )
        leadership = quorum.state
        if refusal is None and isinstance(leadership, LeaderState):
            refusal = decide_addition(request, leadership, quorum.history)
            if refusal is None and not quorum.requests.is_ready(voter.id):
                refusal = VoterChangeError(
                    ErrorCode.request_timed_out,
                    f"New voter {voter.key} is not ready to receive requests",
                )
            if refusal is None:
                until_ms = now_ms + quorum.settings.request_timeout_ms
                api_versions = ApiVersionsRequest(cluster_id=quorum.settings.cluster_id)
                number = quorum.send_request(voter.id, api_versions, voter.endpoints, now_ms)
                leadership.pending = PendingVoterChange(request, until_ms, number)
        if refusal is not None:
            response = AddVoterResponse(error=refusal.error, message=refusal.message)
            quorum.out.append(SendResponse(request, response))

    def handle_remove(self, request: RemoveVoterRequest, now_ms: int) -> None:
        """Validate a removal and append the new voter set."""
        quorum, key = self._quorum, request.voter
        decided: VoterChangeError | VoterSet | None = self._validate_voter(
            key.id, named=key.directory_id != NO_DIRECTORY
        )
        leadership = quorum.state
        if decided is None and isinstance(leadership, LeaderState):
            decided = decide_removal(request, leadership, quorum.history)
            if isinstance(decided, VoterSet):
                until_ms = now_ms + quorum.settings.request_timeout_ms
                leadership.pending = PendingVoterChange(request, until_ms)
                self._append(leadership, decided)
        if isinstance(decided, VoterChangeError):
            response = RemoveVoterResponse(error=decided.error, message=decided.message)
            quorum.out.append(SendResponse(request, response))

    def handle_update(self, request: UpdateVoterRequest, now_ms: int) -> None:
        """Update a voter's endpoints; responds at once, because the voter retries if it must."""
        quorum, voter = self._quorum, request.voter
        error = self.leader_only(request.epoch)
        lowest, highest = voter.kraft_versions
        if error is None and (
            voter.directory_id == NO_DIRECTORY
            or not 0 <= lowest <= highest
            or not self._is_reachable(voter)
        ):
            error = ErrorCode.invalid_request
        leadership = quorum.state
        if error is None and isinstance(leadership, LeaderState):
            decided = decide_update(request, leadership, quorum.history, quorum.in_memory_voters)
            if isinstance(decided, VoterChangeError):
                error = decided.error
            else:
                if quorum.history.kraft_version > 0:
                    self._append(leadership, decided)
                else:
                    quorum.in_memory_voters = decided
                leadership.update_check_quorum(voter.key, now_ms)
        response = UpdateVoterResponse(
            error=error or ErrorCode.none,
            epoch=quorum.epoch,
            leader_id=quorum.leader_id,
            leader_endpoints=quorum.leader_endpoints,
        )
        quorum.out.append(SendResponse(request, response))

    def handle_upgrade(
        self, version: int, *, validate_only: bool = False
    ) -> VoterChangeError | None:
        """Raise kraft.version; the voters of a static quorum are appended with it."""
        quorum = self._quorum
        if error := self.leader_only(quorum.epoch):
            return VoterChangeError(error, "only the leader can change kraft.version")
        leadership = quorum.state
        assert isinstance(leadership, LeaderState)
        refusal = decide_upgrade(version, leadership, quorum.history, quorum.in_memory_voters)
        is_new = version != quorum.history.kraft_version
        if refusal is None and is_new and not validate_only:
            self._append(leadership, quorum.in_memory_voters, kraft_version=version)
        return refusal

    def _validate_voter(self, voter_id: int, *, named: bool) -> VoterChangeError | None:
        if error := self.leader_only(self._quorum.epoch):
            return VoterChangeError(error, "only the leader can change voters")
        if voter_id < 0 or not named:
            return VoterChangeError(
                ErrorCode.invalid_request, "the voter's id or directory is missing"
            )
        return None

    def _is_reachable(self, voter: Voter) -> bool:
        """Whether the voter has an endpoint of the controller listener."""
        listener = self._quorum.listener
        return any(listener in (None, each.listener) for each in voter.endpoints)

    def _append(
        self, leadership: LeaderState, voters: VoterSet, *, kraft_version: int | None = None
    ) -> None:
        leadership.appending_voters = True
        self._quorum.out.append(AppendVotersRecord(leadership.epoch, tuple(voters), kraft_version))

    # Completion

    def handle_api_versions_response(
        self, number: int, response: ApiVersionsResponse, now_ms: int
    ) -> bool:
        """Continue or reject an addition; returns False if the ApiVersions request failed."""
        quorum, leadership = self._quorum, self._quorum.state
        if not isinstance(leadership, LeaderState) or leadership.pending is None:
            return True
        change = leadership.pending
        if change.api_versions_number != number or not isinstance(change.request, AddVoterRequest):
            return True
        decided = complete_addition(change.request, response, leadership, quorum.history, now_ms)
        if isinstance(decided, VoterChangeError):
            quorum.complete_voter_change(change, decided.error, decided.message)
            leadership.pending = None
            return response.error is ErrorCode.none
        change.api_versions_number = None
        self._append(leadership, decided)
        return True

    def appended(self, changes: Sequence[ControlChange], now_ms: int) -> None:
        """The leader has appended control records: apply a new voter set."""
        leadership = self._quorum.state
        assert isinstance(leadership, LeaderState)
        leadership.appending_voters = False
        offsets = [change.offset for change in changes if change.voters is not None]
        if not offsets:
            return
        leadership.change_voters(self._quorum.voters)
        pending = leadership.pending
        if (
            pending is not None
            and pending.api_versions_number is None
            and pending.last_offset is None
        ):
            pending.last_offset = offsets[-1]
            request = pending.request
            if isinstance(request, AddVoterRequest) and not request.ack_when_committed:
                self._quorum.complete_voter_change(pending)
        if leadership.recount():
            self.high_watermark_advanced(leadership, now_ms)

    def not_appended(self, error: KafkaError) -> None:
        """The append of a voter change failed: respond with the error."""
        leadership = self._quorum.state
        assert isinstance(leadership, LeaderState)
        leadership.appending_voters = False
        pending = leadership.pending
        if pending is not None:
            leadership.pending = None
            self._quorum.complete_voter_change(pending, error.code, error.message)

    def high_watermark_advanced(self, leadership: LeaderState, now_ms: int) -> None:
        """Complete a committed voter change; a removed leader resigns."""
        quorum, high_watermark = self._quorum, leadership.high_watermark
        quorum.update_high_watermark(high_watermark)
        pending = leadership.pending
        written = None if pending is None else pending.last_offset
        if pending is not None and written is not None and written < high_watermark:
            leadership.pending = None
            quorum.complete_voter_change(pending)
        changed_at = quorum.history.voters_offset
        if not quorum.is_voter and changed_at is not None and changed_at < high_watermark:
            leadership.schedule_resignation(now_ms)

    def expire(self, leadership: LeaderState, now_ms: int) -> None:
        """Respond REQUEST_TIMED_OUT to an expired voter change. Its record may still be committed."""
        pending = leadership.pending
        if pending is not None and now_ms >= pending.until_ms:
            leadership.pending = None
            self._quorum.complete_voter_change(pending, ErrorCode.request_timed_out)
