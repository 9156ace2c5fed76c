"""Which of a plan's aborted transactions concern a task: found among very many, for very many tasks.

A transaction reaches from its first offset to its last. Those that begin before a task ends are found by bisection,
and so are those before which none reaches so far as where it begins; in between few are others, unless one was open
for very long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from odradek.pipeline.decoding.wanted import Aborted
from odradek.pipeline.planning import SegmentRange
from odradek.pipeline.segment_columns import PackedStretches

Partition = tuple[str, int]


class AbortedOffsets:
    """Of one partition."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._all = sorted(aborted, key=lambda each: each.first_offset)
        self._firsts = np.array([each.first_offset for each in self._all], np.int64)
        self._lasts = np.array([each.last_offset for each in self._all], np.int64)
        self._reached = np.maximum.accumulate(self._lasts)
        """By it or any before it."""

    def reaching_into(self, low: int, high: int) -> list[int]:
        """The places, by their first offsets, of those that may have had an offset from `low` on, before
        `high`."""
        begin, end = np.searchsorted(self._reached, low), np.searchsorted(self._firsts, high)
        if begin >= end:
            return []
        found: list[int] = (begin + np.flatnonzero(self._lasts[begin:end] >= low)).tolist()
        return found

    def of(self, ranges: Iterable[tuple[int, int]]) -> list[Aborted]:
        """Each once, by their first offsets."""
        places = {place for low, high in ranges for place in self.reaching_into(low, high)}
        return [self._all[place] for place in sorted(places)]


class AbortedByTask:
    """Of all partitions."""

    def __init__(self, aborted: Mapping[Partition, Sequence[Aborted]]) -> None:
        self._partitions = {where: AbortedOffsets(each) for where, each in aborted.items() if each}

    def of(self, pieces: Iterable[SegmentRange]) -> dict[Partition, list[Aborted]]:
        """What concerns these pieces of the store; brokers tell it of theirs."""
        read: dict[Partition, list[tuple[int, int]]] = {}
        for piece in pieces if self._partitions else ():
            if isinstance(piece, PackedStretches):
                where = (piece.partition.topic, piece.partition.partition)
                if where in self._partitions:
                    read.setdefault(where, []).append((piece.low, piece.high))
        found = {where: self._partitions[where].of(ranges) for where, ranges in read.items()}
        return {where: each for where, each in found.items() if each}
