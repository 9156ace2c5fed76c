"""Voters that change while the quorum goes on: add, remove, update (KIP-853), and kraft.version.

One change at a time, each by one voter, so that any majority before it and any after it have a voter
in common. That holds only if the change before is committed and the leader has committed something of
its own epoch, which is why both are asked for first. `decide_*` say why a change is refused, or what
the voters will be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.messages import (
    AddVoterRequest,
    ApiVersionsResponse,
    RemoveVoterRequest,
    UpdateVoterRequest,
)
from odradek.replication.raft.voters import ReplicaKey, Voter, VoterSet
from odradek.seams.values import state_class, value_class

if TYPE_CHECKING:
    from odradek.replication.raft.voter_history import VoterHistory


@state_class
class PendingVoterChange:
    """A change that is under way. `last_offset` is that of its record, once there is one.

    `asked` is the request to the new voter that an addition waits for; `responded`, that whoever asked
    for the change has its answer.
    """

    request: AddVoterRequest | RemoveVoterRequest
    until_ms: int
    api_versions_number: int | None = None
    last_offset: int | None = None
    responded: bool = False


@value_class
class VoterChangeError:
    error: ErrorCode
    message: str


class VoterChangeLeader(Protocol):
    """What of a leader bears on voter changes."""

    high_watermark: int
    pending: PendingVoterChange | None
    appending_voters: bool

    def is_caught_up(self, key: ReplicaKey, now_ms: int) -> bool: ...


def _refusal(leader: VoterChangeLeader, history: VoterHistory) -> VoterChangeError | None:
    """What holds for every change."""
    if leader.pending is not None or leader.appending_voters:
        return VoterChangeError(ErrorCode.request_timed_out, "another voter change is under way")
    if leader.high_watermark < 0:
        return VoterChangeError(
            ErrorCode.request_timed_out, "the leader does not know yet what is committed"
        )
    return None


def _dynamic_refusal(leader: VoterChangeLeader, history: VoterHistory) -> VoterChangeError | None:
    """What holds where voters are in the log."""
    if refusal := _refusal(leader, history):
        return refusal
    if history.kraft_version < 1:
        return VoterChangeError(
            ErrorCode.unsupported_version,
            f"voters cannot change while kraft.version is {history.kraft_version}",
        )
    if history.voters_offset is None or history.voters_offset >= leader.high_watermark:
        return VoterChangeError(
            ErrorCode.request_timed_out,
            f"the voters of offset {history.voters_offset} are not committed: the high watermark "
            f"is {leader.high_watermark}",
        )
    return None


def decide_addition(
    request: AddVoterRequest, leader: VoterChangeLeader, history: VoterHistory
) -> VoterChangeError | None:
    """Whether to go on and ask the new voter what it supports."""
    if refusal := _dynamic_refusal(leader, history):
        return refusal
    if history.voters.get(request.voter.id) is not None:
        return VoterChangeError(
            ErrorCode.duplicate_voter, f"{request.voter.id} is one of {history.voters.ids}"
        )
    return None


def complete_addition(
    request: AddVoterRequest,
    told: ApiVersionsResponse,
    leader: VoterChangeLeader,
    history: VoterHistory,
    now_ms: int,
) -> VoterChangeError | VoterSet:
    """The new voter has told what it supports."""
    voter = request.voter
    if told.error is not ErrorCode.none:
        return VoterChangeError(
            ErrorCode.request_timed_out, f"{voter.id} answers {told.error.name}"
        )
    lowest, highest = told.kraft_versions or (0, 0)
    if not lowest <= history.kraft_version <= highest:
        return VoterChangeError(
            ErrorCode.invalid_request,
            f"{voter.id} supports kraft.version {lowest} to {highest}, not {history.kraft_version}",
        )
    if not leader.is_caught_up(voter.key, now_ms):
        return VoterChangeError(
            ErrorCode.request_timed_out, f"{voter.id} has not caught up with the log"
        )
    added = history.voters.added(
        Voter(voter.id, voter.directory_id, voter.endpoints, (lowest, highest))
    )
    if added is None:
        return VoterChangeError(
            ErrorCode.duplicate_voter, f"{voter.id} is one of {history.voters.ids}"
        )
    return added


def decide_removal(
    request: RemoveVoterRequest, leader: VoterChangeLeader, history: VoterHistory
) -> VoterChangeError | VoterSet:
    if refusal := _dynamic_refusal(leader, history):
        return refusal
    removed = history.voters.removed(request.voter)
    if removed is None:
        return VoterChangeError(
            ErrorCode.voter_not_found,
            f"{request.voter} is none of {[voter.key for voter in history.voters]}, or the last",
        )
    return removed


def decide_update(
    request: UpdateVoterRequest,
    leader: VoterChangeLeader,
    history: VoterHistory,
    in_memory: VoterSet,
) -> VoterChangeError | VoterSet:
    """New endpoints and supported versions. `in_memory` are the voters of a static quorum with what
    they told so far; an update of these goes there, not to the log (KIP-853, KAFKA-16533)."""
    dynamic = history.kraft_version > 0
    if refusal := (_dynamic_refusal if dynamic else _refusal)(leader, history):
        return refusal
    lowest, highest = request.voter.kraft_versions
    if not lowest <= history.kraft_version <= highest or not request.voter.endpoints:
        return VoterChangeError(
            ErrorCode.invalid_request, "no endpoints, or kraft.version is unsupported"
        )
    voters = history.voters if dynamic else in_memory
    updated = voters.updated(request.voter, any_directory=not dynamic)
    if updated is None:
        return VoterChangeError(
            ErrorCode.voter_not_found, f"{request.voter.key} is none of {voters.ids}"
        )
    return updated


def decide_upgrade(
    version: int, leader: VoterChangeLeader, history: VoterHistory, in_memory: VoterSet
) -> VoterChangeError | None:
    """Whether kraft.version may be raised: the voters' directories and versions are known then."""
    if version < history.kraft_version or leader.appending_voters:
        return VoterChangeError(
            ErrorCode.invalid_update_version,
            f"kraft.version is {history.kraft_version}, or is just being changed",
        )
    if leader.high_watermark < 0:
        return VoterChangeError(
            ErrorCode.request_timed_out, "the leader does not know yet what is committed"
        )
    lacking = [
        voter.id
        for voter in in_memory
        if voter.directory_id.int == 0
        or not voter.kraft_versions[0] <= version <= voter.kraft_versions[1]
    ]
    if lacking:
        return VoterChangeError(
            ErrorCode.invalid_update_version,
            f"the voters {lacking} do not support kraft.version {version}, or have not told so",
        )
    return None
