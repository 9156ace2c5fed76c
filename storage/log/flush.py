"""Making what was written durable, and closing. A failed sync is never tried again: LogFailed."""

from __future__ import annotations

from odradek.storage.log.segment import Segment
from odradek.storage.log.state import LogState, offline_on_failure


def flush(log: LogState, up_to: int | None = None) -> None:
    """Make all below `up_to` (default: the end as of now) durable. Off the loop, beside appends.

    1. Each segment from the recovery point on: data, then indexes.
    2. Producer snapshots; the leader epochs, if the file lags behind.
    3. The directory, if names were added to it.
    4. `recovery_point`, unless a truncation came in between. (The log directory's checkpoint follows
       when it may: an older one only scans more.)

    A crash at any point: the recovery point is the old one, all past it is scanned.
    """
    with log.flushing:
        generation = log.generation
        end = log.tip.end_offset
        target = end if up_to is None else min(up_to, end)
        if target > log.recovery_point:
            _sync(log, log.recovery_point, target)
            if generation == log.generation:
                log.recovery_point = target


def flush_gap(log: LogState) -> None:
    """The log has come to have a gap between two segments that its leader's has, too: below the recovery
    point, and that durable, it is not taken for the end of a segment that was lost. On the loop, but
    once in 2^31 offsets at most. Raises LogFailed."""
    end = log.tip.end_offset
    with offline_on_failure(log):
        while log.recovery_point < end:  # unless a swap came in between
            flush(log)
        if log.on_checkpoint_due is not None:
            log.on_checkpoint_due()


def _sync(log: LogState, start: int, end: int) -> None:
    """Sync the segments that have offsets of [start, end), and what belongs to the log."""
    try:
        for segment in log.segment_list.from_offset(start):
            if segment.base_offset < end:
                _sync_segment(log, segment)
        log.snapshots.sync()
    except OSError as error:
        raise log.handle_io_error(error) from error
    try:
        log.epochs.save()
    except OSError as error:
        raise log.handle_io_error(error, undone=True) from error
    if log.directory_needs_sync:
        log.directory_needs_sync = False  # before, so that what is added from here on counts
        try:
            log.files.sync_directory(log.directory)
        except OSError as error:
            log.directory_needs_sync = True
            raise log.handle_io_error(error) from error


def _sync_segment(log: LogState, segment: Segment) -> None:
    while True:
        generation = log.generation
        try:
            return segment.sync()
        except (FileNotFoundError, ValueError):
            # Retention may take a segment away meanwhile; then there is nothing to sync.
            if generation == log.settled():
                raise
            if segment not in log.segment_list.all:
                return None


def close_cleanly(log: LogState) -> None:
    """Leave the files as a clean shutdown does: indexes trimmed, the largest timestamp in the time
    index, a producer snapshot at the end; then all durable. The mark of it is the directory's.

    A crash at any point: there is no mark, so all past the recovery point is scanned.
    """
    try:
        log.segment_list.active.seal()
        log.snapshots.take(log.producers)
    except OSError as error:
        raise log.handle_io_error(error) from error
    with log.flushing:
        log.directory_needs_sync = True
        # The active segment even where nothing of it lies past the recovery point: it was sealed.
        _sync(log, min(log.recovery_point, log.tip.segment.base_offset), 1 << 63)
        log.recovery_point = log.tip.end_offset
