"""Which segments may go (Kafka's UnifiedLog.deleteOldSegments): values in, a number out.

Always from the oldest on, never past the high watermark, and never the last segment while it is
empty. With cleanup.policy=compact (or none) only what lies below the log's start goes: the active
segment too, where all of it does, which Kafka keeps (on a full disk it may be all there is).

Where segments are copied to the remote tier (KIP-405), `local.retention.*` says what the disk may
keep, and of that nothing goes before its copy is finished (T-15, T-30). The active segment is never
copied: once its turn has come it is rolled, so that it can be.
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

_log = logging.getLogger(__name__)


class Candidate(Protocol):
    """A segment, as retention sees it; sizes and timestamps are asked for only where they count."""

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
    """How many of the oldest segments may be deleted now, and whether the active one is to be rolled."""

    count: int
    rolls: bool = False


def find_expired(
    segments: Sequence[Candidate],
    config: LogConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    end_offset: int,
    now_ms: int,
    safe_to: int | None = None,
) -> ExpiredSegments:
    """See the module. `safe_to`: below that offset all is in the remote tier; None where nothing is to
    go there.

    A segment without timestamps is as old as `created_ms` says: since when this process has it.
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

    def prefix_from(first: int, expired: Callable[[Candidate], bool]) -> int:
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

        def too_much(segment: Candidate) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        count = prefix_from(count, too_much)
    if max_ms >= 0:
        count = prefix_from(count, lambda segment: _age_ms(segment, now_ms) > max_ms)
    return ExpiredSegments(count, rolls)


def _age_ms(segment: Candidate, now_ms: int) -> int:
    newest_ms = segment.max_timestamp
    return now_ms - (newest_ms if newest_ms >= 0 else segment.created_ms)


def delete_expired(log: LogState, now_ms: int) -> int:
    """Rename the segments that retention lets go; how many.

    1. If all may go, or the active one is to be copied: a new active segment (see `roll`).
    2. The log's start moves up. (Its checkpoint is only needed where it lies within a segment.) Not so
       where the segments are in the remote tier: the log begins there, and stays.
    3. The segments and their snapshots, the oldest first. A crash: the log, or the part of it that is
       on the disk, starts at the first that is left.

    A copied segment goes only if it is below the recovery point too: then the epochs' file has those
    of its batches, which could not be found here again. What is not, a flush is asked for.

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
        end_offset=log.tip.end_offset,
        now_ms=now_ms,
        safe_to=min(copied_end, log.recovery_point) if is_copied else None,
    )
    count = expired.count
    if count == len(segments) or expired.rolls:
        try:
            roll(log, log.tip.end_offset)
        except DiskFull:
            count = min(count, len(segments) - 1)  # the others make room
    if count:
        segments = log.segment_list.all
        if not is_copied:
            advance_log_start(log, segments[count].base_offset, "segments were deleted")
        at_ms = now_ms + log.config.file_delete_delay_ms
        gone = 0
        with log.replacing():
            try:
                for segment in segments[:count]:
                    log.deletions.add(segment, log.snapshots, at_ms)
                    gone += 1
            finally:  # those that are left are the log's, and found again by the next round
                log.segment_list.replace(segments[gone:])
                log.set_log_start(log.log_start_offset)
    return count


def advance_log_start(log: LogState, offset: int, reason: str) -> bool:
    """Forget what is below `offset`; True if the start moved. Raises OffsetOutOfRange."""
    if offset > log.high_watermark:
        raise OffsetOutOfRange(
            f"the log cannot start at {offset}, past the high watermark {log.high_watermark}"
        )
    if offset <= log.log_start_offset:
        return False
    _log.info("%s starts at %d now: %s", log.directory, offset, reason)
    log.needs_clean_close = True
    log.set_log_start(offset)
    log.epochs.truncate_from_start(offset)
    producers = log.producers_if_loaded
    if producers is not None:
        producers.replicated_to(offset)
    return True
