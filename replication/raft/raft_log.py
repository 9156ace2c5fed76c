"""The log as the quorum's state machine sees it, and what two logs tell of each other by it.

A log is told from another by its epochs: two logs that hold the same epoch at the same offset are the
same up to there, because an epoch has one leader and that appends once (KIP-595, "Truncation").
"""

from __future__ import annotations

from typing import Protocol

from odradek.replication.raft.election_state import OffsetAndEpoch
from odradek.replication.raft.messages import EpochEndOffset
from odradek.replication.raft.snapshots import SnapshotId
from odradek.seams.values import value_class

NOTHING = SnapshotId(0, 0)
"""The snapshot that formatting writes: it holds no record."""


class RaftLog(Protocol):
    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """Of the last record; of the newest snapshot if there is none; else 0."""
        ...

    @property
    def earliest_snapshot(self) -> SnapshotId | None: ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    def snapshot_size(self, snapshot_id: SnapshotId) -> int | None:
        """Bytes of its file; None if there is no such snapshot."""
        ...

    def end_of_epoch(self, epoch: int) -> EpochEndOffset:
        """The largest epoch in the log that is not above `epoch`, and where it ends.

        Below all there is: `epoch` itself, and the log's start. Above all: the last one.
        """
        ...


@value_class
class ValidOffset:
    """The replica's log is a prefix of this one."""


OffsetValidation = ValidOffset | EpochEndOffset | SnapshotId


def log_end(log: RaftLog) -> OffsetAndEpoch:
    return OffsetAndEpoch(log.last_epoch, log.end_offset)


def validate_offset_and_epoch(log: RaftLog, fetch_offset: int, last_epoch: int) -> OffsetValidation:
    """Whether a replica whose log ends at `fetch_offset`, in `last_epoch`, may read on there.

    ValidOffset; an EpochEndOffset: it must truncate to that first; a SnapshotId: the log no longer reaches back
    far enough, it must fetch that snapshot. An empty replica always gets a snapshot, if there is one.
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
    """Where a follower cuts its log, told where the leader's log ends `diverging.epoch`."""
    if diverging.epoch == 0:
        return min(diverging.end_offset, log.end_offset)
    mine = log.end_of_epoch(diverging.epoch)
    if mine.epoch == diverging.epoch:
        return min(mine.end_offset, diverging.end_offset)
    return mine.end_offset
