"""Which log is compacted next, and how far (Kafka's LogCleanerManager): values in, values out.

A log is clean up to `cleaned_to`, dirty from there to the first segment that may not be compacted yet:
the active one, one that holds something undecided (at or past the last stable offset), one that has a
record younger than `min.compaction.lag.ms`, and, which Kafka does not ask for, one that is not durable
yet: a record must not take older ones of its key with it as long as a power cut may undo it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from odradek.seams.values import value_class
from odradek.storage.log.config import LogConfig


class Candidate(Protocol):
    """A segment, as the choice sees it; timestamps are asked for only where they count."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    def first_batch_timestamp(self) -> int: ...


@value_class
class Bounds:
    """Of a log: where it starts, where its decided and durable part ends, what is clean of it."""

    start: int
    last_stable: int
    durable: int
    end: int
    cleaned_to: int | None


@value_class
class Dirt:
    """Offsets [first_dirty, end) are to be compacted; `end` is the base offset of a segment."""

    first_dirty: int
    end: int
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


def first_dirty(bounds: Bounds) -> int:
    """Where the clean part ends. What lies outside of the log is no answer: then nothing is clean."""
    cleaned_to = bounds.cleaned_to
    if cleaned_to is None or not bounds.start <= cleaned_to <= bounds.end:
        return bounds.start
    return cleaned_to


def survey(segments: Sequence[Candidate], bounds: Bounds, config: LogConfig, now_ms: int) -> Dirt:
    """What there is to compact in a log of these segments, the last of which is the active one."""
    first = first_dirty(bounds)
    sealed = segments[:-1]
    ends = [segment.base_offset for segment in segments[1:]]
    dirty = [segment for segment, its_end in zip(sealed, ends, strict=True) if its_end > first]
    limit = min(bounds.last_stable, bounds.durable)
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
    return Dirt(first, max(end, first), clean_bytes, dirty_bytes, overdue_ms)


def _overdue_ms(dirty: Iterable[Candidate], config: LogConfig, now_ms: int) -> int:
    """The oldest dirty segment's age, by its first batch, beyond max.compaction.lag.ms."""
    latest_ms = now_ms - config.max_compaction_lag_ms
    if latest_ms <= 0:
        return 0
    stamps = [stamp for each in dirty if (stamp := each.first_batch_timestamp()) > 0]
    return max(0, latest_ms - min(stamps, default=latest_ms))
