"""How what a query reads is shared out among tasks: by bytes, not by partitions.

Neighbours go to the same task until it has enough; what is larger than a task is cut by offsets. The
order is that of partitions and offsets, and each task's pieces follow on each other. Of millions of
segments a task is made with a few operations on columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from uuid import UUID

import numpy as np

from odradek.pipeline.decoding.selection import Aborted
from odradek.pipeline.segment_columns import Int64s, PackedStretches, Stretch, Stretches

TASK_BYTES = 128 << 20
"""What a task reads, where nobody says otherwise."""
HEADERS_TASK_BYTES = 2 * TASK_BYTES
"""The same where batch headers are enough: Spark takes 0.05 s of CPU for a task, and reading half as much not
longer than that."""
LOOKED_INTO_MAX = 16
"""Segments a task, of those of which the time index has left a little: it asks for one after the other, with some
requests each, and a store far away takes tens of ms for one."""
TASKS_MAX = 20_000
"""More than that are the driver's burden; tasks become larger instead."""
RECORD_BYTES = 1024
"""What a record on a broker is taken for: how large those are is known when they are read."""


@dataclass(frozen=True, slots=True)
class BrokerRange:
    """Offsets of a partition that are fetched from whoever leads it: from `low` on, before `high`. They are
    offsets of this topic, and of what was written in this leader epoch or before, as far as brokers know either:
    of others by then, they mean other records."""

    topic: str
    partition: int
    low: int
    high: int
    topic_id: UUID | None = None
    leader_epoch: int | None = None

    @property
    def size_bytes(self) -> int:
        return (self.high - self.low) * RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets that are known not to be had when the query is planned: whoever reads them tells of it."""

    topic: str
    partition: int
    low: int
    high: int
    reason: str
    key: str | None = None
    """That of the object that should have them and cannot be read; None where they are gone."""

    @property
    def size_bytes(self) -> int:
        return 0


SegmentRange = PackedStretches | BrokerRange | Lost
"""What a plan has, and each of its tasks."""


def each_piece(
    pieces: Iterable[Stretch | Stretches | PackedStretches | BrokerRange | Lost],
) -> Iterator[Stretch | BrokerRange | Lost]:
    """One by one, in their order."""
    for piece in pieces:
        if isinstance(piece, (Stretch, BrokerRange, Lost)):
            yield piece
        else:
            yield from piece


def tasks_of(
    pieces: list[SegmentRange],
    *,
    task_bytes: int,
    skips_dense: bool = False,
    min_tasks: int | None = None,
    max_records: int | None = None,
) -> list[tuple[SegmentRange, ...]]:
    """The pieces of each task: about `task_bytes` each, at least `min_tasks` of them as far as there are
    offsets enough, none with more than `max_records` offsets. With `skips_dense` the records of segments that are
    known to be dense are not read, and take that much less. Takes them out of the list: there may be
    millions of stretches, which a task has in few bytes."""
    total = sum(
        piece.work_bytes if skips_dense and isinstance(piece, PackedStretches) else piece.size_bytes
        for piece in pieces
    )
    limit = max(task_bytes, total // TASKS_MAX, 1)
    if min_tasks is not None:
        limit = max(1, min(limit, -(-total // min_tasks)))
    records = max_records if max_records is not None else 1 << 62
    sizes_of = Stretches.work if skips_dense else Stretches.sizes
    packer = _Packer(limit, records, sizes_of)
    found: list[tuple[SegmentRange, ...]] = []
    pieces.reverse()
    while pieces:
        found += packer.add(_cut(pieces.pop(), limit, records, sizes_of))
    return [*found, *packer.end()]


_NotStored = BrokerRange | Lost
_SizesOf = Callable[[Stretches], Int64s]


def _cut(
    piece: SegmentRange, limit: int, records: int, sizes_of: _SizesOf
) -> Sequence[_NotStored] | Stretches:
    """At most so large, as far as offsets allow."""
    if isinstance(piece, PackedStretches):
        stretches = piece.unpacked()
        offsets = stretches.rows["high"] - stretches.rows["low"]
        by_size, by_records = -(-sizes_of(stretches) // limit), -(-offsets // records)
        parts: Int64s = np.minimum(np.maximum(np.maximum(by_size, by_records), 1), offsets)
        return stretches.cut(parts) if (parts > 1).any() else stretches
    if isinstance(piece, Lost):
        return [piece]
    count = piece.high - piece.low
    into = min(max(-(-piece.size_bytes // limit), -(-count // records), 1), count)
    bounds = [piece.low + count * number // into for number in range(into + 1)]
    return [replace(piece, low=low, high=high) for low, high in pairwise(bounds)]


class _Packer:
    """Fills one task after the other."""

    def __init__(self, limit: int, records: int, sizes_of: _SizesOf) -> None:
        self._limit = limit
        self._records = records
        self._sizes_of = sizes_of
        self._taken: list[SegmentRange] = []
        self._size = 0
        self._count = 0

    def add(self, pieces: Sequence[_NotStored] | Stretches) -> Iterator[tuple[SegmentRange, ...]]:
        """Those that are full by then."""
        if isinstance(pieces, Stretches):
            offsets = pieces.rows["high"] - pieces.rows["low"]
            sizes, counts = np.cumsum(self._sizes_of(pieces)), np.cumsum(offsets)
        else:
            sizes = np.cumsum([each.size_bytes for each in pieces])
            counts = np.cumsum(
                [0 if isinstance(each, Lost) else each.high - each.low for each in pieces]
            )
        at = size_before = count_before = 0
        while at < len(pieces):
            fits = min(
                np.searchsorted(sizes, size_before + self._limit - self._size, "right"),
                np.searchsorted(counts, count_before + self._records - self._count, "right"),
            )
            end = max(int(fits), at)
            if end == at:
                if self._taken:
                    yield self._full()
                    continue
                end = at + 1
            self._take(pieces, at, end)
            self._size += int(sizes[end - 1]) - size_before
            self._count += int(counts[end - 1]) - count_before
            at, size_before, count_before = end, int(sizes[end - 1]), int(counts[end - 1])

    def _take(self, pieces: Sequence[_NotStored] | Stretches, at: int, end: int) -> None:
        if isinstance(pieces, Stretches):
            self._taken.append(pieces[at:end].packed())
        else:
            self._taken += pieces[at:end]

    def end(self) -> Iterator[tuple[SegmentRange, ...]]:
        if self._taken:
            yield self._full()

    def _full(self) -> tuple[SegmentRange, ...]:
        taken, self._taken, self._size, self._count = tuple(self._taken), [], 0, 0
        return taken


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
