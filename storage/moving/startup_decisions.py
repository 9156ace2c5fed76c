"""Decision table of a start for the future replicas that interrupted moves left (J-13 to J-16).

Kafka's `topic-partition.<uuid>-future` is treated as `.move`. Directories that end in `.delete` or `-delete` are
removed later in any case (J-16), so they are not in the table. A `tp` counts only if its topic id is not different
from that of the `.move`. One decision covers all log directories that could be read:

| `tp` in    | `.move` in           | a log directory | directory in the      | action                               |
|            |                      | is offline      | cluster metadata      |                                      |
|------------|----------------------|-----------------|-----------------------|--------------------------------------|
| 1          | 1, another           | either          | -                     | RESUME (J-13)                        |
| 1          | several, others      | either          | -                     | RESUME the first, DISCARD the others |
| 1          | the same             | either          | -                     | DISCARD                              |
| 2 or more  | any                  | either          | -                     | LEAVE: the current replica is        |
|            |                      |                 |                       | ambiguous                            |
| 0          | 1                    | no              | of this node, unknown | PROMOTE (J-14)                       |
| 0          | 1                    | no              | not of this node      | OFFLINE, files unchanged             |
| 0          | 1                    | yes             | -                     | OFFLINE, files unchanged (J-15)      |
| 0          | several              | either          | -                     | OFFLINE, files unchanged             |

PROMOTE completes a swap that a crash interrupted: the swap renames the current replica to `.delete` durably before
it renames `.move`, and at that point `.move` contains the complete log. However, an unmounted disk looks like an
empty log directory with a new id. Therefore a single `.move` is not promoted if the cluster metadata assigns the
replica to a directory that this node does not have.

An empty `tp` is a current replica like any other, because it may have been truncated. No swap, of this broker or
of Kafka, leaves an empty `tp` next to a future replica with more records, and an empty log of a failed creation is
removed durably before a move can start.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from odradek.seams.files import Path


class MoveLeftover(NamedTuple):
    """A `.move` or `-future` directory that a start found."""

    directory: Path
    """The log directory that contains it."""
    name: str


class StartupAction(Enum):
    """Action of a start for one future replica; see the table."""

    RESUME = "resume"
    DISCARD = "discard"
    LEAVE = "leave"
    PROMOTE = "promote"
    OFFLINE = "offline"


class StartupDecision(NamedTuple):
    """A future replica that was found, and the action for it."""

    leftover: MoveLeftover
    action: StartupAction


def decide_startup(
    live: Sequence[Path],
    leftovers: Sequence[MoveLeftover],
    *,
    is_any_offline: bool,
    is_elsewhere: bool = False,
) -> list[StartupDecision]:
    """Return one decision for each future replica of a partition, in the order of `leftovers`.

    `live`: the log directories with a current replica. `is_any_offline`: a log directory is offline.
    `is_elsewhere`: the cluster metadata assigns the replica to a directory that this node does not have.
    """
    if len(live) > 1:
        return [StartupDecision(leftover, StartupAction.LEAVE) for leftover in leftovers]
    if not live:
        is_whole = len(leftovers) == 1 and not is_any_offline and not is_elsewhere
        action = StartupAction.PROMOTE if is_whole else StartupAction.OFFLINE
        return [StartupDecision(leftover, action) for leftover in leftovers]
    decisions = []
    is_resumed = False
    for leftover in leftovers:
        resumes = leftover.directory != live[0] and not is_resumed
        is_resumed = is_resumed or resumes
        action = StartupAction.RESUME if resumes else StartupAction.DISCARD
        decisions.append(StartupDecision(leftover, action))
    return decisions
