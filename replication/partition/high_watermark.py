"""The high watermark: the offset below which every in-sync replica has the log."""

from __future__ import annotations

from collections.abc import Mapping, Set


def decide_high_watermark(
    current: int, leader: int, end_offsets: Mapping[int, int], in_sync: Set[int]
) -> int:
    """The offset (exclusive) that all of `in_sync` have, never below `current`.

    `end_offsets` is each replica's log end offset as the leader knows it, its own included; a
    member of the in-sync set that has not fetched yet holds the watermark where it is.
    """
    if in_sync == {leader}:
        return max(current, end_offsets[leader])
    known = [end_offsets.get(replica, current) for replica in in_sync | {leader}]
    return max(current, min(known))
