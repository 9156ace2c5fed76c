"""Flush and clean close of a log. A failed sync is never retried: it raises LogFailed."""

from __future__ import annotations

from odradek.storage.directories.io_errors import takes_offline
from odradek.storage.log.segment import Segment
from odradek.storage.log.state import LogState, offline_on_failure


def flush(log: LogState, up_to: int | None = None) -> None:
    """Make everything below `up_to` (default: the log end offset) durable; in a worker thread,
    concurrently with appends.

    1. Each segment from the recovery point on: data, then indexes.
    2. Producer snapshots; the leader epoch checkpoint if it is out of date.
    3. The directory, if files were created.
    4. `recovery_point`, unless a truncation ran meanwhile. The directory's checkpoint follows later: an
       older one only makes recovery scan more.

    After a crash at any point the old recovery point applies, and everything past it is scanned.
    """
    with log.flushing:
        generation = log.generation
        end = log.log_end.end_offset
        target = end if up_to is None else min(up_to, end)
        if target > log.recovery_point:
            _sync(log, log.recovery_point, target)
            if generation == log.generation:
                log.recovery_point = target


def flush_gap(log: LogState) -> None:
    """Make a gap between two segments, which the leader's log has too, part of the durable log: below
    the recovery point, recovery does not treat it as a loss. Runs on the loop, at most once in
    2^31 offsets. Raises LogFailed."""
    end = log.log_end.end_offset
    with offline_on_failure(log):
        while log.recovery_point < end:  # unless a swap replaced the segments meanwhile
            flush(log)
        if log.on_checkpoint_due is not None:
            log.on_checkpoint_due()


def _sync(log: LogState, start: int, end: int) -> None:
    """Sync the segments with offsets in [start, end), the snapshots, the epochs and the directory."""
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
        raise log.handle_io_error(error, files_unchanged=True) from error
    if log.directory_needs_sync:
        log.directory_needs_sync = (
            False  # cleared first, so that files created meanwhile set it again
        )
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
            # Retention may delete a segment meanwhile; then there is nothing to sync.
            if generation == log.wait_until_settled():
                raise
            if segment not in log.segment_list.all:
                return None


def close_cleanly(log: LogState) -> None:
    """Write the files of a clean shutdown: trimmed indexes, the largest timestamp in the time index, a
    producer snapshot at the log end; then sync everything.

    After a crash there is no clean shutdown file, so everything past the recovery point is scanned. On a
    full disk there is no new snapshot, and the next start reads the records after the previous one.
    Raises LogFailed, and DiskFull if the indexes are incomplete: then the directory gets no clean shutdown
    file, and the next start completes them.
    """
    try:
        log.segment_list.active.seal()
    except OSError as error:
        raise log.handle_io_error(error, files_unchanged=True) from error
    try:
        log.snapshots.take(log.producers)
    except OSError as error:
        if takes_offline(error, files_unchanged=True):
            raise log.handle_io_error(error) from error
    with log.flushing:
        log.directory_needs_sync = True
        # Includes the active segment, which was sealed, even if all of it is below the recovery point.
        _sync(log, min(log.recovery_point, log.log_end.segment.base_offset), 1 << 63)
        log.recovery_point = log.log_end.end_offset
