"""A replica's log in memory: records that know their epoch, and the storage's history of leaders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from odradek.storage.log.epochs import LeaderEpochCache
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles

Record = tuple[int, str]
"""(epoch of the leader that appended it, what it says)"""


class MemoryLog:
    """Has what `replication/partition` asks of a log, and does what it is told."""

    def __init__(self, min_insync_replicas: int = 1) -> None:
        self.records: list[Record] = []
        """From offset 0 on, those below `start_offset` too."""
        self.start_offset = 0
        self.high_watermark = 0
        self.min_insync_replicas = min_insync_replicas
        self.epochs = LeaderEpochCache(
            VirtualFiles(VirtualDisk()), Path("/log"), lambda: self.end_offset
        )

    @property
    def end_offset(self) -> int:
        return len(self.records)

    def append(self, *records: Record) -> None:
        for record in records:
            self.epochs.assign(record[0], self.end_offset)
            self.records.append(record)

    def write(self, epoch: int, *said: str) -> None:
        self.append(*((epoch, each) for each in said))

    def read(self, offset: int, count: int) -> Sequence[Record]:
        return self.records[offset : offset + count]

    def truncate_to(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs.truncate_from_end(offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.start_offset = min(self.start_offset, offset)

    def trim(self, offset: int) -> None:
        """What is below goes, as DeleteRecords and retention have it."""
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.truncate_from_start(offset)

    def start_anew(self, offset: int) -> None:
        self.records = [(-1, "")] * offset
        self.epochs.clear()
        self.start_offset = self.high_watermark = offset

    def told(self) -> str:
        """`a0 b0 c1`: what it says and in which epoch."""
        return " ".join(f"{said}{epoch}" for epoch, said in self.records[self.start_offset :])
