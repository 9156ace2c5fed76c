"""Remote log segments of one leader epoch: which segment to read, and their size in bytes.

A new leader may copy records again, in segments with other boundaries. A finished copy is readable
if no other copy contains it (in this epoch). So of two copies with an offset the larger one is
found, and of two with the same range the one that was finished last. The other copies are
`covered`: they are listed for the expiration task, and become readable when the copy that covers
them is deleted. The result depends only on which copies exist, not on the order of events, so it is
the same after a snapshot.

Kafka's RemoteLogLeaderEpochState compares with the epoch's highest offset only. There, a smaller
segment that was copied later hides the rest of a larger one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from odradek.storage.tiered import segment_row
from odradek.storage.tiered.segment_table import Handle, SegmentTable, discard, insert


class EpochSegments:
    """Segments with records of one epoch.

    `members` has all of them in the table's order. `readable` and `covered` have the finished ones,
    by the epoch's first offset in them. `readable_bytes` is the size of the readable ones;
    `single_bytes` is the size of those of them that have no other epoch.
    """

    __slots__ = (
        "_epoch",
        "_table",
        "_with_transactions",
        "covered",
        "members",
        "readable",
        "readable_bytes",
        "single_bytes",
    )

    def __init__(self, table: SegmentTable, epoch: int) -> None:
        self._table = table
        self._epoch = epoch
        self.members = array("I")
        self.readable = array("I")
        self.covered = array("I")
        self._with_transactions = array("I")
        self.readable_bytes = 0
        self.single_bytes = 0

    def add(self, handle: Handle) -> None:
        insert(self.members, handle, self._table.order_of)

    def remove(self, handle: Handle) -> None:
        """Remove a segment that is not finished."""
        discard(self.members, handle, self._table.order_of)

    def finish(self, handle: Handle) -> None:
        """The copy is finished: make it readable, unless another copy covers it."""
        start, end = self.start_of(handle), self.end_of(handle)
        if self.readable and not self._is_behind_all(start, end):
            if self._is_covered(handle):
                insert(self.covered, handle, self.start_of)
                return
            slot = bisect_left(self.readable, start, key=self.start_of)
            while slot < len(self.readable) and self.end_of(self.readable[slot]) <= end:
                self._cover(self.readable[slot])
        self._make_readable(handle)

    def remove_finished(self, handle: Handle) -> None:
        """The segment is not finished any more: segments that only it covered become readable."""
        if discard(self.covered, handle, self.start_of) is not None:
            return
        self._make_unreadable(handle)
        for each in self._covered_within(handle):
            if not self._is_covered(each):
                discard(self.covered, each, self.start_of)
                self._make_readable(each)

    def find(self, offset: int) -> Handle | None:
        """Readable segment that has this offset of the epoch."""
        slot = bisect_right(self.readable, offset, key=self.start_of) - 1
        if slot < 0 or self.end_of(self.readable[slot]) < offset:
            return None
        return self.readable[slot]

    def is_readable(self, handle: Handle) -> bool:
        return (
            self.find(self.start_of(handle)) == handle or self.find(self.end_of(handle)) == handle
        )

    def find_with_transactions(self, offset: int) -> Handle | None:
        """First segment that ends at or after that offset and has a transaction index."""
        slot = bisect_left(self._with_transactions, offset, key=self.end_of)
        return self._with_transactions[slot] if slot < len(self._with_transactions) else None

    def start_of(self, handle: Handle) -> int:
        return segment_row.epoch_start_of(*self._table.at(handle), self._epoch)

    def end_of(self, handle: Handle) -> int:
        return segment_row.epoch_end_of(*self._table.at(handle), self._epoch)

    def _is_behind_all(self, start: int, end: int) -> bool:
        """Whether the range is behind all readable ones, which is the usual case. An epoch without
        records in a segment ends there before it starts."""
        last = self.readable[-1]
        return start > self.start_of(last) and min(start, end) > self.end_of(last)

    def _is_covered(self, handle: Handle) -> bool:
        """Whether a readable segment covers this one; since starts and ends both ascend, only one
        candidate exists."""
        start, end = self.start_of(handle), self.end_of(handle)
        slot = bisect_left(self.readable, end, key=self.end_of)
        if slot == len(self.readable):
            return False
        other = self.readable[slot]
        if (self.start_of(other), self.end_of(other)) == (start, end):
            return self._age(other) > self._age(handle)
        return self.start_of(other) <= start

    def _age(self, handle: Handle) -> tuple[int, bytes]:
        row = self._table.at(handle)
        return segment_row.event_timestamp_of(*row), segment_row.id_of(*row)

    def _make_readable(self, handle: Handle) -> None:
        insert(self.readable, handle, self.start_of)
        self._count(handle, 1)
        if segment_row.has_transactions(*self._table.at(handle)):
            insert(self._with_transactions, handle, self.start_of)

    def _make_unreadable(self, handle: Handle) -> None:
        discard(self.readable, handle, self.start_of)
        discard(self._with_transactions, handle, self.start_of)
        self._count(handle, -1)

    def _cover(self, handle: Handle) -> None:
        self._make_unreadable(handle)
        insert(self.covered, handle, self.start_of)

    def _covered_within(self, handle: Handle) -> list[Handle]:
        """Covered segments within this one, the largest first, because a large one covers others.
        One without records of the epoch may start right behind it."""
        slot = bisect_left(self.covered, self.start_of(handle), key=self.start_of)
        end, found = self.end_of(handle), []
        for each in self.covered[slot:]:
            if self.start_of(each) > end + 1:
                break
            if self.end_of(each) <= end:
                found.append(each)
        return sorted(
            found,
            key=lambda each: (self.end_of(each) - self.start_of(each), self._age(each)),
            reverse=True,
        )

    def _count(self, handle: Handle, sign: int) -> None:
        row = self._table.at(handle)
        size = sign * segment_row.size_of(*row)
        self.readable_bytes += size
        if not segment_row.spans_epochs(*row):
            self.single_bytes += size
