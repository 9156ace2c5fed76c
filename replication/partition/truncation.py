"""Where two replicas' logs part, and where the follower cuts its own (KIP-101, KIP-279, KIP-595).

An epoch has one leader, who appends once: two logs that hold the same epoch at an offset are the same
up to there. So replicas compare not records but epochs and where these end. One round finds the last
epoch that both know, unless the follower has an epoch below it that the leader lacks; then the
follower cuts less than it must, and asks again with what is left (KIP-279). Each such round takes an
epoch off the follower's history, so the rounds come to an end, and none of them cuts what the leader
has too.

| the leader says of the follower's last epoch | the follower cuts at | and then |
|---|---|---|
| nothing: it knows no such epoch, nor a later one | its high watermark | fetches |
| an offset, no epoch (OffsetForLeaderEpoch v0) | that offset | fetches |
| an epoch that the follower has | where it ends first, here or there | fetches |
| an epoch that the follower has not | the end of its last epoch before | asks again |
| an epoch before all that the follower knows | that epoch's end at the leader | fetches |

Never past the follower's own end. The answer may lie below the follower's high watermark: after an
unclean election what was committed is given up, and that is the only case.
"""

from __future__ import annotations

from typing import Protocol

from odradek.seams.values import value_class
from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.log.epochs import NO_EPOCH, NO_OFFSET, EpochEnd


class Epochs(Protocol):
    """A log's history of leaders: `storage.log.epochs.LeaderEpochCache`."""

    @property
    def latest(self) -> int | None: ...

    def end_offset_for(self, epoch: int) -> EpochEnd: ...


@value_class
class Truncation:
    """Cut off all from `offset` on; `done` False: the logs may part even before that, ask again."""

    offset: int
    done: bool


def decide_truncation(
    own: Epochs, *, end_offset: int, high_watermark: int, leader: EpochEnd
) -> Truncation:
    """See the table. `leader`: what it said, to OffsetForLeaderEpoch or as a diverging epoch."""
    if leader.end_offset == NO_OFFSET:
        return Truncation(min(high_watermark, end_offset), True)
    if leader.epoch == NO_EPOCH:
        return Truncation(min(leader.end_offset, end_offset), True)
    mine = own.end_offset_for(leader.epoch)
    if mine.end_offset == NO_OFFSET:
        return Truncation(min(leader.end_offset, end_offset), True)
    if mine.epoch != leader.epoch:
        return Truncation(min(mine.end_offset, end_offset), False)
    return Truncation(min(mine.end_offset, leader.end_offset, end_offset), True)


def find_divergence(
    own: Epochs, *, start_offset: int, fetch_offset: int, last_fetched_epoch: int
) -> EpochEnd | None:
    """The leader's half: what to tell who has `last_fetched_epoch` below `fetch_offset` (-1: does
    not say); None if its log is the start of ours.

    Raises OffsetOutOfRange if the logs cannot be compared: the epoch is later than all of ours, or the
    follower ends below `start_offset`.
    """
    if last_fetched_epoch == NO_EPOCH:
        return None
    end = own.end_offset_for(last_fetched_epoch)
    if end.epoch == NO_EPOCH or end.end_offset == NO_OFFSET:
        raise OffsetOutOfRange(f"epoch {last_fetched_epoch} is later than all that are known here")
    if fetch_offset < start_offset:
        raise OffsetOutOfRange(f"the log starts at {start_offset}, past {fetch_offset}")
    if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset:
        return end
    return None
