"""Files in `__cluster_metadata-0` that state how far the metadata log was durable. Kafka has neither and ignores them.

After a restart, a log that ends before an offset in one of them has lost records that were synced. A torn tail, which
was not synced, ends after it.

| file | contents | written |
|---|---|---|
| `recovery-point-offset-checkpoint` | the recovery point, in Kafka's checkpoint format | atomically, at start and stop, and every ten seconds |
| `acknowledged-end-offset` | the end that this node reported as durable to other voters | in place after each flush; synced with the recovery point |

Both have a CRC-32C. A corrupt file is logged and not used.
"""

from __future__ import annotations

import logging
from typing import Final

from odradek.protocol.records.crc32c import crc32c
from odradek.protocol.topics import TopicPartition
from odradek.replication.raft.election_state import OffsetAndEpoch
from odradek.seams.files import File, Files, Path
from odradek.storage.directories.checkpoints import Checkpoint, CorruptCheckpoint, format, parse

log = logging.getLogger("odradek.metadata")

RECOVERY_POINT: Final = Checkpoint.RECOVERY_POINT.value
ACKNOWLEDGED_END: Final = "acknowledged-end-offset"
CRC_ENTRY: Final = TopicPartition("crc32c", 0)
"""Entry of the recovery point checkpoint whose offset is the CRC-32C of the checkpoint without it."""
SLOT_BYTES: Final = 4096
"""Distance of the two slots: no write of a disk sector contains both."""
NOTHING_ACKNOWLEDGED: Final = OffsetAndEpoch(0, 0)


class RecoveryPointFile:
    """Recovery point checkpoint of the metadata log."""

    def __init__(self, files: Files, directory: Path, of: TopicPartition) -> None:
        self._files = files
        self._of = of
        self.path = directory / RECOVERY_POINT
        self.offset = 0
        """Offset in the file; 0 without a file."""
        self._is_outdated = False

    def load(self) -> None:
        """Read the file; a missing or corrupt one yields offset 0. Raises OSError."""
        if not self._files.exists(self.path):
            return
        try:
            self.offset = self._parse(self._files.read(self.path))
        except CorruptCheckpoint as error:
            self._is_outdated = True
            log.warning(
                "%s is corrupt (%s): it is not used, and it is written again. Log recovery checks the log from its "
                "start, but cannot detect whether records at its end are missing",
                self.path,
                error,
            )

    def _parse(self, data: bytes) -> int:
        """Recovery point of a checkpoint. Earlier versions wrote no CRC. Raises CorruptCheckpoint."""
        offsets = parse(data)
        crc = offsets.pop(CRC_ENTRY, None)
        self._is_outdated = crc is None
        if crc is not None and crc != crc32c(format(offsets)):
            raise CorruptCheckpoint("the CRC is wrong")
        if offsets.keys() != {self._of}:
            raise CorruptCheckpoint(f"it must contain {self._of} only")
        return offsets[self._of]

    def write(self, offset: int) -> None:
        """Store durably that all records below `offset` are durable. Raises OSError."""
        if offset != self.offset or self._is_outdated:
            offsets = {self._of: offset}
            self._files.write_new(
                self.path, format({**offsets, CRC_ENTRY: crc32c(format(offsets))})
            )
            self.offset, self._is_outdated = offset, False


class AcknowledgedEndFile:
    """The largest log end that this node has reported as durable, in a Fetch request or as leader.

    It is only lowered if the leader truncates the log. The file has two slots, which are written in turn, so that one is
    always complete. A slot may be lost with the power, but never together with the last value of a checkpoint.
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self.path = directory / ACKNOWLEDGED_END
        self.end = NOTHING_ACKNOWLEDGED
        """End in the file; of an empty log without a file."""
        self._file: File | None = None
        self._slot = 0
        self._is_written = False
        """Whether the file exists and is valid."""
        self._needs_sync = False

    def load(self) -> None:
        """Read the file; a missing or corrupt one yields the end of an empty log. Raises OSError."""
        if not self._files.exists(self.path):
            return
        data = self._files.read(self.path)
        slots = [_parse_slot(data[start : start + SLOT_BYTES]) for start in (0, SLOT_BYTES)]
        ends = [each for each in slots if each is not None]
        if not ends:
            log.warning("%s is corrupt: it is not used, and it is written again", self.path)
            return
        self.end = max(ends)
        self._slot = slots.index(self.end)
        self._is_written = True

    def advance(self, end: OffsetAndEpoch) -> None:
        """Store a later end, after the log was synced up to it; earlier ends are ignored. Raises OSError."""
        if end <= self.end and self._is_written:
            return
        if not self._is_written:
            self.replace(max(end, self.end))
            return
        if self._file is None:
            self._file = self._files.open(self.path, write=True)
        slot = 1 - self._slot
        self._file.write_at(slot * SLOT_BYTES, _slot(end))
        self.end, self._slot, self._needs_sync = end, slot, True

    def remember(self, end: OffsetAndEpoch) -> None:
        """Store a later end durably; in memory also if that fails. Raises OSError."""
        if end > self.end:
            self.end = end
            self.replace(end)

    def replace(self, end: OffsetAndEpoch) -> None:
        """Replace the end durably, also by an earlier one. Raises OSError."""
        self._files.write_new(self.path, _slot(end).ljust(SLOT_BYTES) * 2)
        self.close()
        self.end, self._is_written, self._needs_sync = end, True, False

    def limit(self, end: OffsetAndEpoch) -> None:
        """Lower the end durably, because the log is truncated. Raises OSError."""
        if self.end > end:
            self.replace(end)

    def sync(self) -> None:
        """Make the last `advance` durable. Raises OSError."""
        if self._needs_sync and self._file is not None:
            self._file.sync()
        self._needs_sync = False

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _slot(end: OffsetAndEpoch) -> bytes:
    text = f"1 epoch {end.epoch:010d} offset {end.end_offset:019d} crc32c ".encode("ascii")
    return text + f"{crc32c(text):08x}\n".encode("ascii")


def _parse_slot(data: bytes) -> OffsetAndEpoch | None:
    fields = data.split(b"\n", 1)[0].split()
    if len(fields) != 7 or not (fields[2].isdigit() and fields[4].isdigit()):
        return None
    end = OffsetAndEpoch(int(fields[2]), int(fields[4]))
    return end if data.startswith(_slot(end)) else None
