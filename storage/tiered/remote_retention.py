"""Decides which remote log segments the leader deletes, and the new log start offset (T-36).

First, segments of failed copies and of lost lineages, at any offset:

| segment | deleted because of |
|---|---|
| this broker is copying or deleting it | kept |
| its deletion has started | UNFINISHED: some of its objects may remain |
| its copy has started and no broker continues it | DANGLING |
| all its epochs are before the log's first epoch | UNREFERENCED: no client can read it |

Then the finished segments, from the oldest on, until one is kept:

| segment | deleted because of | advances the log start offset |
|---|---|---|
| ends below the log start offset, and has no epoch after the log's first | LOG_START (T-37) | |
| outside the lineage (E15) | skipped: it is not part of this log | |
| its newest record (or the copy, if no record has a timestamp) is older than retention.ms | RETENTION_MS | to its end |
| the log without it has still retention.bytes | RETENTION_BYTES (S-03) | to its end |
| any other | kept, like all that follow | |

The decision has no I/O. It runs in steps and is limited in the number of segments, because a
partition may have very many.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator

from odradek.seams.values import value_class
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered.leader_epoch_lineage import is_within, with_records
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
)

EXPIRED_AT_ONCE = 256
"""Maximum number of segments from each table per run; the next run continues."""
LOOKED_AT_A_STEP = 32
"""Segments per step, about half a millisecond."""


class DeletionReason(enum.Enum):
    UNFINISHED = "its deletion was incomplete"
    DANGLING = "its copy was incomplete"
    LOG_START = "it is below the log start offset"
    RETENTION_MS = "its newest record is older than retention.ms"
    RETENTION_BYTES = "the log is larger than retention.bytes"
    UNREFERENCED = "its leader epochs are before the log's first"
    NOT_TIERED = "remote storage is disabled for its topic"

    @property
    def moves_start(self) -> bool:
        """Whether the log start offset must pass the segment before the segment is deleted."""
        return self in (DeletionReason.RETENTION_MS, DeletionReason.RETENTION_BYTES)


@value_class
class RetentionInput:
    """Input of a retention decision. Sizes are in bytes; -1 is no limit, as in the topic's
    configuration.

    `epochs` is the log's whole epoch cache. `local_only_bytes` is the size of what is on the disk
    and not in the remote tier. `remote_bytes` is the size of the remote segments of this lineage,
    each counted once (S-02).
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
    """Segment to delete, with the reason."""

    segment: RemoteLogSegmentMetadata
    reason: DeletionReason


@value_class
class ExpirationDecision:
    """Segments to delete. `log_start_offset` is None if it does not change; `more` is whether the
    limit was reached."""

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
    """Yield None after each step, so that other tasks can run, and the decision last. Changes in
    the meantime are left to the next run: a log that grew or starts later keeps no less than it
    should.

    `segments` has all segments by start offset and is consumed only as far as needed. `left_over`
    has the unfinished segments and those of epochs before the log's first; it may have duplicates.

    `in_progress`: this broker copies or deletes the segment. `is_dangling`: no broker continues the
    unfinished copy.
    """
    decision = _ExpirationRun(retained)
    more = False
    for number, segment in enumerate(left_over, 1):
        if len(decision.expired) >= limit:
            more = True
            break
        if not in_progress(segment):
            decision.decide_unfinished(segment, is_dangling)
        if number % LOOKED_AT_A_STEP == 0:
            yield None
    limit += len(decision.expired)
    for number, segment in enumerate(segments, 1):
        if len(decision.expired) >= limit:
            more = True
            break
        is_decided = segment.id in decision.expired or in_progress(segment)
        if not is_decided and not decision.decide_finished(segment):
            break
        if number % LOOKED_AT_A_STEP == 0:
            yield None
    yield decision.made(more=more)


class _ExpirationRun:
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

    def decide_unfinished(
        self,
        segment: RemoteLogSegmentMetadata,
        is_dangling: Callable[[RemoteLogSegmentMetadata], bool],
    ) -> None:
        if segment.state is SegmentState.DELETE_SEGMENT_STARTED:
            self._delete(segment, DeletionReason.UNFINISHED)
        elif segment.state is SegmentState.COPY_SEGMENT_STARTED:
            if is_dangling(segment):
                self._delete(segment, DeletionReason.DANGLING)
        elif self._is_unreferenced(segment):
            self._delete(segment, DeletionReason.UNREFERENCED)

    def decide_finished(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Decide on a finished segment; whether the following ones may be deleted too."""
        if segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
            return True
        of_lineage = is_within(segment, self._lineage, self._retained.log_end_offset)
        if self._is_below_log_start(segment):
            if of_lineage:
                self._excess -= segment.size_bytes
            return self._delete(segment, DeletionReason.LOG_START)
        if not of_lineage:
            return True
        if _newest_ms(segment) < self._oldest_ms:
            return self._expire(segment, DeletionReason.RETENTION_MS)
        if 0 < self._excess >= segment.size_bytes:
            return self._expire(segment, DeletionReason.RETENTION_BYTES)
        return False

    def _delete(self, segment: RemoteLogSegmentMetadata, reason: DeletionReason) -> bool:
        self.expired[segment.id] = ExpiredSegment(segment, reason)
        return True

    def _expire(self, segment: RemoteLogSegmentMetadata, reason: DeletionReason) -> bool:
        self._excess -= segment.size_bytes
        self._log_start = max(self._log_start, segment.end_offset + 1)
        return self._delete(segment, reason)

    def _is_below_log_start(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether DeleteRecords or an earlier leader moved the log start offset past it. A segment
        with a later epoch than the log's first may belong to a lost lineage and is decided on
        with that epoch."""
        return (
            bool(self._lineage)
            and segment.end_offset < self._retained.log_start_offset
            and segment.epochs[-1].epoch <= self._lineage[0].epoch
        )

    def _is_unreferenced(self, segment: RemoteLogSegmentMetadata) -> bool:
        epochs = self._retained.epochs
        return bool(epochs) and segment.epochs[-1].epoch < epochs[0].epoch


def _newest_ms(segment: RemoteLogSegmentMetadata) -> int:
    """Largest timestamp, or the time of the copy if no record has a timestamp."""
    newest_ms = segment.max_timestamp_ms
    return newest_ms if newest_ms >= 0 else segment.event_timestamp_ms
