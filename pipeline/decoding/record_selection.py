"""Selection of a partition's records to decode. It has plain values and imports no compiler, since the planner uses
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from odradek.pipeline.decoding.schema import BATCHES, RECORDS

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
_OF_OFFSETS = frozenset(("topic", "partition", "offset"))
_FROM_HEADERS = _OF_OFFSETS | {"timestampType"}


@dataclass(frozen=True)
class AbortedTransaction:
    """An aborted transaction: the producer's records from `first_offset` to `last_offset`, or to the producer's
    next marker if that is earlier, because brokers do not report the marker's offset.
    """

    producer_id: int
    first_offset: int
    last_offset: int = INT64_MAX

    def reaches_into(self, low: int, high: int) -> bool:
        """Whether it may contain one of the offsets low <= offset < high."""
        return self.first_offset < high and self.last_offset >= low


@dataclass(frozen=True)
class RecordSelection:
    """Which records of a partition, and which columns, are decoded. Upper bounds are exclusive; `since_ms` and
    `until_ms` are ms since the epoch.
    """

    topic: str
    partition: int
    columns: Sequence[str]
    low: int = 0
    high: int = INT64_MAX
    since_ms: int = INT64_MIN
    until_ms: int = INT64_MAX
    too_late_ms: int = INT64_MAX
    """No record after one with a timestamp this late (ms) is wanted."""
    aborted: Sequence[AbortedTransaction] = field(default=())
    """Aborted transactions, which are skipped with `isolation.level=read_committed`."""
    rows: str = RECORDS

    @property
    def is_timed(self) -> bool:
        return self.since_ms > INT64_MIN or self.until_ms < INT64_MAX

    @property
    def needs_offsets_alone(self) -> bool:
        """Whether nothing must be read for offsets that are known to have a record."""
        return self.rows == RECORDS and not self.is_timed and _OF_OFFSETS.issuperset(self.columns)

    def none_aborted(self, low: int, high: int) -> bool:
        """Whether no aborted transaction may contain one of the offsets low <= offset < high."""
        return not any(each.reaches_into(low, high) for each in self.aborted)

    @property
    def needs_records(self) -> bool:
        """Whether batch headers are never enough, so that records must be decoded."""
        if self.rows == BATCHES:
            return "uncompressedBytes" in self.columns
        return self.is_timed or not _FROM_HEADERS.issuperset(self.columns)
