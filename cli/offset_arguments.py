"""Offset arguments (beginning, end, N, -N, s@ms) and their resolution to offsets of partitions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from odradek.client.consumer import EARLIEST, LATEST, list_offsets
from odradek.client.metadata import Cluster
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class

HELP = "beginning, end, N, -N (N records before the end) or s@MS (the first record whose timestamp in ms is at least MS)"


@value_class
class ExactOffset:
    offset: int


@value_class
class OffsetBeforeEnd:
    """The offset `count` before the end, but at least the log start offset."""

    count: int


@value_class
class OffsetAtTimestamp:
    """The first record whose timestamp in ms is at least the given one, or the end if there is none."""

    timestamp_ms: int


@value_class
class BeginningOffset:
    pass


@value_class
class EndOffset:
    pass


OffsetArgument = ExactOffset | OffsetBeforeEnd | OffsetAtTimestamp | BeginningOffset | EndOffset

NAMES: Mapping[str, OffsetArgument] = {
    "beginning": BeginningOffset(),
    "earliest": BeginningOffset(),
    "end": EndOffset(),
    "latest": EndOffset(),
}


def parse_offset(text: str) -> OffsetArgument:
    """Parse an offset argument. Raises ArgumentTypeError."""
    if text in NAMES:
        return NAMES[text]
    kind, at, timestamp = text.partition("@")
    if at and kind == "s" and timestamp.isdecimal():
        return OffsetAtTimestamp(int(timestamp))
    if text.isdecimal():
        return ExactOffset(int(text))
    if text.startswith("-") and text[1:].isdecimal():
        return OffsetBeforeEnd(int(text[1:]))
    raise argparse.ArgumentTypeError(f"{text!r} is not an offset; specify one of: {HELP}")


async def resolve_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, OffsetArgument]
) -> dict[TopicPartition, int]:
    """Resolve the argument of each partition to an offset, with ListOffsets where necessary."""
    first = await list_offsets(
        cluster,
        {
            w: EARLIEST
            for w, offset in wanted.items()
            if isinstance(offset, BeginningOffset | OffsetBeforeEnd)
        },
    )
    timed = {w: o.timestamp_ms for w, o in wanted.items() if isinstance(o, OffsetAtTimestamp)}
    later = await list_offsets(cluster, timed)
    end = await list_offsets(
        cluster, {w: LATEST for w, offset in wanted.items() if not isinstance(offset, ExactOffset)}
    )
    found = {}
    for where, offset in wanted.items():
        match offset:
            case ExactOffset(number):
                found[where] = number
            case BeginningOffset():
                found[where] = first[where].offset
            case EndOffset():
                found[where] = end[where].offset
            case OffsetBeforeEnd(count):
                found[where] = max(first[where].offset, end[where].offset - count)
            case OffsetAtTimestamp():
                at = later[where].offset
                found[where] = at if at >= 0 else end[where].offset
    return found
