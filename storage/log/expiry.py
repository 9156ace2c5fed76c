"""Deleting the oldest segments (what retention.py decides), and moving the log's start."""

from __future__ import annotations

import logging

from odradek.storage.errors import DiskFull, OffsetOutOfRange
from odradek.storage.log.retention import find_expired
from odradek.storage.log.roll import roll
from odradek.storage.log.state import LogState

_log = logging.getLogger(__name__)


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
                log.starts_at(log.log_start_offset)
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
    log.is_touched = True
    log.starts_at(offset)
    log.epochs.truncate_from_start(offset)
    producers = log.producers_if_loaded
    if producers is not None:
        producers.replicated_to(offset)
    return True
