"""Selects the remote segments that have a partition's offsets, each offset once.

Several segments may have the same offsets: a deposed leader finished a copy, or offsets were reused after an
unclean election. A segment's records of an epoch belong to the log as far as the leader epoch lineage assigns those
offsets to that epoch (KIP-101, KIP-405). The remaining offsets are covered from the lowest up, each time by the
segment that reaches furthest. Without overlaps, which is the usual case, no choice is needed.

If the leader epochs of the last segment cannot be read, another segment may prove the same lineage: two logs with
records of the same epoch are identical up to there (KIP-101). Offsets for which neither lineage nor transactions
are known are reported with the error, and only matter to queries for these offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from odradek.pipeline.errors import UnreadableSegment
from odradek.pipeline.segment_columns import Array, Segments, SegmentSlices
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered.partition_summary import HAS_SPANS

_PIECE = np.dtype([("low", "<i8"), ("high", "<i8"), ("row", "<i8")])
_END = (1 << 63) - 1


def select_slices(
    segments: Segments, lineage: Sequence[EpochStart], low: int, high: int
) -> SegmentSlices:
    """Return what is read of finished `segments` for the offsets `low` <= offset < `high`, in order.

    `lineage` are the partition's leader epochs, ascending. Offsets that no segment has are left out.
    """
    pieces = _in_lineage(_pieces(segments), lineage)
    pieces["low"] = np.maximum(pieces["low"], low)
    pieces["high"] = np.minimum(pieces["high"], high)
    pieces = pieces[pieces["low"] < pieces["high"]]
    pieces = pieces[np.lexsort((pieces["row"], pieces["low"]))]
    found = _joined(_chosen(pieces))
    return segments.slices(found["row"], found["low"], found["high"])


def _pieces(segments: Segments) -> Array:
    """Return (low, high, row, epoch) for each run of records of one epoch."""
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
    continues = np.flatnonzero(spans["row"][:-1] == spans["row"][1:])
    of_spans["high"][continues] = spans["start"][continues + 1]
    return found


def _in_lineage(pieces: Array, lineage: Sequence[EpochStart]) -> Array:
    """Restrict pieces to the offsets that the lineage assigns to their epochs."""
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
    """Select non-overlapping pieces that cover all offsets of the given ones."""
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
    """Yield, from the lowest offset up, the piece that reaches furthest."""
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
            reaching.clear()  # no other piece reaches further
            continue
        yield cursor, -end, row, epoch
        cursor = -end


def _joined(pieces: Array) -> Array:
    """Join adjacent pieces of one segment that have different epochs."""
    if len(pieces) < 2:
        return pieces
    apart = (pieces["row"][1:] != pieces["row"][:-1]) | (pieces["low"][1:] != pieces["high"][:-1])
    begins = np.flatnonzero(np.append(True, apart))
    joined = pieces[begins]
    joined["high"] = pieces["high"][np.append(begins[1:], len(pieces)) - 1]
    return joined


@dataclass(frozen=True)
class UnresolvedOffsets:
    """Offsets `low` <= offset < `high` whose segment is missing, or whose lineage or transactions are unknown, because
    an object cannot be read.
    """

    low: int
    high: int
    error: UnreadableSegment
    """Names the unreadable object."""


def overlapping(
    unresolved: Iterable[UnresolvedOffsets], low: int, high: int
) -> list[UnresolvedOffsets]:
    """Return the ranges that overlap `low` <= offset < `high`, by their start."""
    found = [each for each in unresolved if each.low < high and each.high > low]
    return sorted(found, key=lambda each: (each.low, each.high))


def prove_lineage(
    known: Sequence[EpochStart], epochs: Sequence[EpochStart]
) -> list[EpochStart] | None:
    """Return the leader epochs up to the end of a segment with records of `epochs`, from those `known` of another
    segment; None if the logs may have diverged.
    """
    first = epochs[0]
    before = [each for each in known if each.epoch <= first.epoch]
    if not before or before[-1].epoch != first.epoch:
        return None
    if before[-1].start_offset > first.start_offset:
        return None
    return [*before, *epochs[1:]]
