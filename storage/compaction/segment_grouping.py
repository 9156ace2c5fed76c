"""Grouping of segments that are rewritten into one, so that compaction does not leave ever smaller
segments."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.seams.values import value_class
from odradek.storage.log.offset_index import RELATIVE_MAX

SEGMENTS_MAX = 32
"""In one group: readers of the log wait while their files are renamed (segment_swap.py)."""


@value_class
class SegmentSizes:
    """Base offset and file sizes of a segment."""

    base_offset: int
    log: int
    offset_index: int
    time_index: int


def group_segments(
    segments: Sequence[SegmentSizes], *, segment_bytes: int, index_bytes: int, end: int
) -> list[list[SegmentSizes]]:
    """Group adjacent segments that fit one segment even if no record is removed; `end` is the end of the
    last one.

    As Kafka's Cleaner.groupSegmentsBySize, with a limit of segments per group.
    """
    groups: list[list[SegmentSizes]] = []
    for number, segment in enumerate(segments):
        next_offset = segments[number + 1].base_offset if number + 1 < len(segments) else end
        if groups and _fits(groups[-1], segment, next_offset, segment_bytes, index_bytes):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(
    those: Sequence[SegmentSizes],
    one: SegmentSizes,
    next_offset: int,
    segment_bytes: int,
    index_bytes: int,
) -> bool:
    return (
        len(those) < SEGMENTS_MAX
        and sum(each.log for each in those) + one.log <= segment_bytes
        and sum(each.offset_index for each in those) + one.offset_index <= index_bytes
        and sum(each.time_index for each in those) + one.time_index <= index_bytes
        and (not one.log or next_offset - 1 - those[0].base_offset <= RELATIVE_MAX)
    )
