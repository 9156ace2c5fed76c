"""Log of a replica in memory: records with leader epochs, and a LeaderEpochCache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from odradek.storage.log.leader_epoch_cache import EpochStart, LeaderEpochCache
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles

Record = tuple[int, str]
"""(leader epoch of the append, content)"""


class MemoryLog:
    """Log with the interface that `replication/partition` uses."""

    def __init__(self, min_insync_replicas: int = 1) -> None:
        self.records: list[Record] = []
        """All records from offset 0, including those below `start_offset`."""
        self.start_offset = 0
        self.local_start = 0
        """Records below are only in the remote tier; `records` keeps them for comparison."""
        self.high_watermark = 0
        self.min_insync_replicas = min_insync_replicas
        self.epochs = LeaderEpochCache(
            VirtualFiles(VirtualDisk()), Path("/log"), lambda: self.end_offset
        )

    @property
    def end_offset(self) -> int:
        return len(self.records)

    @property
    def reported_end_offset(self) -> int:
        return self.end_offset

    def append(self, *records: Record) -> None:
        for record in records:
            self.epochs.assign(record[0], self.end_offset)
            self.records.append(record)

    def write(self, epoch: int, *text: str) -> None:
        self.append(*((epoch, each) for each in text))

    def read(self, offset: int, count: int) -> Sequence[Record]:
        return self.records[offset : offset + count]

    def truncate_to(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs.truncate_from_end(offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.start_offset = min(self.start_offset, offset)
        self.local_start = min(self.local_start, offset)

    def trim(self, offset: int) -> None:
        """Delete the records below an offset, as DeleteRecords and retention do."""
        if offset > self.start_offset:
            self.start_offset = offset
            self.local_start = max(self.local_start, offset)
            self.epochs.truncate_from_start(offset)

    def truncate_fully(
        self, offset: int, start_offset: int | None = None, epochs: Sequence[EpochStart] = ()
    ) -> None:
        """Make the log empty, with log end offset `offset`.

        With a `start_offset`, the records from it are in the remote tier, and the caller sets them in `records`.
        """
        self.records = [(-1, "")] * offset
        self.epochs.restore(tuple(epochs))
        self.start_offset = offset if start_offset is None else start_offset
        self.local_start = self.high_watermark = offset

    def described(self) -> str:
        """Return contents with epochs: `a0 b0 c1`, or `a0 b0 | c1` if only the tier has the first two."""
        described = [f"{text}{epoch}" for epoch, text in self.records[self.start_offset :]]
        if self.local_start > self.start_offset:
            described.insert(self.local_start - self.start_offset, "|")
        return " ".join(described)
