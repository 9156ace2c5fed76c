"""Voter changes as a leader carries them out: refuse or append, wait until committed, answer (KIP-853).

`voter_changes.py` decides; here it is done. A record of new voters counts from the moment it is in the
log: the majority that commits it is the new one. A leader that is no longer among the voters leads on
until that is committed, and resigns with the next tick.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.raft.actions import AppendVoters, Reply
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
    """See the module."""

    def __init__(self, stand: QuorumState) -> None:
        self._stand = stand

    def leader_only(self, epoch: int) -> ErrorCode | None:
        """Why a request that only the leader of `epoch` answers is refused."""
        stand = self._stand
        if epoch != stand.epoch:
            older = epoch < stand.epoch
            return ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch
        if not isinstance(stand.state, LeaderState):
            return ErrorCode.not_leader_or_follower
        return ErrorCode.broker_not_available if stand.closing else None

    # Requests

    def add(self, request: AddVoterRequest, now_ms: int) -> None:
        """First the new voter is asked what it supports; `versions_told` goes on."""
        stand, voter = self._stand, request.voter
        refusal = self._unfit(voter.id, named=voter.directory_id != NO_DIRECTORY)
        if refusal is None and not self._is_reachable(voter):
            refusal = VoterChangeError(
                ErrorCode.invalid_request,
                f"Add voter request didn't include the endpoint ({voter.endpoints}) for the default "
                f"listener {self._stand.listener}",
            )
        leadership = stand.state
        if refusal is None and isinstance(leadership, LeaderState):
            refusal = decide_addition(request, leadership, stand.history)
            if refusal is None and not stand.requests.may_ask(voter.id):
                refusal = VoterChangeError(
                    ErrorCode.request_timed_out, f"{voter.id} cannot be asked now"
                )
            if refusal is None:
                until_ms = now_ms + stand.settings.request_timeout_ms
                question = ApiVersionsRequest(cluster_id=stand.settings.cluster_id)
                asked = stand.ask(voter.id, question, voter.endpoints, now_ms)
                leadership.pending = PendingVoterChange(request, until_ms, asked)
        if refusal is not None:
            respond = AddVoterResponse(error=refusal.error, message=refusal.message)
            stand.out.append(Reply(request, respond))

    def remove(self, request: RemoveVoterRequest, now_ms: int) -> None:
        stand, key = self._stand, request.voter
        decided: VoterChangeError | VoterSet | None = self._unfit(
            key.id, named=key.directory_id != NO_DIRECTORY
        )
        leadership = stand.state
        if decided is None and isinstance(leadership, LeaderState):
            decided = decide_removal(request, leadership, stand.history)
            if isinstance(decided, VoterSet):
                until_ms = now_ms + stand.settings.request_timeout_ms
                leadership.pending = PendingVoterChange(request, until_ms)
                self._append(leadership, decided)
        if isinstance(decided, VoterChangeError):
            respond = RemoveVoterResponse(error=decided.error, message=decided.message)
            stand.out.append(Reply(request, respond))

    def update(self, request: UpdateVoterRequest, now_ms: int) -> None:
        """Answered at once: it is the voter itself that asks, and it asks again if it must."""
        stand, voter = self._stand, request.voter
        error = self.leader_only(request.epoch)
        lowest, highest = voter.kraft_versions
        if error is None and (
            voter.directory_id == NO_DIRECTORY
            or not 0 <= lowest <= highest
            or not self._is_reachable(voter)
        ):
            error = ErrorCode.invalid_request
        leadership = stand.state
        if error is None and isinstance(leadership, LeaderState):
            decided = decide_update(request, leadership, stand.history, stand.in_memory_voters)
            if isinstance(decided, VoterChangeError):
                error = decided.error
            else:
                if stand.history.kraft_version > 0:
                    self._append(leadership, decided)
                else:
                    stand.in_memory_voters = decided
                leadership.heard_from(voter.key, now_ms)
        respond = UpdateVoterResponse(
            error=error or ErrorCode.none,
            epoch=stand.epoch,
            leader_id=stand.leader_id,
            leader_endpoints=stand.leader_endpoints,
        )
        stand.out.append(Reply(request, respond))

    def upgrade(self, version: int, *, validate_only: bool = False) -> VoterChangeError | None:
        """Raise kraft.version, and write the voters of a static quorum to the log with it."""
        stand = self._stand
        if error := self.leader_only(stand.epoch):
            return VoterChangeError(error, "only the leader changes kraft.version")
        leadership = stand.state
        assert isinstance(leadership, LeaderState)
        refusal = decide_upgrade(version, leadership, stand.history, stand.in_memory_voters)
        is_new = version != stand.history.kraft_version
        if refusal is None and is_new and not validate_only:
            self._append(leadership, stand.in_memory_voters, kraft_version=version)
        return refusal

    def _unfit(self, voter_id: int, *, named: bool) -> VoterChangeError | None:
        if error := self.leader_only(self._stand.epoch):
            return VoterChangeError(error, "only the leader changes voters")
        if voter_id < 0 or not named:
            return VoterChangeError(
                ErrorCode.invalid_request, "the voter's id or directory is missing"
            )
        return None

    def _is_reachable(self, voter: Voter) -> bool:
        """Whether it listens where voters talk to each other."""
        listener = self._stand.listener
        return any(listener in (None, each.listener) for each in voter.endpoints)

    def _append(
        self, leadership: LeaderState, voters: VoterSet, *, kraft_version: int | None = None
    ) -> None:
        leadership.appending_voters = True
        self._stand.out.append(AppendVoters(leadership.epoch, tuple(voters), kraft_version))

    # What comes of them

    def versions_told(self, number: int, respond: ApiVersionsResponse, now_ms: int) -> bool:
        """The new voter has answered, or could not be reached. False if that was no good."""
        stand, leadership = self._stand, self._stand.state
        if not isinstance(leadership, LeaderState) or leadership.pending is None:
            return True
        change = leadership.pending
        if change.asked != number or not isinstance(change.request, AddVoterRequest):
            return True
        decided = complete_addition(change.request, respond, leadership, stand.history, now_ms)
        if isinstance(decided, VoterChangeError):
            stand.finish_change(change, decided.error, decided.message)
            leadership.pending = None
            return respond.error is ErrorCode.none
        change.asked = None
        self._append(leadership, decided)
        return True

    def appended(self, changes: Sequence[ControlChange], now_ms: int) -> None:
        """The leader has appended what it was asked to."""
        leadership = self._stand.state
        assert isinstance(leadership, LeaderState)
        leadership.appending_voters = False
        offsets = [change.offset for change in changes if change.voters is not None]
        if not offsets:
            return
        leadership.change_voters(self._stand.voters)
        pending = leadership.pending
        if pending is not None and pending.asked is None and pending.last_offset is None:
            pending.last_offset = offsets[-1]
            asked_for = pending.request
            if isinstance(asked_for, AddVoterRequest) and not asked_for.ack_when_committed:
                self._stand.finish_change(pending)
        if leadership.recount():
            self.high_watermark_moved(leadership, now_ms)

    def not_appended(self, error: KafkaError) -> None:
        """The change came to nothing: whoever asked for it may do so again."""
        leadership = self._stand.state
        assert isinstance(leadership, LeaderState)
        leadership.appending_voters = False
        pending = leadership.pending
        if pending is not None:
            leadership.pending = None
            self._stand.finish_change(pending, error.code, error.message)

    def high_watermark_moved(self, leadership: LeaderState, now_ms: int) -> None:
        """More is committed: a change may be, and with it the end of this leader."""
        stand, high_watermark = self._stand, leadership.high_watermark
        stand.commit(high_watermark)
        pending = leadership.pending
        written = None if pending is None else pending.last_offset
        if pending is not None and written is not None and written < high_watermark:
            leadership.pending = None
            stand.finish_change(pending)
        changed_at = stand.history.voters_offset
        if not stand.is_voter and changed_at is not None and changed_at < high_watermark:
            leadership.leave(now_ms)

    def expire(self, leadership: LeaderState, now_ms: int) -> None:
        """A change that takes too long is given up, though its record may yet be committed."""
        pending = leadership.pending
        if pending is not None and now_ms >= pending.until_ms:
            leadership.pending = None
            self._stand.finish_change(pending, ErrorCode.request_timed_out)
