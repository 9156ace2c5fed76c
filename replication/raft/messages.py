"""Requests and responses of the Raft protocol, as the state machine uses them (KIP-595, 630, 853,
996).

One class per message, with the fields of Kafka's newest versions: Vote v2, BeginQuorumEpoch v1,
EndQuorumEpoch v1, Fetch v17, FetchSnapshot v1, Add-, Remove- and UpdateRaftVoter. Topics and
partitions are omitted: there is one log. End offsets are exclusive. A `leader_id` of -1 means
unknown.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.snapshots import SnapshotId
from odradek.replication.raft.voters import NO_LEADER, ReplicaKey, Voter, VoterEndpoint
from odradek.seams.values import value_class

Endpoints = tuple[VoterEndpoint, ...]


@value_class
class RaftRequest:
    """Base of all requests; `cluster_id` is None if the sender does not know it."""

    _: KW_ONLY
    cluster_id: str | None = None


@value_class
class RaftResponse:
    """Base of all responses, with the epoch and leader known to the responding node."""

    _: KW_ONLY
    error: ErrorCode = ErrorCode.none
    epoch: int = 0
    leader_id: int = NO_LEADER
    leader_endpoints: Endpoints = ()


@value_class
class VoteRequest(RaftRequest):
    """`voter` is the intended receiver (None in version 0). A candidate's `epoch` is its new
    epoch, that of a pre-vote the current one."""

    _: KW_ONLY
    voter: ReplicaKey | None = None
    epoch: int
    candidate: ReplicaKey
    last_epoch: int
    end_offset: int
    pre_vote: bool = False


@value_class
class VoteResponse(RaftResponse):
    _: KW_ONLY
    granted: bool = False


@value_class
class BeginEpochRequest(RaftRequest):
    _: KW_ONLY
    voter: ReplicaKey | None = None
    leader_id: int
    epoch: int
    leader_endpoints: Endpoints = ()


@value_class
class BeginEpochResponse(RaftResponse):
    pass


@value_class
class EndEpochRequest(RaftRequest):
    """`successors` are the voters by end offset, largest first."""

    _: KW_ONLY
    leader_id: int
    epoch: int
    successors: tuple[ReplicaKey, ...] = ()
    leader_endpoints: Endpoints = ()


@value_class
class EndEpochResponse(RaftResponse):
    pass


@value_class
class FetchRequest(RaftRequest):
    """A voter has all records below `fetch_offset` on disk."""

    _: KW_ONLY
    replica: ReplicaKey
    epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int = -1
    max_wait_ms: int = 0
    max_bytes: int = 0


@value_class
class EpochEndOffset:
    """An epoch and its end offset in a log."""

    epoch: int
    end_offset: int


@value_class
class FetchResponse(RaftResponse):
    """Response of a Fetch. At most one of `diverging`, `snapshot_id` and `records` is set. The driver adds the
    records."""

    _: KW_ONLY
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: EpochEndOffset | None = None
    snapshot_id: SnapshotId | None = None
    records: Any = None


@value_class
class FetchSnapshotRequest(RaftRequest):
    """`position` and `max_bytes` are bytes of the snapshot file."""

    _: KW_ONLY
    replica: ReplicaKey
    epoch: int
    snapshot_id: SnapshotId
    position: int
    max_bytes: int = 0


@value_class
class FetchSnapshotResponse(RaftResponse):
    """`size` is the size of the file in bytes; the driver adds `data` from `position` on."""

    _: KW_ONLY
    snapshot_id: SnapshotId | None = None
    size: int = 0
    position: int = 0
    data: bytes = b""


@value_class
class AddVoterRequest(RaftRequest):
    _: KW_ONLY
    voter: Voter
    ack_when_committed: bool = True
    timeout_ms: int = 0


@value_class
class AddVoterResponse(RaftResponse):
    _: KW_ONLY
    message: str | None = None


@value_class
class RemoveVoterRequest(RaftRequest):
    _: KW_ONLY
    voter: ReplicaKey


@value_class
class RemoveVoterResponse(RaftResponse):
    _: KW_ONLY
    message: str | None = None


@value_class
class UpdateVoterRequest(RaftRequest):
    _: KW_ONLY
    voter: Voter
    epoch: int


@value_class
class UpdateVoterResponse(RaftResponse):
    pass


@value_class
class ApiVersionsRequest(RaftRequest):
    """Sent to a new voter for its supported range of kraft.version."""


@value_class
class ApiVersionsResponse(RaftResponse):
    _: KW_ONLY
    kraft_versions: tuple[int, int] | None = None
