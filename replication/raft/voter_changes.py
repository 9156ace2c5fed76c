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
        return VoterChangeError(
            ErrorCode.request_timed_out,
            "Request timed out waiting for leader to handle previous voter change request",
        )
    if leader.high_watermark < 0:
        return VoterChangeError(
            ErrorCode.request_timed_out,
            "Request timed out waiting for leader to establish HWM and fence previous voter changes",
        )
    return None


def _check_dynamic(
    leader: VoterChangeLeader, history: VoterHistory, change: str = "updating"
) -> VoterChangeError | None:
    """Check the conditions of a change of voters in the log (kraft.version 1). The texts are Kafka's."""
    if refusal := _check_leader(leader, history):
        return refusal
    if history.kraft_version < 1:
        return VoterChangeError(
            ErrorCode.unsupported_version,
            f"Cluster doesn't support {change} voter because the kraft.version feature is "
            f"{history.kraft_version}",
        )
    if history.voters_offset is None or history.voters_offset >= leader.high_watermark:
        return VoterChangeError(
            ErrorCode.request_timed_out,
            "Request timed out waiting for voters to commit the latest voter change at "
            f"{history.voters_offset} with HWM {leader.high_watermark}",
        )
    return None


def decide_addition(
    request: AddVoterRequest, leader: VoterChangeLeader, history: VoterHistory
) -> VoterChangeError | None:
    """Check an addition before ApiVersions is sent to the new voter; None if it may continue."""
    if refusal := _check_dynamic(leader, history, "adding"):
        return refusal
    if history.voters.get(request.voter.id) is not None:
        return VoterChangeError(
            ErrorCode.duplicate_voter,
            f"The voter id for {request.voter.key} is already part of the set of voters "
            f"{history.voters.ids}.",
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
            f"Aborted add voter operation for {voter.key} since API_VERSIONS returned an error "
            f"{response.error.name.upper()}",
        )
    lowest, highest = response.kraft_versions or (0, 0)
    if not lowest <= history.kraft_version <= highest:
        return VoterChangeError(
            ErrorCode.invalid_request,
            f"Aborted add voter operation for {voter.key} since the kraft.version range "
            f"(min: {lowest}, max: {highest}) doesn't support the finalized version "
            f"{history.kraft_version}",
        )
    if not leader.is_caught_up(voter.key, now_ms):
        return VoterChangeError(
            ErrorCode.request_timed_out,
            f"Aborted add voter operation for {voter.key} since it is lagging behind",
        )
    added = history.voters.added(
        Voter(voter.id, voter.directory_id, voter.endpoints, (lowest, highest))
    )
    if added is None:
        return VoterChangeError(
            ErrorCode.duplicate_voter,
            f"Unable to add {voter.key} to the set of voters {history.voters.ids}",
        )
    return added


def decide_removal(
    request: RemoveVoterRequest, leader: VoterChangeLeader, history: VoterHistory
) -> VoterChangeError | VoterSet:
    """Voter set after the removal, or the error."""
    if refusal := _check_dynamic(leader, history, "removing"):
        return refusal
    removed = history.voters.removed(request.voter)
    if removed is None:
        return VoterChangeError(
            ErrorCode.voter_not_found,
            f"Cannot remove voter {request.voter} from the set of voters "
            f"{[voter.key for voter in history.voters]}",
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
            "Request timed out waiting for leader to establish HWM",
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
