"""What was appended to a partition and nobody may see yet: how many bytes, up to which offset.

Whoever waits for so many bytes is told of them as the high watermark passes them, in parts if it comes
so. Of a high watermark that stands still only so much is kept apart as `PARTS_MAX`; the rest is told
together, once all of it is visible.
"""

from __future__ import annotations

from collections import deque

PARTS_MAX = 64


class Unseen:
    def __init__(self) -> None:
        self._parts: deque[tuple[int, int]] = deque()
        """(end offset, bytes), the end offsets growing."""

    def appended(self, end_offset: int, size_bytes: int) -> None:
        """The log ends at `end_offset` after `size_bytes` more."""
        parts = self._parts
        while parts and parts[-1][0] >= end_offset:
            parts.pop()  # it was cut off since
        if len(parts) >= PARTS_MAX:
            size_bytes += parts.pop()[1]
        parts.append((end_offset, size_bytes))

    def seen_to(self, high_watermark: int) -> int:
        """All below is visible now: how many bytes that adds."""
        parts, size_bytes = self._parts, 0
        while parts and parts[0][0] <= high_watermark:
            size_bytes += parts.popleft()[1]
        return size_bytes
