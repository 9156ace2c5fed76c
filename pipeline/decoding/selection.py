"""What of a partition is to be decoded: plain values, which cost whoever plans no compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from odradek.pipeline.decoding.schema import BATCHES, RECORDS

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
_OF_OFFSETS = frozenset(("topic", "partition", "offset"))
_FROM_HEADERS = _OF_OFFSETS | {"timestampType"}


@dataclass(frozen=True)
class AbortedTransaction:
    """A transaction that was given up: its producer's records from `first_offset` to `last_offset`, or to
    the producer's next marker, if that comes first: a broker does not say where it is."""

    producer_id: int
    first_offset: int
    last_offset: int = INT64_MAX

    def reaches_into(self, low: int, high: int) -> bool:
        """Whether one of the offsets from `low` on, before `high`, may be of it."""
        return self.first_offset < high and self.last_offset >= low


@dataclass(frozen=True)
class RecordSelection:
    """Which records of a partition, and what of them. Offsets and times: from the first on, before
    the second; `since_ms` and `until_ms` in ms since the epoch."""

    topic: str
    partition: int
    columns: Sequence[str]
    low: int = 0
    high: int = INT64_MAX
    since_ms: int = INT64_MIN
    until_ms: int = INT64_MAX
    too_late_ms: int = INT64_MAX
    """Behind a record as late as this nothing is wanted."""
    aborted: Sequence[AbortedTransaction] = field(default=())
    """Not read; for `isolation.level=read_committed`."""
    rows: str = RECORDS

    @property
    def is_timed(self) -> bool:
        return self.since_ms > INT64_MIN or self.until_ms < INT64_MAX

    @property
    def needs_offsets_alone(self) -> bool:
        """Whether there is nothing to be read where all offsets are known to have a record."""
        return self.rows == RECORDS and not self.is_timed and _OF_OFFSETS.issuperset(self.columns)

    def none_aborted(self, low: int, high: int) -> bool:
        """Whether no transaction was given up that may have had one of these offsets."""
        return not any(each.reaches_into(low, high) for each in self.aborted)

    @property
    def needs_records(self) -> bool:
        """Whether batch headers are not enough, however simple the batches are."""
        if self.rows == BATCHES:
            return "uncompressedBytes" in self.columns
        return self.is_timed or not _FROM_HEADERS.issuperset(self.columns)
