"""Offset index: from an offset to a position in the segment (Kafka's `.index`).

An entry of 8 bytes (relative offset i32, position i32) describes a batch: its last offset and its start.
There is an entry for the first batch that starts more than `index.interval.bytes` after the previous
entry's batch (or the start of the segment). So the index follows from the segment: a rebuilt index is
equal, independent of restarts and truncations. No entry has position 0, so that zeros are never read as
one.

Lookups may run in other threads than appends: they use a snapshot of `last` and `count`, and entries
below `count` never change.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from odradek.seams.files import Buffer, Files, Path
from odradek.storage.log.index_file import CorruptIndex, IndexFile

ENTRY = struct.Struct(">ii")
_INT = struct.Struct(">i")
RELATIVE_MAX = (1 << 31) - 1
"""The largest offset, relative to the segment's base, and the largest position, that fit."""


class OffsetIndex(IndexFile):
    """Offset index of a segment. `last` is the last entry's (offset, position); (base, 0) if there is
    none."""

    __slots__ = ("base_offset", "last")

    def __init__(self, files: Files, path: Path, base_offset: int) -> None:
        super().__init__(files, path, ENTRY.size)
        self.base_offset = base_offset
        self.last = (base_offset, 0)

    def load(self, segment_bytes: int) -> None:
        """Open a trimmed index and check its last entry against the segment's size.

        Raises CorruptIndex, FileNotFoundError.
        """
        self.open()
        self._read_last()
        offset, position = self.last
        if self.count and not (offset >= self.base_offset and 0 < position < segment_bytes):
            raise CorruptIndex(
                f"corrupt index found, index file ({self.path}) has last offset {offset} at position {position}; "
                f"the segment has {segment_bytes} bytes from offset {self.base_offset}"
            )

    def _read_last(self) -> None:
        self.last = (self.base_offset, 0)
        if self.count:
            relative, position = ENTRY.unpack(self.entry(self.count - 1))
            self.last = (self.base_offset + relative, position)

    def append(self, entries: Sequence[tuple[int, int]]) -> None:
        """Add entries (last offset, position) in one write; their space must be reserved."""
        base_offset = self.base_offset
        self.add(
            b"".join([ENTRY.pack(offset - base_offset, position) for offset, position in entries])
        )
        self.last = entries[-1]

    def lookup(self, offset: int, *, mapped: bool = True) -> tuple[int, int]:
        """Last entry at or below `offset`; (base, 0) if there is none."""
        last = self.last
        if offset >= last[0]:
            return last

        def find(view: Buffer) -> tuple[int, int]:
            slot = self._slot(view, offset)
            if slot < 0:
                return self.base_offset, 0
            relative, position = ENTRY.unpack_from(view, slot * 8)
            return self.base_offset + relative, position

        return self.search(find, mapped=mapped)

    def _slot(self, view: Buffer, offset: int) -> int:
        """The number of the last entry in `view` at or below `offset`; -1 if there is none."""
        relative = offset - self.base_offset
        int_at = _INT.unpack_from
        low, high = -1, len(view) // 8
        while high - low > 1:
            middle = (low + high) // 2
            if int_at(view, middle * 8)[0] <= relative:
                low = middle
            else:
                high = middle
        return low

    def upper_bound(self, position: int, *, mapped: bool = True) -> tuple[int, int] | None:
        """First entry (offset, position) at or past `position`: all batches before it end below that offset.

        None if the index ends before.
        """
        if position > self.last[1] or not self.count:
            return None

        def find(view: Buffer) -> tuple[int, int]:
            low, high = -1, len(view) // 8 - 1
            while high - low > 1:
                middle = (low + high) // 2
                if _INT.unpack_from(view, middle * 8 + 4)[0] < position:
                    low = middle
                else:
                    high = middle
            relative, found = ENTRY.unpack_from(view, high * 8)
            return self.base_offset + relative, found

        return self.search(find, mapped=mapped)

    def floor_of_position(self, position: int) -> int:
        """Start of the last indexed batch at or below `position`; 0 if there is none. Reads the
        entries one by one, without a map."""
        low, high = -1, self.count
        while high - low > 1:
            middle = (low + high) // 2
            if ENTRY.unpack(self.entry(middle))[1] <= position:
                low = middle
            else:
                high = middle
        found: int = 0 if low < 0 else ENTRY.unpack(self.entry(low))[1]
        return found

    def truncated(self, offset: int) -> OffsetIndex:
        """A new index with the entries of batches that end below `offset`; its file replaces this
        one."""
        entries = self.file.read_at(0, self.count * ENTRY.size)
        fresh = OffsetIndex(self._files, self.path, self.base_offset)
        fresh.take_place(entries[: (self._slot(entries, offset - 1) + 1) * ENTRY.size])
        fresh._read_last()
        return fresh

    def replace(self, entries: bytes | bytearray) -> None:
        """Write these entries to a new file, which replaces the one at `path`."""
        self.take_place(entries)
        self._read_last()

    def rebuild(self, keep: int, entries: bytes | bytearray) -> None:
        """Keep the first `keep` entries and write these after them (recovery)."""
        self.restore(keep, entries)
        self._read_last()
