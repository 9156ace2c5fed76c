"""Which segments may go (Kafka's UnifiedLog.deleteOldSegments): values in, a number out.

Always from the oldest on, never past the high watermark, and never the last segment while it is
empty. With cleanup.policy=compact (or none) only what lies below the log's start goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from odradek.storage.log.config import LogConfig


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


def count_expired(
    segments: Sequence[Candidate],
    config: LogConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    end_offset: int,
    now_ms: int,
) -> int:
    """How many of the oldest segments may be deleted now.

    A segment without timestamps is as old as `created_ms` says: since when this process has it.
    """
    count = _below_log_start(segments, log_start_offset)
    if not config.delete:
        return count
    ends = [segment.base_offset for segment in segments[1:]] + [end_offset]

    def prefix_from(first: int, expired: Callable[[Candidate], bool]) -> int:
        number = first
        while number < len(segments) and high_watermark >= ends[number]:
            segment = segments[number]
            if not expired(segment) or (number == len(segments) - 1 and not segment.size):
                break
            number += 1
        return number

    if config.retention_bytes >= 0 and count < len(segments):
        excess = sum(segment.size for segment in segments[count:]) - config.retention_bytes

        def too_much(segment: Candidate) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        count = prefix_from(count, too_much)
    if config.retention_ms >= 0:
        count = prefix_from(count, lambda segment: _age_ms(segment, now_ms) > config.retention_ms)
    return count


def _below_log_start(segments: Sequence[Candidate], log_start_offset: int) -> int:
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= log_start_offset:
        count += 1
    return count


def _age_ms(segment: Candidate, now_ms: int) -> int:
    newest_ms = segment.max_timestamp
    return now_ms - (newest_ms if newest_ms >= 0 else segment.created_ms)
