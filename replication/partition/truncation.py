"""Decides where a follower truncates its log when it diverges from the leader's (KIP-101, KIP-279, KIP-595).

`follower_state.py` calls it, `follower_role.py` executes the truncation, and `storage/log/truncation.py` truncates the
log's files.

An epoch has one leader, which appends each offset once: two logs with the same epoch at an offset
are identical up to it. So replicas compare epochs and their end offsets, not records. One request
finds the last common epoch, unless the follower has an epoch below it that the leader does not
have. Then the follower truncates less than necessary, and queries again with the remaining epochs
(KIP-279). Each such request removes an epoch from the follower's log, so their number is limited,
and none truncates records that the leader has.

| the leader's result for the follower's last epoch | the follower truncates to | then |
|---|---|---|
| none: it knows neither this epoch nor a later one | its high watermark | fetches |
| an offset without epoch (OffsetForLeaderEpoch v0) | that offset | fetches |
| an epoch that the follower has | the smaller of both end offsets of the epoch | fetches |
| an epoch that the follower does not have | the end of its last earlier epoch | queries again |
| an epoch before all of the follower's | the leader's end offset of that epoch | fetches |

The offset is never past the follower's log end offset. It is below the follower's high watermark
only after an unclean leader election, which loses committed records.
"""

from __future__ import annotations

from typing import Protocol

from odradek.seams.values import value_class
from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.log.leader_epoch_cache import NO_EPOCH, NO_OFFSET, EpochEnd


class LeaderEpochs(Protocol):
    """Leader epochs of a log: `storage.log.leader_epoch_cache.LeaderEpochCache`."""

    @property
    def latest(self) -> int | None: ...

    def end_offset_for(self, epoch: int) -> EpochEnd: ...


@value_class
class Truncation:
    """Offset to truncate to. `done` False: the logs may diverge even earlier; query again."""

    offset: int
    done: bool


def decide_truncation(
    own: LeaderEpochs, *, end_offset: int, high_watermark: int, leader: EpochEnd
) -> Truncation:
    """Decide by the table.

    `leader` is the result of OffsetForLeaderEpoch, or the diverging epoch of a Fetch response.
    """
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
    own: LeaderEpochs, *, start_offset: int, fetch_offset: int, last_fetched_epoch: int
) -> EpochEnd | None:
    """Return the diverging epoch for a follower; None if its log is a prefix of this one.

    `last_fetched_epoch` is the epoch of the follower's record before `fetch_offset` (-1: not sent).

    Raises OffsetOutOfRange if the logs cannot be compared: the epoch is later than all of this log,
    or the follower ends below `start_offset`.
    """
    if last_fetched_epoch == NO_EPOCH:
        return None
    end = own.end_offset_for(last_fetched_epoch)
    if end.epoch == NO_EPOCH or end.end_offset == NO_OFFSET:
        raise OffsetOutOfRange(
            f"epoch {last_fetched_epoch} is later than the last epoch of the log"
        )
    if fetch_offset < start_offset:
        raise OffsetOutOfRange(f"the log starts at {start_offset}, past {fetch_offset}")
    if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset:
        return end
    return None
