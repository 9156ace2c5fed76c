"""High watermark: the offset below which all in-sync replicas have the log."""

from __future__ import annotations

from collections.abc import Mapping, Set

PARTS_MAX = 64
UNCOUNTED_BYTES = 1 << 31
UNKNOWN = -1


def decide_high_watermark(
    current: int, leader: int, end_offsets: Mapping[int, int], in_sync: Set[int]
) -> int:
    """Return the offset (exclusive) up to which all of `in_sync` have the log, never below
    `current`.

    `end_offsets` has the log end offset of each replica as the leader knows it, the leader
    included. A replica of the ISR that has not fetched yet keeps the high watermark at `current`.
    """
    if in_sync == {leader}:
        return max(current, end_offsets[leader])
    known = [end_offsets.get(replica, current) for replica in in_sync | {leader}]
    return max(current, min(known))


class UncommittedBytes:
    """Sizes of the appends past the high watermark, to count how many bytes an advance makes
    readable.

    Keeps at most PARTS_MAX appends; the newest ones are merged beyond that. Records that were
    uncommitted when the count began have no known size and count as UNCOUNTED_BYTES.
    """

    def __init__(self, high_watermark: int, end_offset: int) -> None:
        """Begin with a log that ends at `end_offset`."""
        self._uncounted_to = end_offset if end_offset > high_watermark else UNKNOWN
        self._parts: list[tuple[int, int]] = []
        """(end offset, bytes) of each append, by ascending end offset."""

    def appended(self, end_offset: int, size_bytes: int) -> None:
        """Add an append of `size_bytes` after which the log ends at `end_offset`."""
        parts = self._parts
        while parts and parts[-1][0] >= end_offset:
            parts.pop()  # truncated since
        if len(parts) >= PARTS_MAX:
            size_bytes += parts.pop()[1]
        parts.append((end_offset, size_bytes))

    def advance_to(self, high_watermark: int) -> int:
        """Return how many bytes an advance of the high watermark makes readable."""
        parts, size_bytes = self._parts, 0
        if self._uncounted_to != UNKNOWN:
            size_bytes = UNCOUNTED_BYTES
            if high_watermark >= self._uncounted_to:
                self._uncounted_to = UNKNOWN
        while parts and parts[0][0] <= high_watermark:
            size_bytes += parts.pop(0)[1]
        return size_bytes
