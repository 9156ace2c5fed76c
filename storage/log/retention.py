"""Which segments may go (Kafka's UnifiedLog.deleteOldSegments): values in, a number out.

Always from the oldest on, never past the high watermark, and never the last segment while it is
empty. With cleanup.policy=compact (or none) only what lies below the log's start goes: the active
segment too, where all of it does, which Kafka keeps (on a full disk it may be all there is).

Where segments are copied to the remote tier (KIP-405), `local.retention.*` says what the disk may
keep, and of that nothing goes before its copy is finished (T-15, T-30). The active segment is never
copied: once its turn has come it is rolled, so that it can be.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol

from odradek.seams.values import value_class
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


@value_class
class Expired:
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
) -> Expired:
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
        return Expired(count)
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
    return Expired(count, rolls)


def _age_ms(segment: Candidate, now_ms: int) -> int:
    newest_ms = segment.max_timestamp
    return now_ms - (newest_ms if newest_ms >= 0 else segment.created_ms)
