"""What voters and observers say to each other, as the state machine sees it (KIP-595, 630, 853, 996).

One dataclass a request, one an answer, with what the newest versions of Kafka's messages carry: Vote
v2, BeginQuorumEpoch v1, EndQuorumEpoch v1, Fetch v17, FetchSnapshot v1, Add-, Remove- and
UpdateRaftVoter. The wire's topics and partitions are left out: there is one log. Offsets named "end"
are exclusive. A `leader_id` of -1 is nobody known.
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
class Request:
    """`cluster_id` is None where the sender knows none."""

    _: KW_ONLY
    cluster_id: str | None = None


@value_class
class Response:
    """With the epoch and leader that the answering node knows."""

    _: KW_ONLY
    error: ErrorCode = ErrorCode.none
    epoch: int = 0
    leader_id: int = NO_LEADER
    leader_endpoints: Endpoints = ()


@value_class
class VoteRequest(Request):
    """`voter` is whom the request means to ask; None in version 0. A pre-vote binds nobody: its
    `epoch` is the one the sender is in, where a candidate's is the one it campaigns for."""

    _: KW_ONLY
    voter: ReplicaKey | None = None
    epoch: int
    candidate: ReplicaKey
    last_epoch: int
    end_offset: int
    pre_vote: bool = False


@value_class
class VoteResponse(Response):
    _: KW_ONLY
    granted: bool = False


@value_class
class BeginEpochRequest(Request):
    _: KW_ONLY
    voter: ReplicaKey | None = None
    leader_id: int
    epoch: int
    leader_endpoints: Endpoints = ()


@value_class
class BeginEpochResponse(Response):
    pass


@value_class
class EndEpochRequest(Request):
    """`successors` are the voters with the most of the log first."""

    _: KW_ONLY
    leader_id: int
    epoch: int
    successors: tuple[ReplicaKey, ...] = ()
    leader_endpoints: Endpoints = ()


@value_class
class EndEpochResponse(Response):
    pass


@value_class
class FetchRequest(Request):
    """Whoever fetches from `fetch_offset` has all below it on its disk, if it may ever vote."""

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
    """Where an epoch ends in a log."""

    epoch: int
    end_offset: int


@value_class
class FetchResponse(Response):
    """`diverging`, `snapshot_id` or `records`: one of them at most. The driver puts the records in:
    the machine never looks at them."""

    _: KW_ONLY
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: EpochEndOffset | None = None
    snapshot_id: SnapshotId | None = None
    records: Any = None


@value_class
class FetchSnapshotRequest(Request):
    """`position` and `max_bytes` are in bytes of the snapshot's file."""

    _: KW_ONLY
    replica: ReplicaKey
    epoch: int
    snapshot_id: SnapshotId
    position: int
    max_bytes: int = 0


@value_class
class FetchSnapshotResponse(Response):
    """`size` is the whole file's; the driver reads `data`, from `position` on."""

    _: KW_ONLY
    snapshot_id: SnapshotId | None = None
    size: int = 0
    position: int = 0
    data: bytes = b""


@value_class
class AddVoterRequest(Request):
    _: KW_ONLY
    voter: Voter
    ack_when_committed: bool = True
    timeout_ms: int = 0


@value_class
class AddVoterResponse(Response):
    _: KW_ONLY
    message: str | None = None


@value_class
class RemoveVoterRequest(Request):
    _: KW_ONLY
    voter: ReplicaKey


@value_class
class RemoveVoterResponse(Response):
    _: KW_ONLY
    message: str | None = None


@value_class
class UpdateVoterRequest(Request):
    _: KW_ONLY
    voter: Voter
    epoch: int


@value_class
class UpdateVoterResponse(Response):
    pass


@value_class
class ApiVersionsRequest(Request):
    """Sent to who is to become a voter: which levels of kraft.version does it support?"""


@value_class
class ApiVersionsResponse(Response):
    _: KW_ONLY
    kraft_versions: tuple[int, int] | None = None
