"""Decides which remote log segments are in a log's leader epoch lineage (E15, E16).

A remote log segment has the leader epochs of its records. After an unclean leader election there
may be segments with records that this log never had or has replaced. Only a segment whose epochs
match the log counts for retention, sizes and timestamps:

    the log      0──────1────────3──────────────
    within       [0   1]   [1   3]     [3  ]
    not within   [0        2]  an epoch that the log does not have
                 [0       1  ] epoch 1 continues where the log has epoch 3
                      [1]      starts before epoch 1 starts in the log (unless 1 is the log's first)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata

Lineage = tuple[EpochStart, ...]
"""Epochs that have records, ascending by epoch and offset."""


def with_records(epochs: Sequence[EpochStart]) -> Lineage:
    """The lineage without epochs that have no records, which start where the next epoch starts."""
    return tuple(
        each
        for each, after in zip(epochs, (*epochs[1:], None), strict=False)
        if after is None or after.start_offset != each.start_offset
    )


def is_within(segment: RemoteLogSegmentMetadata, lineage: Lineage, log_end_offset: int) -> bool:
    """Whether the segment's records are those of a log with this `lineage` and end offset.

    Epochs of the segment before the log's first epoch are ignored, because the log start offset has
    passed them.
    """
    if not lineage or segment.end_offset >= log_end_offset:
        return False
    first = lineage[0].epoch
    known = [each for each in with_records(segment.epochs) if each.epoch >= first]
    if not known:
        return False
    slot = bisect_left(lineage, known[0].epoch, key=lambda each: each.epoch)
    mine = lineage[slot : slot + len(known)]
    if [each.epoch for each in mine] != [each.epoch for each in known]:
        return False
    if slot > 0 and known[0].start_offset < mine[0].start_offset:
        return False
    if any(a.start_offset != b.start_offset for a, b in zip(known[1:], mine[1:], strict=True)):
        return False
    after = lineage[slot + len(known) : slot + len(known) + 1]
    return not after or segment.end_offset < after[0].start_offset


def shared_until(
    segment: RemoteLogSegmentMetadata, epochs: Sequence[EpochStart], offset: int
) -> int:
    """First offset, from `offset` on, that the segment has in another epoch than a log with these
    `epochs`, or the offset behind the segment."""
    starts = {each.start_offset for each in (*segment.epochs, *epochs)}
    for each in sorted({offset, *(start for start in starts if start > offset)}):
        if each > segment.end_offset or _epoch_at(segment.epochs, each) != _epoch_at(epochs, each):
            return min(each, segment.end_offset + 1)
    return segment.end_offset + 1


def _epoch_at(epochs: Sequence[EpochStart], offset: int) -> int | None:
    slot = bisect_right(epochs, offset, key=lambda each: each.start_offset)
    return epochs[slot - 1].epoch if slot else None
