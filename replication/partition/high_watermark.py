"""The high watermark: the offset below which every in-sync replica has the log."""

from __future__ import annotations

from collections.abc import Mapping, Set

PARTS_MAX = 64
UNCOUNTED_BYTES = 1 << 31
UNKNOWN = -1


def decide_high_watermark(
    current: int, leader: int, end_offsets: Mapping[int, int], in_sync: Set[int]
) -> int:
    """The offset (exclusive) that all of `in_sync` have, never below `current`.

    `end_offsets` is each replica's log end offset as the leader knows it, its own included; a
    member of the in-sync set that has not fetched yet holds the watermark where it is.
    """
    if in_sync == {leader}:
        return max(current, end_offsets[leader])
    known = [end_offsets.get(replica, current) for replica in in_sync | {leader}]
    return max(current, min(known))


class UncommittedBytes:
    def __init__(self, high_watermark: int, end_offset: int) -> None:
        """The log ends at `end_offset` so far."""
        self._uncounted_to = end_offset if end_offset > high_watermark else UNKNOWN
        self._parts: list[tuple[int, int]] = []
        """(end offset, bytes), the end offsets growing."""

    def appended(self, end_offset: int, size_bytes: int) -> None:
        """The log ends at `end_offset` after `size_bytes` more."""
        parts = self._parts
        while parts and parts[-1][0] >= end_offset:
            parts.pop()  # it was cut off since
        if len(parts) >= PARTS_MAX:
            size_bytes += parts.pop()[1]
        parts.append((end_offset, size_bytes))

    def advance_to(self, high_watermark: int) -> int:
        """All below is visible now: how many bytes that adds."""
        parts, size_bytes = self._parts, 0
        if self._uncounted_to != UNKNOWN:
            size_bytes = UNCOUNTED_BYTES
            if high_watermark >= self._uncounted_to:
                self._uncounted_to = UNKNOWN
        while parts and parts[0][0] <= high_watermark:
            size_bytes += parts.pop(0)[1]
        return size_bytes
