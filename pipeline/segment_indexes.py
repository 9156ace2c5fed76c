"""Where in a segment's log offsets and times are, by its indexes, as far as the log bears them out.

No CRC is over an index, and a log may well have no record of some offsets: what a wrong entry hides, nobody
would miss. So none is used but for what can be seen to be true:

| an entry says | it is used where |
|---|---|
| the batch at this position ends at this offset | whoever reads from there finds that it begins by then (`LogRange.begins_by`) |
| by this position all that is wanted has been | it has; if not, who reads goes on (`LogRange.end`) |
| the batch with this offset has this as its latest time, and none before it a later one | from each entry to the next both only grow, and that batch has: its header is looked at |

One is still believed wrongly whose time and offset are both wrong, if it fits between its neighbours and is true of a
batch that is not as late as one before it. An index that is not there, or wrong, makes reading slower, and is told in
the log.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from odradek.pipeline.decoding.selection import INT64_MIN
from odradek.pipeline.segment_columns import SegmentSlice
from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import HEADER_SIZE, Batch
from odradek.seams.files import Buffer
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.index_lookup import (
    check_index,
    first_time_entry_from,
    lookup_offset,
    position_behind,
    time_entry_at,
)
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata
from odradek.storage.tiered.object_names import LOG_SUFFIX, segment_key
from odradek.storage.tiered.remote_storage_manager import IndexType, RemoteStorageManager

log = logging.getLogger("odradek.pipeline")

LOOK_BYTES = 1 << 14
"""Where a batch is looked for: `index.interval.bytes`, 4 KiB unless it is set, lie between two entries."""
LOOKS_MAX = 8
"""Each at twice as many bytes as the one before."""

_TIME_ENTRY = np.dtype([("time", ">i8"), ("offset", ">i4")])
"""As `storage.log.time_index.ENTRY`."""


@dataclass(frozen=True)
class LogRange:
    """Bytes of a log: from `start` on, before `end`."""

    start: int
    end: int
    begins_by: int | None = None
    """The batch at `start` has this offset, or one before it as its first; None at the log's beginning."""


class SegmentIndexes:
    """See the module. Each index is fetched once, when it is needed."""

    def __init__(self, storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> None:
        self._storage = storage
        self._segment = segment

    @property
    def whole(self) -> LogRange:
        """All of the log."""
        return LogRange(0, self._segment.size_bytes)

    def narrowed(
        self, segment_slice: SegmentSlice, since_ms: int, too_late_ms: int
    ) -> SegmentSlice:
        """What of it may have records as late as `since_ms`, up to the first that is as late as `too_late_ms`: it
        may be nothing (`low` >= `high`). All of it where that cannot be told."""
        start = self._segment.start_offset
        is_early = since_ms > INT64_MIN
        is_late = self._segment.max_timestamp_ms >= too_late_ms
        index = self._times if is_early or is_late else None
        if index is None:
            return segment_slice
        low, high = segment_slice.low, segment_slice.high
        before = time_entry_at(index, start, since_ms - 1) if is_early else None
        if before is not None and before[1] > low and self._named_by(*before) is not None:
            low = before[1]
        by = first_time_entry_from(index, start, too_late_ms) if is_late else None
        late = self._named_by(*by) if by is not None and by[1] + 1 < high else None
        if late is not None:
            high = min(high, late.next_offset)
        return SegmentSlice(self._segment, low, high)

    def has_as_late(self, at_ms: int) -> bool:
        """Whether one of its records is known to be at or after that: its largest timestamp is, where no record has
        any, when it was sealed."""
        index = self._times
        if index is None:
            return False
        found = first_time_entry_from(index, self._segment.start_offset, at_ms)
        return found is not None and self._named_by(*found) is not None

    def place(self, low: int, high: int) -> LogRange:
        """What has all batches with the offsets from `low` on, before `high`, and one more on either side: no CRC
        is over a batch's first offset, its neighbours tell a wrong one. The whole log, where its index is
        of no use. Raises RemoteStorageError."""
        segment, index = self._segment, None
        if low > segment.start_offset or high <= segment.end_offset:
            index = self._offsets
        if index is None:
            return self.whole
        before = lookup_offset(index, segment.start_offset, low - 1)
        ends_at, start = before or (None, 0)
        if before is not None and not 0 < start < segment.size_bytes:
            self._is_of_no_use(
                IndexType.OFFSET, f"it says that offset {ends_at} is at byte {start}"
            )
            return self.whole
        end = position_behind(index, segment.start_offset, high - 1)
        if end is None or not start < end < segment.size_bytes:
            end = segment.size_bytes
        return LogRange(start, end, ends_at)

    @cached_property
    def _offsets(self) -> Buffer | None:
        try:
            index = self._storage.fetch_index(self._segment, IndexType.OFFSET)
            check_index(index, IndexType.OFFSET, self._segment)
        except (RemoteResourceNotFound, CorruptRemoteData) as error:
            self._is_of_no_use(IndexType.OFFSET, str(error))
            return None
        return index

    @cached_property
    def _times(self) -> Buffer | None:
        """None if it can't be had: reading the segment tells what is wrong, if anything is. Nor where its entries do
        not grow."""
        try:
            index = self._storage.fetch_index(self._segment, IndexType.TIMESTAMP)
            check_index(index, IndexType.TIMESTAMP, self._segment)
        except RemoteStorageError as error:
            log.debug("without a time index: %s", error)
            return None
        entries = np.frombuffer(index, _TIME_ENTRY)
        before, after = entries[:-1], entries[1:]
        grows = (before["time"] < after["time"]) & (before["offset"] < after["offset"])
        if not grows.all():
            number = int(grows.argmin())
            one, other = (entries[at].tolist() for at in (number, number + 1))
            text = f"its entries (ms, relative offset) do not grow from {one} to {other}"
            self._is_of_no_use(IndexType.TIMESTAMP, text)
            return None
        return index

    def _named_by(self, timestamp: int, offset: int) -> Batch | None:
        """The batch with that offset, if that is its latest time (ms), as an entry of the time index says."""
        try:
            found = self._batch_with(offset)
        except (RemoteStorageError, CorruptBatch) as error:
            log.debug("without a time index: %s", error)
            return None
        if found is not None and found.max_timestamp == timestamp:
            return found
        has = "has no batch there" if found is None else f"has {found.max_timestamp} ms"
        text = (
            f"it says that the batch with offset {offset} is of {timestamp} ms, and the log {has}"
        )
        self._is_of_no_use(IndexType.TIMESTAMP, text)
        return None

    def _batch_with(self, offset: int) -> Batch | None:
        """Its header; None where it is not found in some MB. Raises RemoteStorageError, CorruptBatch."""
        if self._offsets is None:
            return None
        before = lookup_offset(self._offsets, self._segment.start_offset, offset)
        position, size = before[1] if before else 0, LOOK_BYTES
        for _ in range(LOOKS_MAX):
            if not 0 <= position < self._segment.size_bytes:
                break
            view = memoryview(
                self._storage.fetch_segment(self._segment, position, position + size - 1)
            )
            at = 0
            while at + HEADER_SIZE <= len(view):
                batch = Batch(view, at)
                if batch.last_offset >= offset:
                    return batch if batch.base_offset <= offset else None
                at += batch.size
            if at == 0:
                break
            position, size = position + at, size * 2
        return None

    def _is_of_no_use(self, kind: IndexType, why: str) -> None:
        key = segment_key(self._segment, LOG_SUFFIX)
        name = segment_key(self._segment, kind.value)
        log.warning("%s is read without %s: %s", key, name, why)
