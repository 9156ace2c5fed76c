"""Interface of the log for the Raft state machine, and offset validation (Kafka's `RaftLog`).

Two logs with the same epoch at the same offset are equal up to there, because an epoch has one
leader (KIP-595, "Truncation").
"""

from __future__ import annotations

from typing import Protocol

from odradek.replication.raft.election_state import OffsetAndEpoch
from odradek.replication.raft.messages import EpochEndOffset
from odradek.replication.raft.snapshots import SnapshotId
from odradek.seams.values import value_class

NOTHING = SnapshotId(0, 0)
"""The empty snapshot that formatting writes."""


class RaftLog(Protocol):
    """Read access to the metadata log."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record, else of the newest snapshot, else 0."""
        ...

    @property
    def acknowledged_end(self) -> OffsetAndEpoch:
        """Largest log end that this node has reported as durable. The log ends before it if records were lost."""
        ...

    @property
    def earliest_snapshot(self) -> SnapshotId | None: ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    def snapshot_size(self, snapshot_id: SnapshotId) -> int | None:
        """Size of the snapshot file in bytes; None if it does not exist."""
        ...

    def end_of_epoch(self, epoch: int) -> EpochEndOffset:
        """Largest epoch not above `epoch`, with its end offset."""
        ...


@value_class
class ValidOffset:
    """The fetching replica's log is a prefix of this log."""


OffsetValidation = ValidOffset | EpochEndOffset | SnapshotId


def log_end(log: RaftLog) -> OffsetAndEpoch:
    return OffsetAndEpoch(log.last_epoch, log.end_offset)


def election_end(log: RaftLog) -> OffsetAndEpoch:
    """Log end that a voter compares with those of candidates: with the records that its disk has lost.

    A majority may have committed them because this voter had acknowledged them.
    """
    return max(log_end(log), log.acknowledged_end)


def validate_offset_and_epoch(log: RaftLog, fetch_offset: int, last_epoch: int) -> OffsetValidation:
    """Validate a fetch at `fetch_offset` after `last_epoch` (Kafka's `validateOffsetAndEpoch`).

    Returns ValidOffset, the EpochEndOffset to truncate to, or the SnapshotId to fetch if the log no
    longer contains the offset. An empty replica fetches the newest snapshot, if there is one.
    """
    latest, earliest = log.latest_snapshot, log.earliest_snapshot
    if fetch_offset == 0 and latest is not None and latest != NOTHING:
        return latest
    if fetch_offset == 0 and log.start_offset == 0:
        return ValidOffset()
    if earliest is not None and latest is not None:
        too_old = fetch_offset < log.start_offset or last_epoch < earliest.epoch
        at_start = fetch_offset == log.start_offset and last_epoch != earliest.epoch
        if too_old or at_start:
            return latest
    mine = log.end_of_epoch(last_epoch)
    if mine.epoch != last_epoch or mine.end_offset < fetch_offset:
        return mine
    return ValidOffset()


def truncation_offset(log: RaftLog, diverging: EpochEndOffset) -> int:
    """Offset to which a follower truncates, given the leader's diverging epoch."""
    if diverging.epoch == 0:
        return min(diverging.end_offset, log.end_offset)
    mine = log.end_of_epoch(diverging.epoch)
    if mine.epoch == diverging.epoch:
        return min(mine.end_offset, diverging.end_offset)
    return mine.end_offset
