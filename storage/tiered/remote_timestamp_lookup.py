"""Offset lookups by timestamp for logs with segments in the remote tier (KIP-79, T-39).

Only remote segments whose largest timestamp qualifies are searched: by time index, then by batch
headers, then the records of one batch. Segments outside the log's lineage are ignored (E15). For a
segment without timestamps, the metadata has the time when it became inactive, and its time index is
empty. The fetch quota (remote.log.manager.fetch.max.bytes.per.second) does not apply, because
ListOffsets would have to return an error.

The local log is searched first, then the remote tier up to the local log start offset of that time.
A segment that local retention deletes in between is searched twice and never missed.

Index entries are checked against the batches where the search starts. A wrong index is fetched again,
and then the segment is searched without it (remote_index_cache.py).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

import trio

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import HEADER_SIZE, Batch
from odradek.seams.offload import Offload
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.timestamp_lookup import TimestampAndOffset, first_at_or_after
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    CorruptRemoteIndex,
    RemoteNotReady,
    RemoteResourceNotFound,
)
from odradek.storage.tiered.leader_epoch_lineage import is_within, with_records
from odradek.storage.tiered.remote_index_cache import RemoteIndexCache
from odradek.storage.tiered.remote_index_lookup import lookup_offset, time_entry_before
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_log_reader import (
    FETCH_BYTES_MAX,
    INDEX_ATTEMPTS,
    partition_of,
)
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
)
from odradek.storage.tiered.segment_range_cache import ContiguousRanges, SegmentRangeCache

_logger = logging.getLogger("odradek.tiered")

SEGMENTS_A_TURN = 20
"""Skipped segments per step, about 25 µs each."""
SEARCH_BYTES = 256 << 10
"""Bytes per fetch: an index leads to within a few KiB."""
HEADERS_A_TURN = 100
_INDEXES = (IndexType.TIMESTAMP, IndexType.OFFSET)
"""Indexes of a search."""
LATEST_SEARCHED_MAX = 32
"""Maximum number of segments that are searched for the largest timestamp, latest first."""


class _WrongIndex(CorruptRemoteIndex):
    """The index of type `kind` of a segment is wrong."""

    def __init__(self, kind: IndexType, segment: RemoteLogSegmentMetadata, text: str) -> None:
        super().__init__(f"the {kind.value} of remote segment {segment.id} {text}")
        self.kind = kind


@dataclass(slots=True)
class _SearchStart:
    """Start of a search by index entries, which the batches from there on must confirm."""

    position: int = 0
    ends_at: int | None = None
    """Offset at which one of the batches ends; None once it was found."""
    time_entry: tuple[int, int] | None = None
    """Largest timestamp (ms) of the batch that has this offset; None once it was found."""

    def check(self, segment: RemoteLogSegmentMetadata, batch: Batch, start_offset: int) -> None:
        """Check the entries that are of this batch. The search skips batches below `start_offset`.
        Raises _WrongIndex."""
        if self.ends_at is not None and batch.last_offset >= self.ends_at:
            if batch.last_offset != self.ends_at:
                raise _WrongIndex(
                    IndexType.OFFSET, segment, f"has offset {self.ends_at}, where no batch ends"
                )
            self.ends_at = None
        if self.time_entry is not None and batch.last_offset >= self.time_entry[1]:
            timestamp, offset = self.time_entry
            is_read = batch.base_offset <= offset or start_offset <= offset
            if is_read and not (batch.base_offset <= offset and batch.max_timestamp == timestamp):
                raise _WrongIndex(
                    IndexType.TIMESTAMP,
                    segment,
                    f"has timestamp {timestamp} for offset {offset}, but its batch does not",
                )
            self.time_entry = None


class RemoteTimestampLookup:
    """Finds offsets by timestamp in both tiers. Runs on the event loop."""

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        indexes: RemoteIndexCache,
        ranges: SegmentRangeCache,
        offload: Offload,
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._ranges = ranges
        self._offload = offload

    async def find(self, partition_log: PartitionLog, timestamp: int) -> TimestampAndOffset | None:
        """First record of both tiers with a timestamp at or after `timestamp` (ms). Raises
        RemoteStorageError and the errors of the log."""
        return await self._with_one_retry(
            partition_log, partial(self._find, partition_log, timestamp)
        )

    async def find_max(self, partition_log: PartitionLog) -> TimestampAndOffset | None:
        """First record of both tiers with the largest timestamp (KIP-734). Kafka searches the local
        tier only; so does this lookup if very many remote segments have no timestamps."""
        return await self._with_one_retry(partition_log, partial(self._find_max, partition_log))

    async def _with_one_retry(
        self, partition_log: PartitionLog, find: Callable[[], Awaitable[TimestampAndOffset | None]]
    ) -> TimestampAndOffset | None:
        """Retry once if a segment was deleted meanwhile; the log start offset is higher then."""
        try:
            return await find()
        except RemoteResourceNotFound as error:
            _logger.info("%r: retrying the timestamp lookup: %s", partition_log, error)
            return await find()

    async def _find(self, partition_log: PartitionLog, timestamp: int) -> TimestampAndOffset | None:
        local = await self._offload.run(
            partition_log.find_timestamp, timestamp, lane=str(partition_log.directory.parent)
        )
        start = partition_log.log_start_offset
        async for segment in self._only_remote(partition_log, timestamp):
            found = await self._find_in(partition_log, segment, timestamp, start)
            if found is not None:
                return found
        return local

    async def _find_max(self, partition_log: PartitionLog) -> TimestampAndOffset | None:
        local = await self._offload.run(
            partition_log.max_timestamp, lane=str(partition_log.directory.parent)
        )
        # Of records with equal timestamps, the remote one is first
        newest_ms = 0 if local is None else local.timestamp
        latest: list[tuple[int, int, int, RemoteLogSegmentMetadata]] = []
        count = 0  # two copies may have the same start offset
        async for segment in self._only_remote(partition_log, newest_ms):
            count -= 1
            heappush(latest, (segment.max_timestamp_ms, -segment.start_offset, count, segment))
            if len(latest) > LATEST_SEARCHED_MAX:
                heappop(latest)
        start = partition_log.log_start_offset
        for newest_ms, _, _, segment in sorted(latest, reverse=True):
            found = await self._find_in(partition_log, segment, newest_ms, start)
            if found is not None:
                return found
        return local

    async def _only_remote(
        self, partition_log: PartitionLog, timestamp: int
    ) -> AsyncIterator[RemoteLogSegmentMetadata]:
        """Finished segments of the log's lineage, by offset, that start below the local log and
        reach `timestamp`."""
        lineage = with_records(partition_log.epochs.entries)
        seen = checked = 0
        try:
            for segment in self._metadata.segments_reaching(partition_of(partition_log), timestamp):
                checked += 1
                if checked % SEGMENTS_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
                if segment.start_offset >= partition_log.local_log_start_offset:
                    return
                if (
                    segment.state is SegmentState.COPY_SEGMENT_FINISHED
                    and segment.end_offset >= max(seen, partition_log.log_start_offset)
                    and is_within(segment, lineage, partition_log.end_offset)
                ):
                    seen = segment.end_offset + 1  # the same records may have been copied twice
                    yield segment
        except RemoteResourceNotFound as error:  # not announced yet
            raise RemoteNotReady(str(error)) from error

    async def _find_in(
        self,
        partition_log: PartitionLog,
        segment: RemoteLogSegmentMetadata,
        timestamp: int,
        start_offset: int,
    ) -> TimestampAndOffset | None:
        """Search a segment. Retry after a wrong index was refused: it is fetched again, or not used."""
        for _ in range(INDEX_ATTEMPTS * len(_INDEXES)):
            try:
                return await self._search(partition_log, segment, timestamp, start_offset)
            except _WrongIndex as error:
                _logger.info(
                    "%r: retrying the lookup of timestamp %d: %s", partition_log, timestamp, error
                )
                await self._indexes.refuse(segment, error.kind, error)
        return await self._search(partition_log, segment, timestamp, start_offset)

    async def _search(
        self,
        partition_log: PartitionLog,
        segment: RemoteLogSegmentMetadata,
        timestamp: int,
        start_offset: int,
    ) -> TimestampAndOffset | None:
        start = await self._start(segment, timestamp, start_offset)
        if start is None:
            return None
        lane = str(partition_log.directory.parent)
        try:
            async for header in self._headers(segment, start.position):
                start.check(segment, header, start_offset)
                if header.max_timestamp < timestamp or header.last_offset < start_offset:
                    continue
                data = await self._bytes(segment, header.position, header.size)
                found = await self._offload.run(
                    _first_at, data, timestamp, start_offset, segment.id, lane=lane
                )
                if found is not None:
                    return found
        except (CorruptRemoteData, CorruptBatch) as error:
            if start.ends_at is None or isinstance(error, _WrongIndex):
                raise
            raise _WrongIndex(IndexType.OFFSET, segment, f"leads to no batch: {error}") from error
        return None

    async def _start(
        self, segment: RemoteLogSegmentMetadata, timestamp: int, start_offset: int
    ) -> _SearchStart | None:
        """Start of a search by the indexes. The segment's start if an index is missing or unusable;
        None if no record has a timestamp."""
        try:
            times = await self._indexes.fetch(segment, IndexType.TIMESTAMP)
            if not len(times):
                return None
            offsets = await self._indexes.fetch(segment, IndexType.OFFSET)
        except (RemoteResourceNotFound, CorruptRemoteData):
            return _SearchStart()
        time_entry = time_entry_before(times, segment.start_offset, timestamp)
        hint = max(segment.start_offset if time_entry is None else time_entry[1], start_offset)
        entry = lookup_offset(offsets, segment.start_offset, hint)
        if entry is None:
            return _SearchStart(time_entry=time_entry)
        if not 0 <= entry[1] < segment.size_bytes:
            raise _WrongIndex(IndexType.OFFSET, segment, f"leads to position {entry[1]}")
        return _SearchStart(entry[1], entry[0], time_entry)

    async def _headers(
        self, segment: RemoteLogSegmentMetadata, position: int
    ) -> AsyncIterator[Batch]:
        """Headers of the batches from `position` on. `Batch.position` is the position in the segment."""
        read = 0
        while position < segment.size_bytes:
            header = await self._bytes(segment, position, HEADER_SIZE)
            try:
                batch = Batch(memoryview(header))
            except CorruptBatch as error:
                raise CorruptRemoteData(
                    f"remote segment {segment.id} at {position}: {error}"
                ) from error
            batch.position = position
            yield batch
            position += batch.size
            read += 1
            if read % HEADERS_A_TURN == 0:
                await trio.lowlevel.checkpoint()

    async def _bytes(self, segment: RemoteLogSegmentMetadata, position: int, size: int) -> bytes:
        end = position + size
        if end > segment.size_bytes:
            raise CorruptRemoteData(
                f"remote segment {segment.id} ends in the middle of a batch at {position}"
            )
        return await self._ranges.with_free_memory(partial(self._read, segment, position, end))

    async def _read(
        self, segment: RemoteLogSegmentMetadata, position: int, end: int, may_exceed_limit: bool
    ) -> bytes:
        at_once = min(max(end - position, SEARCH_BYTES), FETCH_BYTES_MAX)
        ranges = self._ranges
        loaded = ContiguousRanges(
            await ranges.fetch(segment, position, position + at_once, is_for_consumer=False)
        )
        try:
            while loaded.end < end:
                loaded.add(
                    await ranges.extend(
                        segment,
                        loaded.end,
                        end,
                        may_exceed_limit=may_exceed_limit,
                        is_for_consumer=False,
                    )
                )
            return bytes(loaded.bytes_at(position, end - position))
        finally:
            loaded.close()


def _first_at(
    data: bytes, timestamp: int, start_offset: int, segment_id: RemoteLogSegmentId
) -> TimestampAndOffset | None:
    """First matching record of the batch. Runs in a thread, like the local lookup. Raises
    CorruptBatch."""
    batch = Batch(memoryview(data))
    batch.check()
    return first_at_or_after(batch, timestamp, start_offset, source=segment_id)
