"""Time index: from a timestamp to an offset (Kafka's `.timeindex`).

An entry of 12 bytes (timestamp i64, relative offset i32) means: `timestamp` is the largest so far, and
the first batch with it ends at `offset`; every later timestamp comes after it. An entry is written
together with one of the offset index if the largest timestamp has grown, and when the segment is sealed
or closed. Timestamps and offsets only increase.
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
    """Time index of a segment. `last` is the last entry's (timestamp, offset); (-1, base) if there is
    none."""

    __slots__ = ("base_offset", "last")

    def __init__(self, files: Files, path: Path, base_offset: int) -> None:
        super().__init__(files, path, ENTRY.size)
        self.base_offset = base_offset
        self.last = (NO_TIMESTAMP, base_offset)

    def load(self, segment_bytes: int) -> None:
        """Open a trimmed index and check it: an inactive segment that is not empty has an entry.

        An index of zeros counts as one that was never written. Raises CorruptIndex, FileNotFoundError.
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
                f"corrupt time index found, time index file ({self.path}) has first timestamp {first}, "
                f"last timestamp {timestamp} and last offset {offset}"
            )

    def _read_last(self) -> None:
        self.last = (NO_TIMESTAMP, self.base_offset)
        if self.count:
            timestamp, relative = ENTRY.unpack(self.entry(self.count - 1))
            self.last = (timestamp, self.base_offset + relative)

    def append(self, entries: Sequence[tuple[int, int]]) -> None:
        """Add the entries (timestamp, offset) with a larger timestamp than the last one, in one
        write; their space must be reserved."""
        last, later = self.last, []
        for entry in entries:
            if entry[0] > last[0]:
                later.append(ENTRY.pack(entry[0], entry[1] - self.base_offset))
                last = entry
        if later:
            self.add(b"".join(later))
            self.last = last

    def entry_before(self, timestamp: int) -> tuple[int, int]:
        """Entry (timestamp, offset) at whose offset a search for the first record at or after `timestamp`
        starts; (-1, base) for the segment's start.

        It is the entry before the last that is not later. So the search finds the first record also if
        one of the two is wrong. Raises CorruptIndex if they are not in order.
        """

        def find(view: Buffer) -> tuple[int, int]:
            low, high = -1, len(view) // 12
            while high - low > 1:
                middle = (low + high) // 2
                if _TIMESTAMP.unpack_from(view, middle * 12)[0] <= timestamp:
                    low = middle
                else:
                    high = middle
            if low < 1:
                return NO_TIMESTAMP, self.base_offset
            (before, relative), (found, last) = ENTRY.iter_unpack(
                view[low * 12 - 12 : low * 12 + 12]
            )
            if not (0 <= before < found and 0 <= relative < last):
                raise CorruptIndex(
                    f"its entries (ms, relative offset) do not increase from {before, relative} to {found, last}"
                )
            return before, self.base_offset + relative

        return self.search(find, mapped=False)

    def _count_below(self, offset: int) -> int:
        """Number of entries below `offset`."""
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
        """A new index with the entries below `offset`; its file replaces this one."""
        fresh = TimeIndex(self._files, self.path, self.base_offset)
        fresh.take_place(self.file.read_at(0, self._count_below(offset) * ENTRY.size))
        fresh._read_last()
        return fresh

    def reopen(self, offset: int) -> None:
        """Remove the entry that closing wrote, past `offset`, before the first append."""
        self.count = self._count_below(offset + 1)
        self._read_last()

    def replace(self, entries: bytes | bytearray) -> None:
        """Write these entries to a new file, which replaces the one at `path`."""
        self.take_place(entries)
        self._read_last()

    def rebuild(self, keep: int, entries: bytes | bytearray) -> None:
        """Keep the first `keep` entries and write these after them (recovery)."""
        self.restore(keep, entries)
        self._read_last()
