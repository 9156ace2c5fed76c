"""What a follower keeps of its epoch: its leader, its fetching, the snapshot it is being sent.

There is one fetch at a time, and none while the log is being changed by the last one's answer: a
fetch tells the leader what this node has on its disk, and two could bring the same records twice.
"""

from __future__ import annotations

from dataclasses import field

from odradek.replication.raft.messages import Endpoints, FetchSnapshotResponse
from odradek.replication.raft.snapshots import SnapshotId
from odradek.seams.values import state_class


@state_class
class SnapshotDownloadState:
    """A snapshot that the leader sends piece by piece; `position` is what has arrived, in bytes."""

    snapshot_id: SnapshotId
    position: int = 0

    def accepts(self, piece: FetchSnapshotResponse) -> bool:
        """Whether this is the next piece."""
        return piece.snapshot_id == self.snapshot_id and piece.position == self.position

    def arrived(self, piece: FetchSnapshotResponse) -> bool:
        """True if it was the last."""
        self.position += len(piece.data)
        return self.position >= piece.size


@state_class
class FollowerState:
    """`fetch_until_ms`: a voter that gets no answer until then campaigns. `leader_lives`: it has answered
    a fetch in this epoch, and has not ended since; who knows that gives no pre-vote (KIP-996). `heard_there`: it has
    answered at `endpoints`, and not as one of the bootstrap servers alone. `leader_ended`: its host refused there since,
    and no fetch was answered."""

    leader_id: int
    endpoints: Endpoints
    fetch_until_ms: int
    update_voter_at_ms: int
    leader_lives: bool = False
    heard_there: bool = False
    leader_ended: bool = False
    has_told_voter: bool = False
    changing_log: bool = False
    leader_high_watermark: int = -1  # as the answer said whose records are being appended
    download: SnapshotDownloadState | None = field(default=None)

    def heard(self, now_ms: int, fetch_timeout_ms: int) -> None:
        """The leader answered a fetch."""
        self.leader_lives, self.leader_ended = True, False
        self.fetch_until_ms = now_ms + fetch_timeout_ms

    def refused(self, campaign_at_ms: int) -> None:
        """The leader's host refuses: it has ended, if it was heard there. Where it was not, its endpoints are
        wrong, or not meant for this node; nor is it anything new where it had ended."""
        if self.leader_lives and self.heard_there:
            self.leader_lives = self.heard_there = False
            self.ended(campaign_at_ms)

    def ended(self, campaign_at_ms: int) -> None:
        """Nobody waits longer for a leader that has ended."""
        self.leader_ended = True
        self.fetch_until_ms = min(self.fetch_until_ms, campaign_at_ms)
