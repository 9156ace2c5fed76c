"""Filter push-down: restricts planning, fetching and decoding by a query's filters on partition, offset and
timestamp.

Filters that are fully understood are applied here, and Spark does not evaluate them again; all others are left to
Spark. Comparisons with null are false, as in SQL, with one exception: a row for unreadable offsets
(`onCorruptSegment=report`) has no timestamp, and passes comparisons of timestamps, so that a query for an hour
includes the gaps that may contain records of that hour. For this reason IsNotNull on the timestamp is left to
Spark, unless a pushed comparison implies it: Spark adds IsNotNull for each comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from odradek.pipeline.decoding.record_selection import INT64_MAX, INT64_MIN

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class PushedFilters:
    """Conjunction of the pushed filters: topics and partitions (None: all), low <= offset < high, since_ms <=
    timestamp < until_ms.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    low: int = INT64_MIN
    high: int = INT64_MAX
    since_ms: int = INT64_MIN
    until_ms: int = INT64_MAX

    @property
    def is_timed(self) -> bool:
        return self.since_ms > INT64_MIN or self.until_ms < INT64_MAX

    def too_late_ms(self, max_lateness_ms: int | None) -> int:
        """Return the timestamp (ms) after which no later record passes, if no record is more than `max_lateness_ms`
        older than an earlier one; INT64_MAX if that is not known.
        """
        if max_lateness_ms is None or self.until_ms == INT64_MAX:
            return INT64_MAX
        return self.until_ms + max_lateness_ms

    def offsets(self, topic: str, partition: int, low: int, high: int) -> tuple[int, int]:
        """Return the offset range (low, high) of a partition that may pass."""
        if not self.has_partition(topic, partition):
            return low, low
        return max(low, self.low), min(high, self.high)

    def has_partition(self, topic: str, partition: int) -> bool:
        """Whether rows of the partition may pass."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )


def push_down(filters: Iterable[Any], *, has_gaps: bool = False) -> tuple[PushedFilters, list[Any]]:
    """Split Spark's filters (a conjunction of `pyspark.sql.datasource.Filter`) into those applied here and those
    left to Spark. `has_gaps`: rows for unreadable offsets are possible.
    """
    from pyspark.sql.datasource import IsNotNull

    found, left, not_null = PushedFilters(), list[Any](), list[Any]()
    for each in filters:
        if isinstance(each, IsNotNull):
            not_null.append(each)
            continue
        narrower = _narrowed(found, each)
        if narrower is None:
            left.append(each)
        else:
            found = narrower
    never_null = _OF_GAPS_TOO if has_gaps else _NEVER_NULL
    if found.is_timed:
        never_null |= {"timestamp"}
    return found, left + [each for each in not_null if each.attribute[0] not in never_null]


def _narrowed(found: PushedFilters, each: Any) -> PushedFilters | None:
    """Add a filter; None if it is not fully understood."""
    from pyspark.sql import datasource as spark

    if not hasattr(each, "attribute") or not hasattr(each, "value") or len(each.attribute) != 1:
        return None
    (column,), value = each.attribute, each.value
    if column in ("topic", "partition") and isinstance(each, (spark.EqualTo, spark.In)):
        values = each.value if isinstance(each, spark.In) else (value,)
        return _only(found, column, values)
    bounds = _BOUNDS.get(type(each).__name__)
    if bounds is None or column not in ("offset", "timestamp"):
        return None
    if column == "offset":
        if not isinstance(value, int):
            return None
        low, high = bounds(value)
        return replace(found, low=max(found.low, low), high=min(found.high, high))
    at = _micros(value)
    if at is None:
        return None
    low, high = bounds(at)  # in microseconds; stored timestamps are in milliseconds
    since = INT64_MIN if low <= INT64_MIN else -(-low // 1000)
    until = INT64_MAX if high >= INT64_MAX else -(-high // 1000)
    return replace(found, since_ms=max(found.since_ms, since), until_ms=min(found.until_ms, until))


_OF_GAPS_TOO = frozenset(("topic", "partition", "offset"))
_NEVER_NULL = _OF_GAPS_TOO | {"timestamp", "timestampType"}

_BOUNDS: dict[str, Callable[[int], tuple[int, int]]] = {
    "EqualTo": lambda value: (value, value + 1),
    "EqualNullSafe": lambda value: (value, value + 1),
    "GreaterThan": lambda value: (value + 1, INT64_MAX),
    "GreaterThanOrEqual": lambda value: (value, INT64_MAX),
    "LessThan": lambda value: (INT64_MIN, value),
    "LessThanOrEqual": lambda value: (INT64_MIN, value + 1),
}
"""Half-open interval (low, high) of each comparison, by the filter's name."""


def _only(found: PushedFilters, column: str, values: Iterable[Any]) -> PushedFilters | None:
    kind = str if column == "topic" else int
    kept = frozenset(values)
    if not all(isinstance(each, kind) for each in kept):
        return None
    if column == "topic":
        return replace(found, topics=kept if found.topics is None else found.topics & kept)
    return replace(found, partitions=kept if found.partitions is None else found.partitions & kept)


def _micros(value: Any) -> int | None:
    """Return the microseconds of a timestamp literal; None without a zone, since the session's time zone is not
    known here.
    """
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)
