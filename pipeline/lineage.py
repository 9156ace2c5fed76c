"""Which remote segment has which offsets of a partition: each offset once, whatever lies in the store.

Copies of the same offsets may be there twice: a leader that was deposed finished a copy, an unclean
election gave offsets to other records. Which one counts is what the partition's leader epochs say: a
segment's records of an epoch are the log's as far as the lineage gives that epoch those offsets
(KIP-101, KIP-405). What is left is covered from the lowest offset up, each time by the segment that
reaches furthest. Nearly always no two overlap, and there is nothing to choose; where some do, these are
gone through one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from odradek.pipeline.errors import UnreadableSegment
from odradek.pipeline.segment_columns import Array, Segments, Stretches
from odradek.storage.log.epochs import EpochStart
from odradek.storage.tiered.summary import HAS_SPANS

_PIECE = np.dtype([("low", "<i8"), ("high", "<i8"), ("row", "<i8")])
_END = (1 << 63) - 1


def cover(segments: Segments, lineage: Sequence[EpochStart], low: int, high: int) -> Stretches:
    """What is read of `segments` for the offsets from `low` on, before `high`, in their order.

    `segments` are finished ones. `lineage` is the partition's leader epochs, ascending. Offsets that
    no segment has are left out: between two stretches, before the first or after the last.
    """
    pieces = _in_lineage(_pieces(segments), lineage)
    pieces["low"] = np.maximum(pieces["low"], low)
    pieces["high"] = np.minimum(pieces["high"], high)
    pieces = pieces[pieces["low"] < pieces["high"]]
    pieces = pieces[np.lexsort((pieces["row"], pieces["low"]))]
    found = _joined(_chosen(pieces))
    return segments.stretches(found["row"], found["low"], found["high"])


def _pieces(segments: Segments) -> Array:
    """(from, before, row) and, beside it, the epoch of each run of records of one epoch."""
    rows, spans = segments.rows, segments.spans
    plain = np.flatnonzero(rows["flags"] & HAS_SPANS == 0)
    found = np.empty(len(plain) + len(spans), [*_PIECE.descr, ("epoch", "<i8")])
    ends = rows["start"] + rows["last"] + 1
    of_plain, of_spans = found[: len(plain)], found[len(plain) :]
    of_plain["low"], of_plain["high"] = rows["start"][plain], ends[plain]
    of_plain["row"], of_plain["epoch"] = plain, rows["epoch"][plain]
    of_spans["low"], of_spans["row"], of_spans["epoch"] = (
        spans["start"],
        spans["row"],
        spans["epoch"],
    )
    of_spans["high"] = ends[spans["row"]]
    goes_on = np.flatnonzero(spans["row"][:-1] == spans["row"][1:])
    of_spans["high"][goes_on] = spans["start"][goes_on + 1]
    return found


def _in_lineage(pieces: Array, lineage: Sequence[EpochStart]) -> Array:
    """As far as the lineage gives these offsets to these epochs."""
    if not lineage:
        return pieces[:0]
    epochs = np.array([each.epoch for each in lineage])
    starts = np.array([*(each.start_offset for each in lineage), _END])
    at = np.minimum(np.searchsorted(epochs, pieces["epoch"]), len(epochs) - 1)
    pieces["low"] = np.maximum(pieces["low"], starts[at])
    pieces["high"] = np.minimum(pieces["high"], starts[at + 1])
    valid: Array = pieces[(epochs[at] == pieces["epoch"]) & (pieces["low"] < pieces["high"])]
    return valid


def _chosen(pieces: Array) -> Array:
    """Of pieces in order, such that no two have the same offset, and all have what any has."""
    if not len(pieces):
        return pieces
    reached = np.maximum.accumulate(pieces["high"])
    begins = np.flatnonzero(np.append(True, pieces["low"][1:] >= reached[:-1]))
    ends = np.append(begins[1:], len(pieces))
    several = np.flatnonzero(ends - begins > 1)
    if not len(several):
        return pieces
    alone = np.ones(len(pieces), bool)
    found: list[tuple[int, int, int, int]] = []
    for begin, end in zip(begins[several].tolist(), ends[several].tolist(), strict=True):
        alone[begin:end] = False
        found += _furthest_first(pieces[begin:end].tolist())
    together = np.concatenate([pieces[alone], np.array(found, pieces.dtype)])
    return together[np.argsort(together["low"], kind="stable")]


def _furthest_first(
    pieces: Sequence[tuple[int, int, int, int]],
) -> Iterator[tuple[int, int, int, int]]:
    """Of pieces that overlap: from the lowest offset up, each time the one that reaches furthest."""
    reaching: list[tuple[int, int, int]] = []
    cursor, number = pieces[0][0], 0
    while number < len(pieces) or reaching:
        while number < len(pieces) and pieces[number][0] <= cursor:
            _, end, row, epoch = pieces[number]
            heappush(reaching, (-end, row, epoch))
            number += 1
        if not reaching:
            cursor = pieces[number][0]
            continue
        end, row, epoch = heappop(reaching)
        if -end <= cursor:
            reaching.clear()  # nor do the others reach further
            continue
        yield cursor, -end, row, epoch
        cursor = -end


def _joined(pieces: Array) -> Array:
    """Neighbours in one segment, which are of different epochs, as one."""
    if len(pieces) < 2:
        return pieces
    apart = (pieces["row"][1:] != pieces["row"][:-1]) | (pieces["low"][1:] != pieces["high"][:-1])
    begins = np.flatnonzero(np.append(True, apart))
    joined = pieces[begins]
    joined["high"] = pieces["high"][np.append(begins[1:], len(pieces)) - 1]
    return joined


@dataclass(frozen=True)
class Doubt:
    """Offsets, from the first on, before the second, of which nothing says what of them counts."""

    low: int
    high: int
    error: UnreadableSegment
    """Names the object that would."""


def concerning(doubts: Iterable[Doubt], low: int, high: int) -> list[Doubt]:
    """Those of offsets that are read, by where they begin."""
    found = [each for each in doubts if each.low < high and each.high > low]
    return sorted(found, key=lambda each: (each.low, each.high))


def proven_lineage(
    known: Sequence[EpochStart], epochs: Sequence[EpochStart]
) -> list[EpochStart] | None:
    """The leader epochs up to the end of a segment that has records of `epochs`, by those `known` of
    another one; None where the two may be of histories that parted."""
    first = epochs[0]
    before = [each for each in known if each.epoch <= first.epoch]
    if not before or before[-1].epoch != first.epoch:
        return None
    if before[-1].start_offset > first.start_offset:
        return None
    return [*before, *epochs[1:]]
