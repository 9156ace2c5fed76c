"""The time index: from a timestamp to an offset (Kafka's `.timeindex`).

An entry of 12 bytes (timestamp i64, relative offset i32) says: the largest timestamp up to here is
`timestamp`, and the first batch that has it ends at `offset`; every later timestamp comes after it.
One is written together with an entry of the offset index when the largest timestamp has grown since
the last, and one when the segment is sealed or closed. Timestamps and offsets only grow.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from odradek.seams.files import Buffer, Files, Path
from odradek.storage.log.index_file import CorruptIndex, IndexFile

ENTRY = struct.Struct(">qi")
_TIMESTAMP = struct.Struct(">q")
_INT = struct.Struct(">i")
NO_TIMESTAMP = -1


class TimeIndex(IndexFile):
    """See the module. `last` is the last entry's (timestamp, offset); (-1, base) if none."""

    __slots__ = ("base_offset", "last")

    def __init__(self, files: Files, path: Path, base_offset: int) -> None:
        super().__init__(files, path, ENTRY.size)
        self.base_offset = base_offset
        self.last = (NO_TIMESTAMP, base_offset)

    def load(self, segment_bytes: int) -> None:
        """Open a trimmed index and check it: a sealed segment that is not empty has an entry.

        One of zeros is taken for a file that never was written. Raises CorruptIndex,
        FileNotFoundError.
        """
        self.open()
        self._read_last()
        timestamp, offset = self.last
        (first,) = _TIMESTAMP.unpack_from(self.entry(0)) if self.count else (NO_TIMESTAMP,)
        if self.count > 1:
            is_sound = 0 <= first < timestamp and offset > self.base_offset
        elif self.count:
            is_sound = timestamp >= 0 and self.last != (0, self.base_offset)
        else:
            is_sound = not segment_bytes
        if not is_sound:
            raise CorruptIndex(
                f"{self.path} goes from timestamp {first} to {timestamp} at offset {offset}"
            )

    def _read_last(self) -> None:
        self.last = (NO_TIMESTAMP, self.base_offset)
        if self.count:
            timestamp, relative = ENTRY.unpack(self.entry(self.count - 1))
            self.last = (timestamp, self.base_offset + relative)

    def append(self, entries: Sequence[tuple[int, int]]) -> None:
        """Add those entries (timestamp, offset) whose timestamp is past the last one's, in one write; room
        must have been reserved."""
        last, later = self.last, []
        for entry in entries:
            if entry[0] > last[0]:
                later.append(ENTRY.pack(entry[0], entry[1] - self.base_offset))
                last = entry
        if later:
            self.add(b"".join(later))
            self.last = last

    def lookup(self, timestamp: int, *, mapped: bool = True) -> int:
        """The offset to look from for the first record at or after `timestamp`."""
        last_timestamp, last_offset = self.last
        if timestamp >= last_timestamp:
            return last_offset

        def find(view: Buffer) -> int:
            low, high = -1, len(view) // 12
            while high - low > 1:
                middle = (low + high) // 2
                if _TIMESTAMP.unpack_from(view, middle * 12)[0] <= timestamp:
                    low = middle
                else:
                    high = middle
            return self.base_offset + (0 if low < 0 else _INT.unpack_from(view, low * 12 + 8)[0])

        return self.search(find, mapped=mapped)

    def _count_below(self, offset: int) -> int:
        """How many entries lie below `offset`."""
        relative = offset - self.base_offset
        low, high = -1, self.count
        while high - low > 1:
            middle = (low + high) // 2
            if _INT.unpack_from(self.entry(middle), 8)[0] < relative:
                low = middle
            else:
                high = middle
        return low + 1

    def truncated(self, offset: int) -> TimeIndex:
        """A new index of the entries below `offset`; its file replaces ours."""
        fresh = TimeIndex(self._files, self.path, self.base_offset)
        fresh.take_place(self.file.read_at(0, self._count_below(offset) * ENTRY.size))
        fresh._read_last()
        return fresh

    def reopen(self, offset: int) -> None:
        """Before appends go on: forget the entry that was written on closing, past `offset`."""
        self.count = self._count_below(offset + 1)
        self._read_last()

    def rebuild(self, keep: int, entries: bytes | bytearray) -> None:
        """Keep the first `keep` entries, write these after them (recovery)."""
        self.restore(keep, entries)
        self._read_last()
