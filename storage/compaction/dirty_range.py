"""Dirty range of a log, which the next compaction pass cleans (Kafka's LogCleanerManager), without I/O.

A log is clean up to `cleaned_to`. The dirty range ends at the first segment that may not be compacted:
the active segment, a segment at or past the last stable offset, a segment with a record younger than
`min.compaction.lag.ms`, or, unlike in Kafka, a segment that is not durable: a record must not replace
older ones while a power failure could remove it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from odradek.seams.values import value_class
from odradek.storage.log.config import LogConfig


class CleanableSegment(Protocol):
    """A segment; timestamps are read only if needed."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    def first_batch_timestamp(self) -> int: ...


@value_class
class LogBounds:
    """Offsets of a log. `durable_offset` is its recovery point, `cleaned_to` the end of the clean part."""

    start_offset: int
    last_stable_offset: int
    durable_offset: int
    end_offset: int
    cleaned_to: int | None


@value_class
class DirtyRange:
    """Dirty range of a log: offsets [first_dirty_offset, end_offset); `end_offset` is the base offset of a segment."""

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """For how long max.compaction.lag.ms has been exceeded; 0 if it has not."""

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    def is_due(self, config: LogConfig) -> bool:
        if not self.dirty_bytes:
            return False
        return self.overdue_ms > 0 or self.ratio > config.min_cleanable_dirty_ratio


def first_dirty_offset(bounds: LogBounds) -> int:
    """First dirty offset: the end of the clean part, or the log start offset if that is outside of
    the log."""
    cleaned_to = bounds.cleaned_to
    if cleaned_to is None or not bounds.start_offset <= cleaned_to <= bounds.end_offset:
        return bounds.start_offset
    return cleaned_to


def find_dirty_range(
    segments: Sequence[CleanableSegment], bounds: LogBounds, config: LogConfig, now_ms: int
) -> DirtyRange:
    """Dirty range of a log with these segments, the last of which is active."""
    first = first_dirty_offset(bounds)
    sealed = segments[:-1]
    ends = [segment.base_offset for segment in segments[1:]]
    dirty = [segment for segment, its_end in zip(sealed, ends, strict=True) if its_end > first]
    limit = min(bounds.last_stable_offset, bounds.durable_offset)
    end = first_too_young = segments[-1].base_offset
    if config.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - config.min_compaction_lag_ms
        for segment in dirty:
            if segment.max_timestamp > youngest_ms:
                first_too_young = segment.base_offset
                break
    for segment, its_end in zip(sealed, ends, strict=True):
        if its_end > limit or segment.base_offset >= first_too_young:
            end = segment.base_offset
            break
    clean_bytes = sum(each.size for each in sealed if each.base_offset < min(first, end))
    dirty_bytes = sum(each.size for each in dirty if each.base_offset < end)
    overdue_ms = _overdue_ms(dirty, config, now_ms)
    return DirtyRange(first, max(end, first), clean_bytes, dirty_bytes, overdue_ms)


def _overdue_ms(dirty: Iterable[CleanableSegment], config: LogConfig, now_ms: int) -> int:
    """Age of the oldest dirty segment, by its first batch, beyond max.compaction.lag.ms."""
    latest_ms = now_ms - config.max_compaction_lag_ms
    if latest_ms <= 0:
        return 0
    stamps = [stamp for each in dirty if (stamp := each.first_batch_timestamp()) > 0]
    return max(0, latest_ms - min(stamps, default=latest_ms))
