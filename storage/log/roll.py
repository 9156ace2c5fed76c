"""Roll: seal the active segment and create the next one (Kafka's LogSegment.shouldRoll).

A roll is due if the batches to append do not fit `segment.bytes`, if the segment spans `segment.ms` less
its jitter, if an index is full, or if an offset does not fit the 32 bits of the indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from odradek.protocol.records.batch import NO_TIMESTAMP, Batch
from odradek.storage.log.config import LogConfig
from odradek.storage.log.offset_index import ENTRY as OFFSET_ENTRY
from odradek.storage.log.offset_index import RELATIVE_MAX
from odradek.storage.log.read import LogEnd
from odradek.storage.log.segment import Segment
from odradek.storage.log.state import LogState, offline_on_failure
from odradek.storage.log.time_index import ENTRY as TIME_ENTRY


class ActiveSegment(Protocol):
    """The active segment, as `should_roll` needs it."""

    base_offset: int
    created_ms: int
    roll_jitter_ms: int
    index_interval_bytes: int

    @property
    def size(self) -> int: ...
    @property
    def offset_entries(self) -> int: ...
    @property
    def time_entries(self) -> int: ...

    def first_batch_timestamp(self) -> int:
        """Largest timestamp of the first batch; -1: none."""
        ...


def should_roll(
    active: ActiveSegment,
    config: LogConfig,
    append_bytes: int,
    last_offset: int,
    max_timestamp: int,
    now_ms: int,
) -> bool:
    """Whether the batches to append (up to `last_offset`) need a new segment.

    Time is measured from the first batch's timestamp to the new one's; without timestamps, by the clock
    from the creation of the segment.
    """
    size = active.size
    if size > config.max_segment_bytes - append_bytes:
        return True
    if size > 0:
        first_timestamp = active.first_batch_timestamp()
        if first_timestamp > NO_TIMESTAMP:
            waited_ms = max_timestamp - first_timestamp
        else:
            waited_ms = now_ms - active.created_ms
        if waited_ms > config.max_segment_ms - active.roll_jitter_ms:
            return True
    index_bytes = config.segment_index_bytes
    return (
        active.offset_entries >= index_bytes // OFFSET_ENTRY.size
        or active.time_entries >= index_bytes // TIME_ENTRY.size - 1
        or last_offset - active.base_offset > RELATIVE_MAX
    )


class RollLimits(NamedTuple):
    """Limits (inclusive) up to which an append to `active` under `config` needs no `should_roll`."""

    active: ActiveSegment | None = None
    config: LogConfig | None = None
    position: int = -1
    """End position of the append in the segment."""
    max_timestamp: int = -1
    last_offset: int = -1


def roll_limits(active: ActiveSegment, config: LogConfig) -> RollLimits:
    """Limits of the active segment; none if the clock decides, or if the segment has no timestamp yet.

    An index gets at most one entry per `index_interval_bytes`, so its free entries determine the number
    of bytes until it is full.
    """
    if not active.size or active.first_batch_timestamp() <= NO_TIMESTAMP:
        return RollLimits()
    index_bytes = config.segment_index_bytes
    entries_left = min(
        index_bytes // OFFSET_ENTRY.size - active.offset_entries,
        index_bytes // TIME_ENTRY.size - 1 - active.time_entries,
    )
    indexed_bytes = (entries_left - 1) * active.index_interval_bytes
    return RollLimits(
        active,
        config,
        min(config.max_segment_bytes, active.size + indexed_bytes),
        active.first_batch_timestamp() + config.max_segment_ms - active.roll_jitter_ms,
        active.base_offset + RELATIVE_MAX,
    )


def roll(log: LogState, base_offset: int) -> Segment:
    """Seal the active segment and create the next at `base_offset`; no effect if the active one is
    empty.

    Runs on the loop, so nothing is synced here; `flush` does that:

    0. If the log is compacted and no checkpoint contains its recovery point yet, a checkpoint is
       written: with a second segment, recovery must know that a gap before it is a loss.
    1. The new segment's empty files. After a crash there is an empty last segment, or none. If the disk
       is full, they are removed and the roll fails.
    2. The producer snapshot, unless no records remain before the new segment: loading would remove it,
       and a full disk may have no space for it. After a crash its CRC may be invalid, and an older one
       is used.
    3. The last time index entry of the old segment; its indexes are trimmed. After a crash before the
       flush they are rebuilt, because they are past the recovery point.
    4. The new segment becomes visible, and a flush is requested: data, indexes, snapshot, directory, and
       the recovery point last. Until then recovery scans both segments.

    Raises DiskFull, NoDescriptors, LogFailed.
    """
    active = log.segment_list.active
    if not active.size and active.base_offset == base_offset:
        return active
    producers = log.producers
    try:
        if log.config.compact and not log.is_checkpointed and log.on_checkpoint_due is not None:
            log.on_checkpoint_due()
        fresh = new_segment(log, base_offset)
    except OSError as error:
        raise log.handle_io_error(error, files_unchanged=True) from error
    try:
        producers.map_end_offset = base_offset
        if base_offset > log.log_start_offset:
            log.snapshots.take(producers)
        active.seal()
    except OSError as error:
        with offline_on_failure(log):
            fresh.remove()
        raise log.handle_io_error(error, files_unchanged=True) from error
    log.directory_needs_sync = True  # for the snapshot, too
    log.segment_list.add(fresh)
    log.log_end = LogEnd(log.log_end.end_offset, fresh, 0)
    if log.on_flush_due is not None:
        log.on_flush_due(base_offset)
    return fresh


def new_segment(log: LogState, base_offset: int) -> Segment:
    """Create an empty segment; its name is not durable yet. Raises OSError, with nothing created."""
    config = log.config
    jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
    log.needs_clean_close = True
    fresh = Segment.create(
        log.files,
        log.directory,
        base_offset,
        index_interval_bytes=config.index_interval_bytes,
        created_ms=log.clock.wall_ms(),
        roll_jitter_ms=log.entropy.below(jitter_ms) if jitter_ms and log.entropy else 0,
    )
    log.directory_needs_sync = True
    return fresh


class AppendingLog(LogState, Protocol):
    """A log that remembers the limits of its active segment."""

    roll_limits: RollLimits


def roll_if_full(
    log: AppendingLog, batches: Sequence[Batch], size_bytes: int, max_timestamp: int, now_ms: int
) -> Segment:
    """The segment that `batches` (`size_bytes` bytes) are appended to: the active one, or a new one.

    A new segment begins at the log end offset, also if compaction left a gap in the leader's log before
    the first batch: therefore log recovery treats a gap between two segments as a loss. The exception is
    a gap too wide for the relative offsets of a segment.
    """
    segment = log.log_end.segment
    last_offset = batches[-1].last_offset
    try:
        if not should_roll(segment, log.config, size_bytes, last_offset, max_timestamp, now_ms):
            log.roll_limits = roll_limits(segment, log.config)
            return segment
    except OSError as error:  # the first batch's timestamp may have to be read
        raise log.handle_io_error(error) from error
    end_offset = log.log_end.end_offset
    spans = last_offset - end_offset <= RELATIVE_MAX
    return roll(log, end_offset if spans else batches[0].base_offset)
