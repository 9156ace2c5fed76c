"""Divides what a query reads into tasks, by bytes rather than by partitions.

Neighbouring ranges go to the same task until it is full; a larger range is split by offsets. Tasks keep the order
of partitions and offsets. Millions of segments are divided by a few operations on arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from uuid import UUID

import numpy as np

from odradek.pipeline.decoding.record_selection import AbortedTransaction
from odradek.pipeline.segment_columns import Int64s, PackedSlices, SegmentSlice, SegmentSlices

TASK_BYTES = 128 << 20
"""Default bytes per task."""
HEADERS_TASK_BYTES = 2 * TASK_BYTES
"""Default if batch headers suffice: a task costs Spark 0.05 s of CPU, and reading half as much does not take
longer.
"""
LOOKED_INTO_MAX = 16
"""Maximum number of segments per task that a time index narrowed: each needs some sequential requests, which take
tens of ms each with a distant store.
"""
TASKS_MAX = 20_000
"""Upper limit for the driver; beyond it tasks become larger."""
RECORD_BYTES = 1024
"""Assumed bytes per record on a broker; the size is unknown before it is read."""


@dataclass(frozen=True, slots=True)
class BrokerRange:
    """Offsets `low` <= offset < `high` that are fetched from the partition leader.

    `topic_id` and `leader_epoch` are those at planning, if brokers report them: records of another topic, or of a
    later epoch, are not those that were planned.
    """

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
class LostOffsets:
    """Offsets that planning found to be unreadable; the task that reads them reports it."""

    topic: str
    partition: int
    low: int
    high: int
    reason: str
    key: str | None = None
    """Key of the unreadable object; None if the offsets were deleted."""

    @property
    def size_bytes(self) -> int:
        return 0


PlannedRange = PackedSlices | BrokerRange | LostOffsets
"""A range of a plan or of a task."""


def flatten_ranges(
    pieces: Iterable[SegmentSlice | SegmentSlices | PackedSlices | BrokerRange | LostOffsets],
) -> Iterator[SegmentSlice | BrokerRange | LostOffsets]:
    """Yield slices and ranges one by one, in order."""
    for piece in pieces:
        if isinstance(piece, (SegmentSlice, BrokerRange, LostOffsets)):
            yield piece
        else:
            yield from piece


def tasks_of(
    pieces: list[PlannedRange],
    *,
    task_bytes: int,
    skips_dense: bool = False,
    min_tasks: int | None = None,
    max_records: int | None = None,
) -> list[tuple[PlannedRange, ...]]:
    """Divide ranges into tasks of about `task_bytes`, at least `min_tasks`, and at most `max_records` offsets each.

    With `skips_dense`, segments that are known to be dense count less, because they are not read. The list is
    emptied meanwhile: it may have millions of slices, which take few bytes in a task.
    """
    total = sum(
        piece.work_bytes if skips_dense and isinstance(piece, PackedSlices) else piece.size_bytes
        for piece in pieces
    )
    limit = max(task_bytes, total // TASKS_MAX, 1)
    if min_tasks is not None:
        limit = max(1, min(limit, -(-total // min_tasks)))
    records = max_records if max_records is not None else 1 << 62
    sizes_of = SegmentSlices.work if skips_dense else SegmentSlices.sizes
    packer = _Packer(limit, records, sizes_of)
    found: list[tuple[PlannedRange, ...]] = []
    pieces.reverse()
    while pieces:
        found += packer.add(_cut(pieces.pop(), limit, records, sizes_of))
    return [*found, *packer.end()]


_NotStored = BrokerRange | LostOffsets
_SizesOf = Callable[[SegmentSlices], Int64s]


def _cut(
    piece: PlannedRange, limit: int, records: int, sizes_of: _SizesOf
) -> Sequence[_NotStored] | SegmentSlices:
    """Split a range into parts within the limits."""
    if isinstance(piece, PackedSlices):
        slices = piece.unpacked()
        offsets = slices.rows["high"] - slices.rows["low"]
        by_size, by_records = -(-sizes_of(slices) // limit), -(-offsets // records)
        parts: Int64s = np.minimum(np.maximum(np.maximum(by_size, by_records), 1), offsets)
        return slices.cut(parts) if (parts > 1).any() else slices
    if isinstance(piece, LostOffsets):
        return [piece]
    count = piece.high - piece.low
    into = min(max(-(-piece.size_bytes // limit), -(-count // records), 1), count)
    bounds = [piece.low + count * number // into for number in range(into + 1)]
    return [replace(piece, low=low, high=high) for low, high in pairwise(bounds)]


class _Packer:
    """Fills tasks one after the other."""

    def __init__(self, limit: int, records: int, sizes_of: _SizesOf) -> None:
        self._limit = limit
        self._records = records
        self._sizes_of = sizes_of
        self._taken: list[PlannedRange] = []
        self._size = 0
        self._count = 0

    def add(
        self, pieces: Sequence[_NotStored] | SegmentSlices
    ) -> Iterator[tuple[PlannedRange, ...]]:
        """Add ranges, and yield the tasks that are full."""
        if isinstance(pieces, SegmentSlices):
            offsets = pieces.rows["high"] - pieces.rows["low"]
            sizes, counts = np.cumsum(self._sizes_of(pieces)), np.cumsum(offsets)
        else:
            sizes = np.cumsum([each.size_bytes for each in pieces])
            counts = np.cumsum(
                [0 if isinstance(each, LostOffsets) else each.high - each.low for each in pieces]
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

    def _take(self, pieces: Sequence[_NotStored] | SegmentSlices, at: int, end: int) -> None:
        if isinstance(pieces, SegmentSlices):
            self._taken.append(pieces[at:end].packed())
        else:
            self._taken += pieces[at:end]

    def end(self) -> Iterator[tuple[PlannedRange, ...]]:
        if self._taken:
            yield self._full()

    def _full(self) -> tuple[PlannedRange, ...]:
        taken, self._taken, self._size, self._count = tuple(self._taken), [], 0, 0
        return taken


Partition = tuple[str, int]


class PartitionAbortedTransactions:
    """Aborted transactions of one partition, searchable by offset.

    A transaction covers its first to its last offset. Bisection on the first offsets, and on the running maximum of
    the last offsets, limits the candidates.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._all = sorted(aborted, key=lambda each: each.first_offset)
        self._firsts = np.array([each.first_offset for each in self._all], np.int64)
        self._lasts = np.array([each.last_offset for each in self._all], np.int64)
        self._reached = np.maximum.accumulate(self._lasts)
        """Maximum of the last offsets up to each transaction."""

    def reaching_into(self, low: int, high: int) -> list[int]:
        """Return the indexes of the transactions that may have offsets `low` <= offset < `high`."""
        begin, end = np.searchsorted(self._reached, low), np.searchsorted(self._firsts, high)
        if begin >= end:
            return []
        found: list[int] = (begin + np.flatnonzero(self._lasts[begin:end] >= low)).tolist()
        return found

    def of(self, ranges: Iterable[tuple[int, int]]) -> list[AbortedTransaction]:
        """Return the transactions in any of the ranges, each once, by first offset."""
        places = {place for low, high in ranges for place in self.reaching_into(low, high)}
        return [self._all[place] for place in sorted(places)]


class AbortedTransactions:
    """Aborted transactions of all partitions of a plan."""

    def __init__(self, aborted: Mapping[Partition, Sequence[AbortedTransaction]]) -> None:
        self._partitions = {
            tp: PartitionAbortedTransactions(each) for tp, each in aborted.items() if each
        }

    def of(self, pieces: Iterable[PlannedRange]) -> dict[Partition, list[AbortedTransaction]]:
        """Return the aborted transactions in the slices of a task; brokers return those of their own ranges."""
        read: dict[Partition, list[tuple[int, int]]] = {}
        for piece in pieces if self._partitions else ():
            if isinstance(piece, PackedSlices):
                tp = (piece.partition.topic, piece.partition.partition)
                if tp in self._partitions:
                    read.setdefault(tp, []).append((piece.low, piece.high))
        found = {tp: self._partitions[tp].of(ranges) for tp, ranges in read.items()}
        return {tp: each for tp, each in found.items() if each}
