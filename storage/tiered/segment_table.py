"""The segments of one partition, packed: 100,000 of them in less than 10 MB.

Each is a row of bytes (`segment_row.py`) in a block of 64 KiB, known by its handle: the block's number
and the place in it, in four bytes. What orders rows is an array of handles, searched by halving: two
are kept here, by id and by start offset, `epoch_segments.py` has more. Beside the latter are the largest
timestamps, in seconds, which a search runs over without a row. So a segment takes its row, four bytes more
and some four an order, and no object. Rows lie where they are until they are removed or grow; a
hole is taken by the next row of that length, and a block that is empty goes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from odradek.storage.tiered import segment_row
from odradek.storage.tiered.segment_row import Rows

BLOCK_BYTES = 1 << 16
SEARCHED_AT_ONCE = 1024
Handle = int
Key = Callable[[Handle], Any]


class SegmentTable:
    """See the module. `changes` counts what was added and removed, for those who walk along."""

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
        """Where the row is, for the functions of `segment_row`."""
        return self._blocks[handle >> 16], handle & 0xFFFF

    def id_of(self, handle: Handle) -> Rows:
        """`segment_row.id_of`, without a call more: it is what most time goes into."""
        at = handle & 0xFFFF
        return self._blocks[handle >> 16][at : at + 16]

    def order_of(self, handle: Handle) -> Rows:
        return segment_row.order_of(self._blocks[handle >> 16], handle & 0xFFFF)

    def find(self, id_: Rows) -> Handle | None:
        """The segment with that id."""
        slot, is_there = self._slot_of(id_)
        return self._by_id[slot] if is_there else None

    def add(self, row: bytes) -> Handle:
        """Raises ValueError if its id is known."""
        slot, is_there = self._slot_of(row[:16])
        if is_there:
            raise ValueError(f"segment {row[:16].hex()} is there already")
        handle = self._store(row)
        self._by_id.insert(slot, handle)
        at = insert(self._by_start, handle, self.order_of)
        self._newest_s.insert(at, _seconds(segment_row.max_timestamp_of(*self.at(handle))))
        self.changes += 1
        return handle

    def _slot_of(self, id_: Rows) -> tuple[int, bool]:
        """Where in `_by_id` it is or belongs, and which of the two."""
        slot = bisect_left(self._by_id, id_, key=self.id_of)
        return slot, slot < len(self._by_id) and self.id_of(self._by_id[slot]) == id_

    def fits(self, handle: Handle, row: bytes) -> bool:
        """Whether it has the length of the row that is there."""
        return len(segment_row.row_at(*self.at(handle))) == len(row)

    def overwrite(self, handle: Handle, row: bytes) -> None:
        """In place: one that fits, with the same id, start offset and timestamp."""
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
        """All by ascending start offset; what changes meanwhile does not disturb it."""
        return walk(self, lambda: self._by_start)

    def reaching(self, timestamp: int) -> Iterator[Handle]:
        """As `in_order`, those whose largest timestamp (ms) is `timestamp` or later; the others cost
        some 20 ns each."""
        slot, seen = 0, self.changes
        last: Rows = b""
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
        """The next slot that may."""
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
            number = self._block_with_room(len(row))
            handle = number << 16 | len(self._blocks[number])
            self._blocks[number] += row
        self._rows_in[handle >> 16] += 1
        return handle

    def _block_with_room(self, size: int) -> int:
        number = self._current
        if self._blocks and len(self._blocks[number]) <= BLOCK_BYTES - size:
            return number
        if self._blocks:
            self._blocks[number] = bytearray(self._blocks[number])  # full: it gives back its slack
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
        """No row is left in the block: it gives back its memory."""
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
    """Of a timestamp (ms): what fits, so that a later one never has fewer."""
    return min(max(timestamp // 1000, 0), 0xFFFFFFFF)


def insert(order: array[int], handle: Handle, key: Key) -> int:
    """Put it where it belongs, and say where that is; at the end is the usual place."""
    value = key(handle)
    slot = len(order)
    if order and key(order[-1]) > value:
        slot = bisect_right(order, value, key=key)
    order.insert(slot, handle)
    return slot


def discard(order: array[int], handle: Handle, key: Key) -> int | None:
    """Take it out, and say where it was; None if it was not there."""
    value = key(handle)
    slot = bisect_left(order, value, key=key)
    while slot < len(order) and key(order[slot]) == value:
        if order[slot] == handle:
            order.pop(slot)
            return slot
        slot += 1
    return None


def walk(table: SegmentTable, order: Callable[[], array[int]]) -> Iterator[Handle]:
    """Through an array in the table's order (`order_of`). Where rows came and went meanwhile, it goes
    on behind the last one that it gave out."""
    handles, seen = order(), table.changes
    slot = 0
    last: Rows = b""
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
