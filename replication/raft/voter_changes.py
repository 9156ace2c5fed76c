"""Rules for voter changes: AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter and kraft.version (KIP-853).

A change adds, removes or updates one voter, so that every majority before it and every majority after
it share a voter. This requires that the previous change is committed, and that the leader has committed
a record of its own epoch. The `decide_*` functions return an error or the new voter set.
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
    """A voter change in progress. `last_offset` is the offset of its VotersRecord, once appended.

    `api_versions_number` is the number of the ApiVersions request to the new voter that is in flight.
    `responded`: the response to the change has been sent.
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
    """The part of LeaderState that the rules read."""

    high_watermark: int
    pending: PendingVoterChange | None
    appending_voters: bool

    def is_caught_up(self, key: ReplicaKey, now_ms: int) -> bool: ...


def _check_leader(leader: VoterChangeLeader, history: VoterHistory) -> VoterChangeError | None:
    """Check the conditions of every change."""
    if leader.pending is not None or leader.appending_voters:
        return VoterChangeError(ErrorCode.request_timed_out, "another voter change is in progress")
    if leader.high_watermark < 0:
        return VoterChangeError(
            ErrorCode.request_timed_out,
            "the leader does not know the high watermark of its epoch yet",
        )
    return None


def _check_dynamic(leader: VoterChangeLeader, history: VoterHistory) -> VoterChangeError | None:
    """Check the conditions of a change of voters in the log (kraft.version 1)."""
    if refusal := _check_leader(leader, history):
        return refusal
    if history.kraft_version < 1:
        return VoterChangeError(
            ErrorCode.unsupported_version,
            f"voter changes require kraft.version 1, but it is {history.kraft_version}",
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
    """Check an addition before ApiVersions is sent to the new voter; None if it may continue."""
    if refusal := _check_dynamic(leader, history):
        return refusal
    if history.voters.get(request.voter.id) is not None:
        return VoterChangeError(
            ErrorCode.duplicate_voter,
            f"the voter id {request.voter.id} is already among {history.voters.ids}",
        )
    return None


def complete_addition(
    request: AddVoterRequest,
    response: ApiVersionsResponse,
    leader: VoterChangeLeader,
    history: VoterHistory,
    now_ms: int,
) -> VoterChangeError | VoterSet:
    """Check the new voter's ApiVersions response; returns the new voter set or an error."""
    voter = request.voter
    if response.error is not ErrorCode.none:
        return VoterChangeError(
            ErrorCode.request_timed_out,
            f"ApiVersions of voter {voter.id} failed: {response.error.name}",
        )
    lowest, highest = response.kraft_versions or (0, 0)
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
            ErrorCode.duplicate_voter,
            f"the voter id {voter.id} is already among {history.voters.ids}",
        )
    return added


def decide_removal(
    request: RemoveVoterRequest, leader: VoterChangeLeader, history: VoterHistory
) -> VoterChangeError | VoterSet:
    """Voter set after the removal, or the error."""
    if refusal := _check_dynamic(leader, history):
        return refusal
    removed = history.voters.removed(request.voter)
    if removed is None:
        return VoterChangeError(
            ErrorCode.voter_not_found,
            f"{request.voter} is not among {[voter.key for voter in history.voters]}, or is the only voter",
        )
    return removed


def decide_update(
    request: UpdateVoterRequest,
    leader: VoterChangeLeader,
    history: VoterHistory,
    in_memory: VoterSet,
) -> VoterChangeError | VoterSet:
    """Voter set after an update of endpoints and supported versions, or the error.

    `in_memory` are the voters of a static quorum with their reported endpoints and versions. They are
    updated in memory, not in the log (KIP-853, KAFKA-16533).
    """
    dynamic = history.kraft_version > 0
    if refusal := (_check_dynamic if dynamic else _check_leader)(leader, history):
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
            ErrorCode.voter_not_found, f"{request.voter.key} is not among the voters {voters.ids}"
        )
    return updated


def decide_upgrade(
    version: int, leader: VoterChangeLeader, history: VoterHistory, in_memory: VoterSet
) -> VoterChangeError | None:
    """Check an upgrade of kraft.version: all voters must have reported a directory id and support it."""
    if version < history.kraft_version or leader.appending_voters:
        return VoterChangeError(
            ErrorCode.invalid_update_version,
            f"kraft.version is {history.kraft_version}, or a change of it is in progress",
        )
    if leader.high_watermark < 0:
        return VoterChangeError(
            ErrorCode.request_timed_out,
            "the leader does not know the high watermark of its epoch yet",
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
            f"the voters {lacking} do not support kraft.version {version}, or have not reported it",
        )
    return None
