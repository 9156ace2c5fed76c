"""State of a follower in its epoch (Kafka's `FollowerState`): leader, fetch timeout, snapshot being
fetched.

One fetch is in flight at a time, and none while the last response changes the log: the fetch offset
must be durable, and two fetches could return the same records.
"""

from __future__ import annotations

from dataclasses import field

from odradek.replication.raft.messages import Endpoints, FetchSnapshotResponse
from odradek.replication.raft.snapshots import SnapshotId
from odradek.seams.values import state_class


@state_class
class SnapshotDownloadState:
    """A snapshot that is being fetched; `position` is the number of bytes received."""

    snapshot_id: SnapshotId
    position: int = 0

    def accepts(self, piece: FetchSnapshotResponse) -> bool:
        """Whether this response continues the snapshot at `position`."""
        return piece.snapshot_id == self.snapshot_id and piece.position == self.position

    def arrived(self, piece: FetchSnapshotResponse) -> bool:
        """Advance the position; returns whether the snapshot is complete."""
        self.position += len(piece.data)
        return self.position >= piece.size


@state_class
class FollowerState:
    """State while following `leader_id`.

    `fetch_until_ms`: end of the fetch timeout. `has_leader_responded`: the leader has responded in this epoch, so
    pre-votes are rejected (KIP-996). `endpoint_confirmed`: it responded at `endpoints`, not only as a bootstrap server.
    `leader_stopped`: its host has refused a connection since.
    """

    leader_id: int
    endpoints: Endpoints
    fetch_until_ms: int
    update_voter_at_ms: int
    has_leader_responded: bool = False
    endpoint_confirmed: bool = False
    leader_stopped: bool = False
    has_sent_voter_update: bool = False
    changing_log: bool = False
    leader_high_watermark: int = -1  # of the response whose records are being appended
    download: SnapshotDownloadState | None = field(default=None)

    def reset_fetch_timeout(self, now_ms: int, fetch_timeout_ms: int) -> None:
        """The leader responded: restart the fetch timeout."""
        self.has_leader_responded, self.leader_stopped = True, False
        self.fetch_until_ms = now_ms + fetch_timeout_ms

    def connection_refused(self, election_at_ms: int) -> None:
        """The leader's host refused a connection. Ignored if the leader never responded there:
        the endpoints may be wrong."""
        if self.has_leader_responded and self.endpoint_confirmed:
            self.has_leader_responded = self.endpoint_confirmed = False
            self.shorten_fetch_timeout(election_at_ms)

    def shorten_fetch_timeout(self, election_at_ms: int) -> None:
        """Shorten the fetch timeout, because the leader has stopped."""
        self.leader_stopped = True
        self.fetch_until_ms = min(self.fetch_until_ms, election_at_ms)
