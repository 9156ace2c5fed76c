"""Invariants of a quorum, checked after every action of its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.replication.raft.election_state import ElectionState, OffsetAndEpoch
from odradek.replication.raft.messages import FetchRequest
from odradek.replication.raft.raft_client import RaftClient
from odradek.replication.raft.voters import ReplicaKey, Voter
from tests.replication.raft.memory_raft_log import Entry, MemoryLog


class Violation(AssertionError):
    """A broken invariant."""


class Caller(NamedTuple):
    """Caller of a request: node, its run, and request number. A restart drops its connections."""

    id: int
    run_number: int
    number: int


def _has(log: MemoryLog, end_offset: int, last: Entry) -> bool:
    """Whether a record is on the disk of a node, or was acknowledged by it and lost with the disk."""
    if len(log.entries) < end_offset:
        return log.acknowledged_end >= OffsetAndEpoch(last.epoch, end_offset)
    return log.durable_end >= end_offset and log.entries[end_offset - 1] == last


@dataclass(slots=True)
class Node:
    """A node: its disk, and its Raft client while it runs."""

    me: Voter
    log: MemoryLog
    election: ElectionState = field(default_factory=ElectionState)
    quorum: RaftClient | None = None
    run_number: int = 0
    clock_ahead_ms: int = 0
    flushing: bool = False
    tick_at: int | None = None
    waiting_fetches: list[tuple[FetchRequest, Caller, int]] = field(default_factory=list)
    pending: dict[int, Caller] = field(default_factory=dict)
    high_watermark: int = -1
    led: tuple[int, int] = (-1, -1)  # epoch and the high watermark in it

    @property
    def id(self) -> int:
        return self.me.id


class History:
    """All votes and records of a simulation, and the committed records."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.committed: list[Entry] = []
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], ReplicaKey] = {}

    def vote(self, voter_id: int, epoch: int, candidate: ReplicaKey) -> None:
        before = self.votes.setdefault((voter_id, epoch), candidate)
        if before != candidate:
            raise Violation(f"{voter_id} votes for {before} and {candidate} in epoch {epoch}")

    def leader(self, node: Node) -> None:
        assert node.quorum is not None
        epoch = node.quorum.epoch
        before = self.leaders.setdefault(epoch, node.id)
        if before != node.id:
            raise Violation(f"epoch {epoch} is led by {before} and {node.id}")
        if node.log.entries[: len(self.committed)] != self.committed:
            raise Violation(f"{node.id} leads epoch {epoch} without all that is committed")

    def committed_by(self, node: Node, high_watermark: int) -> None:
        """Compare a high watermark with the disks of the voters, or with the committed records on a follower."""
        quorum, entries = node.quorum, node.log.entries
        assert quorum is not None
        checked = max(node.high_watermark, 0)
        if high_watermark > len(entries):
            raise Violation(f"{node.id} commits {high_watermark} of {len(entries)}")
        known = min(len(self.committed), high_watermark)
        if entries[checked:known] != self.committed[checked:known]:
            raise Violation(f"{node.id} commits other records than others below {high_watermark}")
        if high_watermark > len(self.committed):
            last = entries[high_watermark - 1]
            having = [
                each.id
                for each in quorum.voters
                if _has(self.nodes[each.id].log, high_watermark, last)
            ]
            if len(having) * 2 <= len(quorum.voters):
                raise Violation(f"only {having} of {quorum.voters.ids} have {high_watermark}")
            self.committed += entries[len(self.committed) : high_watermark]

    def high_watermark(self, node: Node) -> None:
        quorum = node.quorum
        assert quorum is not None
        if quorum.high_watermark < node.high_watermark:
            raise Violation(f"{node.id} goes back from {node.high_watermark}")
        node.high_watermark = quorum.high_watermark
        if quorum.leadership is not None:
            epoch, before = node.led
            now = quorum.leadership.high_watermark
            if epoch == quorum.epoch and now < before:
                raise Violation(f"leader {node.id} goes back from {before} to {now}")
            node.led = (quorum.epoch, now)
