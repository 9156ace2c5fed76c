"""Segments of a log, ordered by base offset.

The list is replaced and never modified, so that readers in other threads keep a consistent list.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from odradek.storage.log.segment import Segment
from odradek.storage.log.transaction_index import AbortedTransaction


class LogSegments:
    """Segment list of a log; not empty once the log is open. The last segment is active."""

    __slots__ = ("_all", "_sealed")

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        # Offsets and segments are in one tuple, so that they are always consistent.
        self._all: tuple[tuple[int, ...], tuple[Segment, ...]] = ((), ())
        self._sealed: tuple[Sequence[Segment], int] = ((), 0)
        self.replace(segments)

    def replace(self, segments: Iterable[Segment]) -> None:
        ordered = sorted(segments, key=lambda segment: segment.base_offset)
        self._all = (tuple(segment.base_offset for segment in ordered), tuple(ordered))

    def add(self, segment: Segment) -> None:
        """Append a segment after the last one."""
        offsets, segments = self._all
        assert not offsets or segment.base_offset > offsets[-1]
        self._all = ((*offsets, segment.base_offset), (*segments, segment))

    @property
    def all(self) -> Sequence[Segment]:
        return self._all[1]

    @property
    def active(self) -> Segment:
        return self._all[1][-1]

    @property
    def first(self) -> Segment:
        return self._all[1][0]

    @property
    def size_bytes(self) -> int:
        """Bytes of all data files. Only the active one's changes while the list stays as it is."""
        segments = self.all
        counted, sealed_bytes = self._sealed
        if counted is not segments:
            sealed_bytes = sum(segment.size for segment in segments[:-1])
            self._sealed = (segments, sealed_bytes)
        return sealed_bytes + segments[-1].size

    def past(self, offset: int) -> Sequence[Segment]:
        """Segments from the one that contains `offset` on; all if they begin after it."""
        offsets, segments = self._all
        return segments[max(bisect_right(offsets, offset) - 1, 0) :]

    @property
    def base_offsets(self) -> Sequence[int]:
        return self._all[0]

    def __len__(self) -> int:
        return len(self._all[1])

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all[1])

    def from_offset(self, offset: int) -> Sequence[Segment]:
        """Segment that contains `offset`, and all later ones."""
        offsets, segments = self._all
        return segments[max(0, bisect_right(offsets, offset) - 1) :]

    def may_have_aborted(self, offset: int) -> bool:
        """Whether any segment from `offset` on has a transaction index."""
        return any(segment.transaction_index.exists for segment in self.from_offset(offset))

    def aborted_transactions(
        self, start: int, end: int, verify: Callable[[Segment, int], None]
    ) -> list[AbortedTransaction]:
        """Aborted transactions that overlap offsets [start, end). `verify` is called for an index that was
        not compared with the log from `start` on. Raises OSError, and what `verify` raises."""
        found: list[AbortedTransaction] = []
        for segment in self.from_offset(start):
            index = segment.transaction_index
            if not index.exists:
                continue
            if index.verified_from > max(start, segment.base_offset):
                verify(segment, start)
            more, is_complete = index.collect(start, end)
            found += more
            if is_complete:
                break
        return found
