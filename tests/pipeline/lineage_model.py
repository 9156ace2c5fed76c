"""Reference model of `pipeline/leader_epoch_lineage.py`, which selects one segment after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from odradek.pipeline.segment_columns import SegmentSlice
from odradek.storage.tiered.segment_metadata import EpochStart, RemoteLogSegmentMetadata


def select_slices(
    segments: Iterable[RemoteLogSegmentMetadata],
    lineage: Sequence[EpochStart],
    low: int,
    high: int,
) -> list[SegmentSlice]:
    """Return the slices of `segments` to read for the offsets low <= offset < high, in offset order.

    `segments` are finished segments. `lineage` is the partition's leader epochs, ascending. Offsets that no segment
    has are skipped.
    """
    pieces = sorted(
        (
            (max(start, low), min(end, high), number, segment)
            for number, segment in enumerate(segments)
            for start, end in _valid(segment, lineage)
            if start < high and end > low
        ),
        key=lambda piece: piece[0],
    )
    found: list[SegmentSlice] = []
    reaching: list[tuple[int, int, RemoteLogSegmentMetadata]] = []
    cursor, number = low, 0
    while number < len(pieces) or reaching:
        while number < len(pieces) and pieces[number][0] <= cursor:
            _, end, order, segment = pieces[number]
            heappush(reaching, (-end, order, segment))
            number += 1
        if not reaching:
            cursor = pieces[number][0]
            continue
        end, _, segment = heappop(reaching)
        if -end <= cursor:
            reaching.clear()  # the remaining segments end no later
            continue
        found.append(SegmentSlice(segment, cursor, -end))
        cursor = -end
    return _joined(found)


def _joined(slices: Iterable[SegmentSlice]) -> list[SegmentSlice]:
    """Join adjacent slices of one segment that have different epochs."""
    found: list[SegmentSlice] = []
    for each in slices:
        last = found[-1] if found else None
        if last is not None and last.segment is each.segment and last.high == each.low:
            found[-1] = SegmentSlice(each.segment, last.low, each.high)
        else:
            found.append(each)
    return found


def _valid(
    segment: RemoteLogSegmentMetadata, lineage: Sequence[EpochStart]
) -> Iterable[tuple[int, int]]:
    """Return the offset ranges of the segment that the lineage assigns to the segment's epochs."""
    limits = {
        each.epoch: (each.start_offset, after)
        for each, after in zip(
            lineage, [next_.start_offset for next_ in lineage[1:]] + [1 << 63], strict=True
        )
    }
    ends = [each.start_offset for each in segment.epochs[1:]] + [segment.end_offset + 1]
    for each, end in zip(segment.epochs, ends, strict=True):
        if each.epoch in limits:
            low, high = limits[each.epoch]
            if max(low, each.start_offset) < min(high, end):
                yield max(low, each.start_offset), min(high, end)
