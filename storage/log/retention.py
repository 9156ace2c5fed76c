"""Retention (Kafka's UnifiedLog.deleteOldSegments): the decision is a function without I/O.

Segments are deleted from the oldest on, never past the high watermark, and never an empty active
segment. Without cleanup.policy=delete only segments below the log start offset are deleted: the active
one too if it is completely below, unlike in Kafka, because it may use all space of a full disk.

If segments are copied to the remote tier (KIP-405), `local.retention.*` limits the local log, and no
segment is deleted before its copy is finished (T-15, T-30). The active segment is never copied: when it
expires it is rolled, so that it can be.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol

from odradek.seams.values import value_class
from odradek.storage.errors import DiskFull, OffsetOutOfRange
from odradek.storage.log.config import LogConfig
from odradek.storage.log.roll import roll
from odradek.storage.log.state import LogState

_logger = logging.getLogger("odradek.log")


class RetentionCandidate(Protocol):
    """A segment; sizes and timestamps are read only if needed."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def created_ms(self) -> int: ...


@value_class
class ExpiredSegments:
    """Number of the oldest segments to delete now, and whether the active segment must be rolled."""

    count: int
    rolls: bool = False


def find_expired(
    segments: Sequence[RetentionCandidate],
    config: LogConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    end_offset: int,
    now_ms: int,
    safe_to: int | None = None,
) -> ExpiredSegments:
    """Apply the retention rules. Everything below `safe_to` is in the remote tier; None: segments are
    not copied.

    The age of a segment without timestamps is measured from `created_ms`, when this process created or
    found it.
    """
    is_copied = safe_to is not None
    ends = [segment.base_offset for segment in segments[1:]] + [end_offset]
    count = bisect_right(ends, log_start_offset)
    if segments[-1].base_offset == end_offset:
        count = min(count, len(segments) - 1)
    if not config.delete and (config.compact or not is_copied):
        return ExpiredSegments(count)
    max_bytes, max_ms = config.retention_bytes, config.retention_ms
    if is_copied:
        max_bytes, max_ms = config.local_limits
    rolls = False

    def prefix_from(first: int, expired: Callable[[RetentionCandidate], bool]) -> int:
        nonlocal rolls
        number = first
        while number < len(segments) and high_watermark >= ends[number]:
            segment = segments[number]
            is_active = number == len(segments) - 1
            if not expired(segment) or (is_active and not segment.size):
                break
            if safe_to is not None:
                rolls = rolls or is_active
                if ends[number] > safe_to:
                    break
            number += 1
        return number

    if max_bytes >= 0 and count < len(segments):
        excess = sum(segment.size for segment in segments[count:]) - max_bytes

        def too_much(segment: RetentionCandidate) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        count = prefix_from(count, too_much)
    if max_ms >= 0:
        count = prefix_from(count, lambda segment: _age_ms(segment, now_ms) > max_ms)
    return ExpiredSegments(count, rolls)


def _age_ms(segment: RetentionCandidate, now_ms: int) -> int:
    newest_ms = segment.max_timestamp
    return now_ms - (newest_ms if newest_ms >= 0 else segment.created_ms)


def delete_expired(log: LogState, now_ms: int) -> int:
    """Rename the expired segments to `.deleted`; their number.

    1. If all segments expired, or the active one must be copied: roll (see `roll`).
    2. The log start offset rises, except in a tiered log, whose start stays in the remote tier. Its
       checkpoint is needed only if the start is inside a segment.
    3. The segments and their snapshots are renamed, the oldest first. After a crash the local log starts
       at the first remaining segment.

    A copied segment is deleted only below the recovery point, because then the leader epoch checkpoint
    contains the epochs of its batches. Otherwise a flush is requested.

    Raises OSError, NoDescriptors, LogFailed.
    """
    segments = log.segment_list.all
    is_copied, copied_end = log.is_copied, log.highest_copied_offset + 1
    if is_copied and copied_end > log.recovery_point and log.on_flush_due is not None:
        log.on_flush_due(copied_end)
    expired = find_expired(
        segments,
        log.config,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        end_offset=log.log_end.end_offset,
        now_ms=now_ms,
        safe_to=min(copied_end, log.recovery_point) if is_copied else None,
    )
    count = expired.count
    if count == len(segments) or expired.rolls:
        try:
            roll(log, log.log_end.end_offset)
        except DiskFull:
            count = min(count, len(segments) - 1)  # the other segments free space
    if count:
        segments = log.segment_list.all
        if not is_copied:
            advance_log_start(log, segments[count].base_offset, "segment deletion")
        at_ms = now_ms + log.config.file_delete_delay_ms
        gone = 0
        with log.replacing():
            try:
                for segment in segments[:count]:
                    log.deletions.add(segment, log.snapshots, at_ms)
                    gone += 1
            finally:  # remaining segments are deleted by the next run
                log.segment_list.replace(segments[gone:])
                log.set_log_start(log.log_start_offset)
    return count


def advance_log_start(log: LogState, offset: int, reason: str) -> bool:
    """Raise the log start offset; True if it changed. Raises OffsetOutOfRange past the high
    watermark."""
    if offset > log.high_watermark:
        raise OffsetOutOfRange(
            f"cannot increment the log start offset to {offset} since it is larger than the high "
            f"watermark {log.high_watermark}"
        )
    if offset <= log.log_start_offset:
        return False
    _logger.info("%s: incremented log start offset to %d due to %s", log.directory, offset, reason)
    log.needs_clean_close = True
    log.set_log_start(offset)
    log.epochs.truncate_from_start(offset)
    producers = log.producers_if_loaded
    if producers is not None:
        producers.replicated_to(offset)
    return True
