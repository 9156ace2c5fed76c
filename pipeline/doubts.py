"""Which of a partition's records count, where an object that should say so cannot be read.

A segment's leader epochs are needed once: the last one's are those of the partition. Where they cannot be
read, those of another segment may prove the same: two logs that have records of one epoch are one log up to
there (KIP-101). A transaction index is needed by offsets that its transactions may have; of these, the snapshot
of the segment before it tells the first. What nobody can tell is a doubt: whoever does not ask for those
offsets does not hear of it, and to others it is as an object that should have them and is broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from odradek.pipeline.errors import UnreadableSegment
from odradek.storage.log.epochs import EpochStart


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
