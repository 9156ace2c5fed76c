"""Actions that the Raft state machine requests; the driver executes them in order.

Actions after a `PersistElectionState` wait until it is durable. If it fails, the node stops, because its vote is
unknown; if the disk is full, nothing was written and the driver retries. The completion of an
action that changes the log is reported (`RaftClient.appended`, `RaftClient.truncated`, `RaftClient.installed`) before the
next event.
"""

from __future__ import annotations

from typing import Any

from odradek.replication.raft.election_state import ElectionState
from odradek.replication.raft.messages import Endpoints, RaftRequest, RaftResponse
from odradek.replication.raft.snapshots import SnapshotId
from odradek.replication.raft.voters import Voter
from odradek.seams.values import value_class


@value_class
class PersistElectionState:
    """Write the election state durably before any other action."""

    election: ElectionState


@value_class
class AppendLeaderChangeMessage:
    """Append the LeaderChangeMessage of a new epoch, and `quorum` in the same batch.

    `quorum` is kraft.version and the voters. The first leader copies them from the formatted
    snapshot, a later one adds its changed endpoints. Completed by `RaftClient.appended`.
    """

    epoch: int
    voters: tuple[int, ...]
    granted: tuple[int, ...]
    quorum: tuple[int, tuple[Voter, ...]] | None = None


@value_class
class AppendVotersRecord:
    """Append a VotersRecord, after a KRaftVersionRecord if there is a level. Completed by
    `RaftClient.appended`, or by `RaftClient.not_appended` if the disk is full."""

    epoch: int
    voters: tuple[Voter, ...]
    kraft_version: int | None = None


@value_class
class AppendFetchedRecords:
    """Append fetched batches that start at the log end, and flush if `durable`. Completed by
    `RaftClient.appended`, also if nothing was appended."""

    records: Any
    epoch: int
    durable: bool


@value_class
class TruncateLog:
    """Truncate the log to `end_offset`. Completed by `RaftClient.truncated`."""

    end_offset: int


@value_class
class CreateSnapshotFile:
    """Create the file of a fetched snapshot, and remove an earlier partial one. If the disk is
    full, `RaftClient.snapshot_abandoned` completes this and the following snapshot actions."""

    snapshot_id: SnapshotId


@value_class
class AppendSnapshotBytes:
    """Append bytes of FetchSnapshot to that file."""

    position: int
    data: bytes


@value_class
class InstallSnapshot:
    """Publish the complete snapshot, delete the log and start a new one at the snapshot's end. Completed by
    `RaftClient.installed`."""

    snapshot_id: SnapshotId


@value_class
class AdvanceHighWatermark:
    """Advance the high watermark: all records below it are committed."""

    high_watermark: int


@value_class
class SendRequest:
    """Send a request to a node. Completed by `RaftClient.handle_response` or
    `RaftClient.handle_request_failure` with this number, or by nothing.

    `to` is a node id, or BOOTSTRAP_SERVER for the next bootstrap server. `endpoints` are the
    node's. Numbers restart with each `RaftClient`; responses to requests of an earlier one must be
    dropped.
    """

    number: int
    to: int
    endpoints: Endpoints
    request: RaftRequest


@value_class
class SendResponse:
    """Send the response to a request; the driver adds the records or bytes of a fetch."""

    request: RaftRequest
    response: RaftResponse


RaftAction = (
    PersistElectionState
    | AppendLeaderChangeMessage
    | AppendVotersRecord
    | AppendFetchedRecords
    | TruncateLog
    | CreateSnapshotFile
    | AppendSnapshotBytes
    | InstallSnapshot
    | AdvanceHighWatermark
    | SendRequest
    | SendResponse
)
