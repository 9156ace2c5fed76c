"""What was appended to a partition and nobody may see yet: how many bytes, up to which offset.

Whoever waits for so many bytes is told of them as the high watermark passes them, in parts if it comes
so. Of a high watermark that stands still only so much is kept apart as `PARTS_MAX`; the rest is told
together, once all of it is visible. Of what was in the log before, the size is not known: it is told as
plenty, for who is woken by it looks how much it is.
"""

from __future__ import annotations

PARTS_MAX = 64
PLENTY_BYTES = 1 << 31
UNKNOWN = -1


class Unseen:
    def __init__(self, high_watermark: int, end_offset: int) -> None:
        """The log ends at `end_offset` so far."""
        self._plenty_to = end_offset if end_offset > high_watermark else UNKNOWN
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

    def seen_to(self, high_watermark: int) -> int:
        """All below is visible now: how many bytes that adds."""
        parts, size_bytes = self._parts, 0
        if self._plenty_to != UNKNOWN:
            size_bytes = PLENTY_BYTES
            if high_watermark >= self._plenty_to:
                self._plenty_to = UNKNOWN
        while parts and parts[0][0] <= high_watermark:
            size_bytes += parts.pop(0)[1]
        return size_bytes
