"""Looks up offsets and timestamps in a segment's indexes, and verifies the entries against the log.

Indexes have no CRC, and a log may have no records for some offsets, so records that are hidden by a wrong entry
would not be noticed. So an entry is only used if it can be verified:

| an entry means | it is verified by |
|---|---|
| the batch at this position ends at this offset | the reader, which checks the batch there (`LogRange.begins_by`) |
| all wanted records are before this position | the reader, which otherwise continues (`LogRange.end`) |
| the batch with this offset has this max timestamp, and no earlier batch a later one | increasing entries, and that batch's header |

An entry with a wrong timestamp and a wrong offset is still used if it fits between the adjacent entries and is true
of a batch that is not as late as an earlier one. A missing or corrupt index makes reading slower, and is logged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property

from odradek.pipeline.decoding.record_selection import INT64_MIN
from odradek.pipeline.segment_columns import SegmentSlice
from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import HEADER_SIZE, Batch
from odradek.seams.files import Buffer
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    CorruptRemoteIndex,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.object_names import LOG_SUFFIX, segment_key
from odradek.storage.tiered.remote_index_lookup import (
    check_index,
    first_time_entry_from,
    lookup_offset,
    position_behind,
    time_entry_at,
)
from odradek.storage.tiered.remote_storage_manager import IndexType, RemoteStorageManager
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata

log = logging.getLogger("odradek.pipeline")

LOOK_BYTES = 1 << 14
"""Bytes in which a batch is searched; `index.interval.bytes` (default 4 KiB) are between two entries."""
ATTEMPTS_MAX = 8
"""Maximum number of searches, each in twice as many bytes."""


@dataclass(frozen=True)
class LogRange:
    """Bytes start <= position < end of a log."""

    start: int
    end: int
    begins_by: int | None = None
    """The batch at `start` must have a base offset of at most this; None at the start of the log."""


class SegmentIndexes:
    """Indexes of one segment, each of which is fetched at most once, when it is used."""

    def __init__(self, storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> None:
        self._storage = storage
        self._segment = segment

    @property
    def whole(self) -> LogRange:
        """Return the range of the whole log."""
        return LogRange(0, self._segment.size_bytes)

    def narrowed(
        self, segment_slice: SegmentSlice, since_ms: int, too_late_ms: int
    ) -> SegmentSlice:
        """Narrow a slice to the offsets that may have records from `since_ms` up to the first one at or after
        `too_late_ms`; the result may be empty (`low` >= `high`). Returns the slice unchanged if the time index
        is not usable.
        """
        start = self._segment.start_offset
        is_early = since_ms > INT64_MIN
        is_late = self._segment.max_timestamp_ms >= too_late_ms
        index = self._times if is_early or is_late else None
        if index is None:
            return segment_slice
        low, high = segment_slice.low, segment_slice.high
        before = time_entry_at(index, start, since_ms - 1) if is_early else None
        if before is not None and before[1] > low and self._batch_of_entry(*before) is not None:
            low = before[1]
        by = first_time_entry_from(index, start, too_late_ms) if is_late else None
        late = self._batch_of_entry(*by) if by is not None and by[1] + 1 < high else None
        if late is not None:
            high = min(high, late.next_offset)
        return SegmentSlice(self._segment, low, high)

    def has_record_at_or_after(self, at_ms: int) -> bool:
        """Whether a record at or after `at_ms` is known to exist. The segment's max timestamp does not suffice: if
        no record has a timestamp, it is the time at which the segment was rolled.
        """
        index = self._times
        if index is None:
            return False
        found = first_time_entry_from(index, self._segment.start_offset, at_ms)
        return found is not None and self._batch_of_entry(*found) is not None

    def place(self, low: int, high: int) -> LogRange:
        """Return the bytes of all batches with offsets low <= offset < high, and one more batch on both sides, to
        check base offsets, which the CRC does not cover. Returns the whole log if the index is not usable.
        Raises RemoteStorageError.
        """
        segment, index = self._segment, None
        if low > segment.start_offset or high <= segment.end_offset:
            index = self._offsets
        if index is None:
            return self.whole
        before = lookup_offset(index, segment.start_offset, low - 1)
        ends_at, start = before or (None, 0)
        if before is not None and not 0 < start < segment.size_bytes:
            self._log_unusable_index(
                IndexType.OFFSET, f"its entry has offset {ends_at} at byte {start}"
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
            self._log_unusable_index(IndexType.OFFSET, str(error))
            return None
        return index

    @cached_property
    def _times(self) -> Buffer | None:
        """Return the time index; None if it cannot be read or is wrong. Errors of the segment itself are found
        when it is read.
        """
        try:
            index = self._storage.fetch_index(self._segment, IndexType.TIMESTAMP)
            check_index(index, IndexType.TIMESTAMP, self._segment)
        except CorruptRemoteIndex as error:
            self._log_unusable_index(IndexType.TIMESTAMP, str(error))
            return None
        except RemoteStorageError as error:
            log.debug("reading without a time index: %s", error)
            return None
        return index

    def _batch_of_entry(self, timestamp: int, offset: int) -> Batch | None:
        """Return the batch with that offset if its max timestamp (ms) is the one of the entry."""
        try:
            found = self._batch_with(offset)
        except (RemoteStorageError, CorruptBatch) as error:
            log.debug("reading without a time index: %s", error)
            return None
        if found is not None and found.max_timestamp == timestamp:
            return found
        has = "has no batch at that offset" if found is None else f"has {found.max_timestamp} ms"
        text = f"its entry has {timestamp} ms for the batch with offset {offset}, the log {has}"
        self._log_unusable_index(IndexType.TIMESTAMP, text)
        return None

    def _batch_with(self, offset: int) -> Batch | None:
        """Return the header of the batch with that offset; None if it is not found within some MB. Raises
        RemoteStorageError, CorruptBatch.
        """
        if self._offsets is None:
            return None
        before = lookup_offset(self._offsets, self._segment.start_offset, offset)
        position, size = before[1] if before else 0, LOOK_BYTES
        for _ in range(ATTEMPTS_MAX):
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

    def _log_unusable_index(self, kind: IndexType, why: str) -> None:
        key = segment_key(self._segment, LOG_SUFFIX)
        name = segment_key(self._segment, kind.value)
        log.warning("%s is read without %s: %s", key, name, why)
