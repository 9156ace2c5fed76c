"""Raft log in memory: flushed records survive a crash, others do not."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from odradek.replication.raft.election_state import OffsetAndEpoch
from odradek.replication.raft.messages import EpochEndOffset
from odradek.replication.raft.snapshots import SnapshotId
from odradek.replication.raft.voter_history import ControlChange


@dataclass(frozen=True, slots=True)
class Entry:
    """A record: a `value` of the leader of `epoch`, or a change of the voters or of kraft.version."""

    epoch: int
    value: object
    change: ControlChange | None = None


class MemoryLog:
    """Log whose `entries` also keep those below `start_offset`, for comparison."""

    def __init__(self, epochs: Iterable[int] = ()) -> None:
        self.entries: list[Entry] = []
        self.start_offset = 0
        self.durable_end = 0
        self.acknowledged_end = OffsetAndEpoch(0, 0)
        self.snapshots: list[SnapshotId] = []
        self._epochs: list[tuple[int, int]] = []  # epoch, start offset
        self.append([Entry(epoch, None) for epoch in epochs])
        self.flush()

    @property
    def end_offset(self) -> int:
        return len(self.entries)

    @property
    def last_epoch(self) -> int:
        return self.entries[-1].epoch if self.entries else 0

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[0] if self.snapshots else None

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    def snapshot_size(self, snapshot_id: SnapshotId) -> int | None:
        return snapshot_id.end_offset if snapshot_id in self.snapshots else None

    def end_of_epoch(self, epoch: int) -> EpochEndOffset:
        known = [each for each in self._epochs if self._ends_past_start(each)]
        slot = bisect_right(known, epoch, key=lambda each: each[0])
        if slot == len(known):
            return EpochEndOffset(self.last_epoch, self.end_offset)
        if slot == 0:
            return EpochEndOffset(epoch, max(known[0][1], self.start_offset))
        return EpochEndOffset(known[slot - 1][0], known[slot][1])

    def _ends_past_start(self, epoch: tuple[int, int]) -> bool:
        later = [start for number, start in self._epochs if number > epoch[0]]
        return not later or later[0] > self.start_offset

    def append(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.epoch != self.last_epoch or not self._epochs:
                self._epochs.append((entry.epoch, self.end_offset))
            self.entries.append(entry)

    def changes(self, start: int = 0) -> list[ControlChange]:
        return [entry.change for entry in self.entries[start:] if entry.change is not None]

    def flush(self) -> None:
        self.synced(self.end_offset)

    def synced(self, end_offset: int) -> None:
        """Everything below an offset is durable."""
        self.durable_end = max(self.durable_end, end_offset)
        if end_offset > 0:
            epoch = self.entries[end_offset - 1].epoch
            self.acknowledged_end = max(self.acknowledged_end, OffsetAndEpoch(epoch, end_offset))

    def truncate(self, end_offset: int) -> None:
        """Truncate the log because the leader's log diverges."""
        self.lose(end_offset)
        self.acknowledged_end = min(
            self.acknowledged_end, OffsetAndEpoch(self.last_epoch, self.end_offset)
        )

    def lose(self, end_offset: int) -> None:
        """Lose the records from an offset on, without noticing."""
        del self.entries[end_offset:]
        self.durable_end = min(self.durable_end, end_offset)
        self._epochs = [each for each in self._epochs if each[1] < end_offset]

    def crash(self) -> None:
        self.lose(self.durable_end)

    def snapshot(self, end_offset: int) -> None:
        """Write a snapshot of all entries below an offset, and delete these."""
        self.snapshots = [SnapshotId(end_offset, self.entries[end_offset - 1].epoch)]
        self.start_offset = end_offset

    def install(self, entries: Iterable[Entry], snapshot_id: SnapshotId) -> None:
        """Replace the log by a snapshot."""
        self.lose(0)
        self.append(entries)
        self.flush()
        self.snapshots = [snapshot_id]
        self.start_offset = snapshot_id.end_offset
