"""Which remote segments a partition's leader deletes now, and where its log starts after that (T-36).

First what is left over from attempts that failed and from lineages that were lost, wherever it lies:

| left over | goes because of |
|---|---|
| somebody here is at work on it | stays |
| its deletion has begun | UNFINISHED: objects of it may be there still |
| its copy has begun, and goes on nowhere | DANGLING |
| all its epochs are before the log's first | UNREFERENCED: nobody can ask for it |

Then the finished ones from the oldest on, as long as one after the other may go:

| a segment | goes because of | moves the log's start |
|---|---|---|
| that ends below the log's start, of no epoch after the log's first | LOG_START (T-37) | |
| outside the lineage (E15) | is passed over: it is not this log's | |
| whose newest record is too old (the copy, where no record has a timestamp) | RETENTION_MS | to its end |
| without which the log is still retention.bytes large | RETENTION_BYTES (S-03) | to its end |
| any other | stays, and so do those after it | |

Values in, a value out. There may be very many segments, so that it is come by in steps, and no more than
so many are to go at once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator

from odradek.seams.values import value_class
from odradek.storage.log.epochs import EpochStart
from odradek.storage.tiered.leader_epoch_lineage import is_within, with_records
from odradek.storage.tiered.metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
)

EXPIRED_AT_ONCE = 256
"""So many segments of each table go in one round; the rest follows."""
LOOKED_AT_A_STEP = 32
"""About half a millisecond."""


class DeletionReason(enum.Enum):
    UNFINISHED = "its deletion was not finished"
    DANGLING = "its copy was not finished"
    LOG_START = "the log starts after it"
    RETENTION_MS = "its newest record is older than retention.ms"
    RETENTION_BYTES = "the log is larger than retention.bytes"
    UNREFERENCED = "it is of leaders before the log's first"
    NOT_TIERED = "its topic is not tiered any more"

    @property
    def moves_start(self) -> bool:
        """Whether the log has to begin after it before it goes."""
        return self in (DeletionReason.RETENTION_MS, DeletionReason.RETENTION_BYTES)


@value_class
class RetentionInput:
    """What expiry goes by. Sizes in bytes, -1 is no limit, as in the topic's configs.

    `epochs` is the log's whole cache. `local_only_bytes` is what is on the disks and not in the remote
    tier, `remote_bytes` what there is in it of this lineage, each segment counted once (S-02).
    """

    epochs: tuple[EpochStart, ...]
    log_start_offset: int
    log_end_offset: int
    retention_ms: int
    retention_bytes: int
    local_only_bytes: int
    remote_bytes: int
    now_ms: int


@value_class
class ExpiredSegment:
    segment: RemoteLogSegmentMetadata
    reason: DeletionReason


@value_class
class ExpirationDecision:
    """`log_start_offset` is None where it stays; `more`: there is more to be decided upon."""

    expired: tuple[ExpiredSegment, ...]
    log_start_offset: int | None = None
    more: bool = False


def decide_expiration(
    retained: RetentionInput,
    segments: Iterable[RemoteLogSegmentMetadata],
    left_over: Iterable[RemoteLogSegmentMetadata] = (),
    *,
    in_progress: Callable[[RemoteLogSegmentMetadata], bool] = lambda segment: False,
    is_dangling: Callable[[RemoteLogSegmentMetadata], bool] = lambda segment: False,
    limit: int = EXPIRED_AT_ONCE,
) -> Iterator[ExpirationDecision | None]:
    """None after each step, for turns of others, and last what is decided. What changes meanwhile is for
    the next round: a log that has grown, or begins later, keeps no less than it should.

    `segments`: all, by ascending start offset; no more of them are taken than needed. `left_over`:
    all that are not finished, and those of epochs before the log's first; one may come twice.

    `in_progress`: somebody here copies or deletes it. `is_dangling`: of a copy that is not finished,
    whether nobody goes on with it.
    """
    decision = _Decision(retained)
    more = False
    for number, segment in enumerate(left_over, 1):
        if len(decision.expired) >= limit:
            more = True
            break
        if not in_progress(segment):
            decision.look_at_left_over(segment, is_dangling)
        if number % LOOKED_AT_A_STEP == 0:
            yield None
    limit += len(decision.expired)
    for number, segment in enumerate(segments, 1):
        if len(decision.expired) >= limit:
            more = True
            break
        is_decided = segment.id in decision.expired or in_progress(segment)
        if not is_decided and not decision.goes_on_after(segment):
            break
        if number % LOOKED_AT_A_STEP == 0:
            yield None
    yield decision.made(more=more)


class _Decision:
    def __init__(self, retained: RetentionInput) -> None:
        self._retained = retained
        self._lineage = with_records(retained.epochs)
        self._oldest_ms = (
            retained.now_ms - retained.retention_ms if retained.retention_ms >= 0 else -1
        )
        self._excess = (
            retained.local_only_bytes + retained.remote_bytes - retained.retention_bytes
            if retained.retention_bytes >= 0
            else 0
        )
        self._log_start = retained.log_start_offset
        self.expired: dict[RemoteLogSegmentId, ExpiredSegment] = {}

    def made(self, *, more: bool) -> ExpirationDecision:
        has_moved = self._log_start > self._retained.log_start_offset
        return ExpirationDecision(
            tuple(self.expired.values()), self._log_start if has_moved else None, more
        )

    def look_at_left_over(
        self,
        segment: RemoteLogSegmentMetadata,
        is_dangling: Callable[[RemoteLogSegmentMetadata], bool],
    ) -> None:
        if segment.state is SegmentState.DELETE_SEGMENT_STARTED:
            self._goes(segment, DeletionReason.UNFINISHED)
        elif segment.state is SegmentState.COPY_SEGMENT_STARTED:
            if is_dangling(segment):
                self._goes(segment, DeletionReason.DANGLING)
        elif self._is_unreferenced(segment):
            self._goes(segment, DeletionReason.UNREFERENCED)

    def goes_on_after(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Decide upon it; whether those after it may go too."""
        if segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
            return True
        of_lineage = is_within(segment, self._lineage, self._retained.log_end_offset)
        if self._is_below_log_start(segment):
            if of_lineage:
                self._excess -= segment.size_bytes
            return self._goes(segment, DeletionReason.LOG_START)
        if not of_lineage:
            return True
        if _newest_ms(segment) < self._oldest_ms:
            return self._expires(segment, DeletionReason.RETENTION_MS)
        if 0 < self._excess >= segment.size_bytes:
            return self._expires(segment, DeletionReason.RETENTION_BYTES)
        return False

    def _goes(self, segment: RemoteLogSegmentMetadata, reason: DeletionReason) -> bool:
        self.expired[segment.id] = ExpiredSegment(segment, reason)
        return True

    def _expires(self, segment: RemoteLogSegmentMetadata, reason: DeletionReason) -> bool:
        self._excess -= segment.size_bytes
        self._log_start = max(self._log_start, segment.end_offset + 1)
        return self._goes(segment, reason)

    def _is_below_log_start(self, segment: RemoteLogSegmentMetadata) -> bool:
        """By DeleteRecords, or a leader before this one. Of a later epoch than the log's first it may
        be of a lineage that was lost: the epoch's own turn comes."""
        return (
            bool(self._lineage)
            and segment.end_offset < self._retained.log_start_offset
            and segment.epochs[-1].epoch <= self._lineage[0].epoch
        )

    def _is_unreferenced(self, segment: RemoteLogSegmentMetadata) -> bool:
        epochs = self._retained.epochs
        return bool(epochs) and segment.epochs[-1].epoch < epochs[0].epoch


def _newest_ms(segment: RemoteLogSegmentMetadata) -> int:
    """Records without timestamps are as old as their copy, as they are to the local tier as old as their
    segment."""
    newest_ms = segment.max_timestamp_ms
    return newest_ms if newest_ms >= 0 else segment.event_timestamp_ms
