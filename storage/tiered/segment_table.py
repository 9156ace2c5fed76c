"""Packed table of one partition's remote segments: 100,000 segments take less than 10 MB.

A segment is a row of bytes (`segment_row.py`) in a block of 64 KiB. Its handle is the block number
and the position in it, in four bytes. An order of rows is an array of handles, searched by
bisection. This table has two orders, by id and by start offset; `epoch_segments.py` has more. An
array parallel to the start offsets has the largest timestamps in seconds, so that a scan by time
does not read rows. A row keeps its position until it is removed or grows. A new row of the same
length reuses a free position, and an empty block is released.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from odradek.storage.tiered import segment_row

BLOCK_BYTES = 1 << 16
SEARCHED_AT_ONCE = 1024
Handle = int
Key = Callable[[Handle], Any]


class SegmentTable:
    """Rows of one partition. `changes` counts additions and removals, for iterators that run
    concurrently."""

    def __init__(self) -> None:
        self._blocks: list[bytearray] = []
        self._rows_in: list[int] = []
        self._current = 0
        self._unused: list[int] = []
        self._holes: dict[int, list[Handle]] = {}
        self._by_id = array("I")
        self._by_start = array("I")
        self._newest_s = array("I")
        self.changes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def at(self, handle: Handle) -> tuple[bytearray, int]:
        """Block and position of the row, as arguments for the functions of `segment_row`."""
        return self._blocks[handle >> 16], handle & 0xFFFF

    def id_of(self, handle: Handle) -> bytes | bytearray:
        """Inlined `segment_row.id_of`: searches spend most of their time here."""
        at = handle & 0xFFFF
        return self._blocks[handle >> 16][at : at + 16]

    def order_of(self, handle: Handle) -> bytes | bytearray:
        return segment_row.order_of(self._blocks[handle >> 16], handle & 0xFFFF)

    def find(self, id_: bytes | bytearray) -> Handle | None:
        """Handle of the segment with that id."""
        slot, is_there = self._slot_of(id_)
        return self._by_id[slot] if is_there else None

    def add(self, row: bytes) -> Handle:
        """Add a row. Raises ValueError if the table has its id."""
        slot, is_there = self._slot_of(row[:16])
        if is_there:
            raise ValueError(f"segment {row[:16].hex()} already exists")
        handle = self._store(row)
        self._by_id.insert(slot, handle)
        at = insert(self._by_start, handle, self.order_of)
        self._newest_s.insert(at, _seconds(segment_row.max_timestamp_of(*self.at(handle))))
        self.changes += 1
        return handle

    def _slot_of(self, id_: bytes | bytearray) -> tuple[int, bool]:
        """Slot of the id in `_by_id`, and whether the id is there."""
        slot = bisect_left(self._by_id, id_, key=self.id_of)
        return slot, slot < len(self._by_id) and self.id_of(self._by_id[slot]) == id_

    def fits(self, handle: Handle, row: bytes) -> bool:
        """Whether the row has the length of the stored row."""
        return len(segment_row.row_at(*self.at(handle))) == len(row)

    def overwrite(self, handle: Handle, row: bytes) -> None:
        """Replace a row by one with the same length, id, start offset and timestamp."""
        block, at = self.at(handle)
        block[at : at + len(row)] = row

    def remove(self, handle: Handle) -> None:
        discard(self._by_id, handle, self.id_of)
        at = discard(self._by_start, handle, self.order_of)
        assert at is not None, "its order is that of its row"
        del self._newest_s[at]
        self._forget(handle)
        self.changes += 1

    def in_order(self) -> Iterator[Handle]:
        """All handles by start offset. Concurrent changes do not disturb the iteration."""
        return iterate(self, lambda: self._by_start)

    def reaching(self, timestamp: int) -> Iterator[Handle]:
        """Like `in_order`, for segments whose largest timestamp is at least `timestamp` (ms);
        skipping another one takes about 20 ns."""
        slot, seen = 0, self.changes
        last: bytes | bytearray = b""
        while True:
            if self.changes != seen:
                seen = self.changes
                slot = bisect_right(self._by_start, last, key=self.order_of)
            slot = self._first_reaching(timestamp, slot)
            if slot == len(self._by_start):
                return
            handle = self._by_start[slot]
            if segment_row.max_timestamp_of(*self.at(handle)) >= timestamp:
                last = self.order_of(handle)
                yield handle
            slot += 1

    def _first_reaching(self, timestamp: int, slot: int) -> int:
        """First slot from `slot` on whose largest timestamp, in seconds, may reach `timestamp`."""
        wanted = _seconds(timestamp)
        for begin in range(slot, len(self._newest_s), SEARCHED_AT_ONCE):
            some = self._newest_s[begin : begin + SEARCHED_AT_ONCE]
            if max(some) >= wanted:
                return begin + next(at for at, each in enumerate(some) if each >= wanted)
        return len(self._newest_s)

    def _store(self, row: bytes) -> Handle:
        holes = self._holes.get(len(row))
        if holes:
            handle = holes.pop()
            block, at = self.at(handle)
            block[at : at + len(row)] = row
        else:
            number = self._block_with_space(len(row))
            handle = number << 16 | len(self._blocks[number])
            self._blocks[number] += row
        self._rows_in[handle >> 16] += 1
        return handle

    def _block_with_space(self, size: int) -> int:
        number = self._current
        if self._blocks and len(self._blocks[number]) <= BLOCK_BYTES - size:
            return number
        if self._blocks:
            # The block is full: release its spare capacity
            self._blocks[number] = bytearray(self._blocks[number])
        if self._unused:
            self._current = self._unused.pop()
        else:
            self._current = len(self._blocks)
            self._blocks.append(bytearray())
            self._rows_in.append(0)
        return self._current

    def _forget(self, handle: Handle) -> None:
        number = handle >> 16
        self._rows_in[number] -= 1
        if self._rows_in[number]:
            size = len(segment_row.row_at(*self.at(handle)))
            self._holes.setdefault(size, []).append(handle)
        else:
            self._empty(number)

    def _empty(self, number: int) -> None:
        """Release the memory of a block without rows."""
        self._blocks[number] = bytearray()
        if number != self._current:
            self._unused.append(number)
        for size, holes in list(self._holes.items()):
            left = [each for each in holes if each >> 16 != number]
            if left:
                self._holes[size] = left
            else:
                del self._holes[size]


def _seconds(timestamp: int) -> int:
    """Timestamp (ms) as seconds in 32 bits; monotonic."""
    return min(max(timestamp // 1000, 0), 0xFFFFFFFF)


def insert(order: array[int], handle: Handle, key: Key) -> int:
    """Insert the handle in key order and return its slot. Most insertions are at the end."""
    value = key(handle)
    slot = len(order)
    if order and key(order[-1]) > value:
        slot = bisect_right(order, value, key=key)
    order.insert(slot, handle)
    return slot


def discard(order: array[int], handle: Handle, key: Key) -> int | None:
    """Remove the handle and return its slot, or None if it is missing."""
    value = key(handle)
    slot = bisect_left(order, value, key=key)
    while slot < len(order) and key(order[slot]) == value:
        if order[slot] == handle:
            order.pop(slot)
            return slot
        slot += 1
    return None


def iterate(table: SegmentTable, order: Callable[[], array[int]]) -> Iterator[Handle]:
    """Iterate over an array in the table's order (`order_of`). After a concurrent change it
    continues behind the last handle that it returned."""
    handles, seen = order(), table.changes
    slot = 0
    last: bytes | bytearray = b""
    while True:
        if table.changes != seen:
            handles, seen = order(), table.changes
            slot = bisect_right(handles, last, key=table.order_of)
        if slot >= len(handles):
            return
        handle = handles[slot]
        last = table.order_of(handle)
        yield handle
        slot += 1
