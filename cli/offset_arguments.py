"""Offset arguments (beginning, end, N, -N, s@ms) and their resolution to offsets of partitions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from odradek.client.consumer import EARLIEST, LATEST, TopicPartition, list_offsets
from odradek.client.metadata import Cluster
from odradek.seams.values import value_class

HELP = "beginning, end, N, -N (N before the end) or s@MS (the first record whose timestamp in ms is at least MS)"


@value_class
class Exactly:
    offset: int


@value_class
class BeforeEnd:
    """The offset `count` before the end, but at least the log start offset."""

    count: int


@value_class
class AtTimestamp:
    """The first record whose timestamp in ms is at least the given one, or the end if there is none."""

    timestamp_ms: int


@value_class
class Beginning:
    pass


@value_class
class End:
    pass


Offset = Exactly | BeforeEnd | AtTimestamp | Beginning | End

NAMES: Mapping[str, Offset] = {
    "beginning": Beginning(),
    "earliest": Beginning(),
    "end": End(),
    "latest": End(),
}


def parse_offset(text: str) -> Offset:
    """Parse an offset argument. Raises ArgumentTypeError."""
    if text in NAMES:
        return NAMES[text]
    kind, at, timestamp = text.partition("@")
    if at and kind == "s" and timestamp.isdecimal():
        return AtTimestamp(int(timestamp))
    if text.isdecimal():
        return Exactly(int(text))
    if text.startswith("-") and text[1:].isdecimal():
        return BeforeEnd(int(text[1:]))
    raise argparse.ArgumentTypeError(f"{text!r} is not an offset; give one of: {HELP}")


async def resolve_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, Offset]
) -> dict[TopicPartition, int]:
    """Resolve the argument of each partition to an offset, with ListOffsets where necessary."""
    first = await list_offsets(
        cluster,
        {w: EARLIEST for w, offset in wanted.items() if isinstance(offset, Beginning | BeforeEnd)},
    )
    timed = {w: o.timestamp_ms for w, o in wanted.items() if isinstance(o, AtTimestamp)}
    later = await list_offsets(cluster, timed)
    end = await list_offsets(
        cluster, {w: LATEST for w, offset in wanted.items() if not isinstance(offset, Exactly)}
    )
    found = {}
    for where, offset in wanted.items():
        match offset:
            case Exactly(number):
                found[where] = number
            case Beginning():
                found[where] = first[where].offset
            case End():
                found[where] = end[where].offset
            case BeforeEnd(count):
                found[where] = max(first[where].offset, end[where].offset - count)
            case AtTimestamp():
                at = later[where].offset
                found[where] = at if at >= 0 else end[where].offset
    return found
