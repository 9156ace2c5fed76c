"""What a start makes of the directories that moves left: one decision table (J-13 to J-16).

Kafka's `topic-partition.<uuid>-future` counts as `.move`. What ends in `.delete` or `-delete` is
removed later, whatever else there is (J-16), so it is no part of the decision. For each partition,
over all directories that could be read (`tp` and `.move` by what they say of their topic's id: one of
another topic of that name does not count):

| `tp` in    | `.move` in         | a directory | the replica belongs | done                             |
|            |                    | is bad      | (the metadata says) |                                  |
|------------|--------------------|-------------|---------------------|----------------------------------|
| 1          | 1, another         | either      | -                   | RESUME the move (J-13)           |
| 1          | several, others    | either      | -                   | RESUME the first, DISCARD others |
| 1          | the same           | either      | -                   | DISCARD it: it leads nowhere     |
| 2 and more | any                | either      | -                   | LEAVE: which is right is unknown |
| 0          | 1                  | no          | here, or not known  | PROMOTE it (J-14)                |
| 0          | 1                  | no          | to a disk not here  | OFFLINE, untouched               |
| 0          | 1                  | yes         | -                   | OFFLINE, untouched (J-15)        |
| 0          | several            | either      | -                   | OFFLINE, untouched               |

J-14 is what a crash in the middle of the swap leaves: the source is renamed to `.delete`, durably,
before `.move` gets the name, and by then `.move` has everything. But an unmounted disk is an empty,
healthy directory with a new id: so where the metadata names a directory for the replica that is none
of ours any more, a lone `.move` is not taken for the whole replica.

A `tp` without a record is a log like any other, which its copy follows: it may have been truncated. No
swap leaves one beside a copy that has more, neither this one nor Kafka's, which leaves two whole ones; and
one that a failed creation has left is removed durably before a move can begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from odradek.seams.files import Path


class Left(NamedTuple):
    """A `.move` or `-future` directory that was found."""

    directory: Path
    """The log directory it is in."""
    name: str


class Verdict(Enum):
    RESUME = "resume"
    DISCARD = "discard"
    LEAVE = "leave"
    PROMOTE = "promote"
    OFFLINE = "offline"


class Decision(NamedTuple):
    left: Left
    verdict: Verdict


def decide(
    live: Sequence[Path], left: Sequence[Left], *, any_bad: bool, is_elsewhere: bool = False
) -> list[Decision]:
    """One verdict for each of `left`, in their order.

    `live`: the log directories that the partition itself is in. `any_bad`: one is offline.
    `is_elsewhere`: the metadata has the replica in a directory that is none of this node's.
    """
    if len(live) > 1:
        return [Decision(each, Verdict.LEAVE) for each in left]
    if not live:
        is_whole = len(left) == 1 and not any_bad and not is_elsewhere
        verdict = Verdict.PROMOTE if is_whole else Verdict.OFFLINE
        return [Decision(each, verdict) for each in left]
    decisions = []
    is_resumed = False
    for each in left:
        resumes = each.directory != live[0] and not is_resumed
        is_resumed = is_resumed or resumes
        decisions.append(Decision(each, Verdict.RESUME if resumes else Verdict.DISCARD))
    return decisions
