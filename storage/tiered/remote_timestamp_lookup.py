"""Offsets by timestamp, where a log lies in two tiers (KIP-79, T-39).

Of the segments that are only remote those are looked at that may have the record, by what the metadata
says of their largest timestamps: one is searched by its time index, then its batches' headers, then the
records of the one batch that matters. Segments of a history that is not ours don't count (E15). Of one
without timestamps the metadata says when it was sealed; its time index is empty. Fetches alone have a quota
(remote.log.manager.fetch.max.bytes.per.second): whoever asks for an offset would have to be told an error.

The local log is asked before, and then the remote tier up to where the local log begins by then: what
leaves the disk in between is looked at twice, and never passed over.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from heapq import heappop, heappush

import trio

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import HEADER_SIZE, NO_TIMESTAMP, Batch
from odradek.protocol.records.records import decode_lazily
from odradek.seams.offload import Offload
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.timestamps import TimestampAndOffset
from odradek.storage.tiered.errors import CorruptRemoteData, RemoteNotReady, RemoteResourceNotFound
from odradek.storage.tiered.index_lookup import lookup_offset, lookup_timestamp
from odradek.storage.tiered.leader_epoch_lineage import is_within, with_records
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata, SegmentState
from odradek.storage.tiered.remote_index_cache import RemoteIndexCache
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_log_reader import FETCH_BYTES_MAX, partition_of
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_range_cache import ContiguousRanges, SegmentRangeCache

log = logging.getLogger("odradek.remote")

SEGMENTS_A_TURN = 20
"""Looked at in vain, some 25 µs each."""
SEARCH_BYTES = 256 << 10
"""Fetched at a time: an index leads to within a few KiB."""
HEADERS_A_TURN = 100
LATEST_SEARCHED_MAX = 32
"""Segments that are asked for the largest timestamp, the latest first, as long as they have none."""


class RemoteTimestampLookup:
    """See the module. Called on the loop."""

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        indexes: RemoteIndexCache,
        pieces: SegmentRangeCache,
        offload: Offload,
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._pieces = pieces
        self._offload = offload

    async def find(self, partition_log: PartitionLog, timestamp: int) -> TimestampAndOffset | None:
        """The first record of both tiers whose timestamp is at or after `timestamp` (ms). Raises
        RemoteStorageError, and what the log's does."""
        return await self._undisturbed(partition_log, partial(self._find, partition_log, timestamp))

    async def find_max(self, partition_log: PartitionLog) -> TimestampAndOffset | None:
        """The first record of both tiers with the largest timestamp (KIP-734). Kafka's knows those of
        the local tier alone, and so do we where very many remote segments have no timestamps."""
        return await self._undisturbed(partition_log, partial(self._find_max, partition_log))

    async def _undisturbed(
        self, partition_log: PartitionLog, find: Callable[[], Awaitable[TimestampAndOffset | None]]
    ) -> TimestampAndOffset | None:
        """Once more if a segment went away under the search: the log begins later by then."""
        try:
            return await find()
        except RemoteResourceNotFound as error:
            log.info("%r is searched for a timestamp once more: %s", partition_log, error)
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
        newest_ms = 0 if local is None else local.timestamp  # of equals the first is remote
        latest: list[tuple[int, int, int, RemoteLogSegmentMetadata]] = []
        count = 0  # two copies may begin alike
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
        """The finished segments of our history that reach below the local log, and `timestamp`; by
        their offsets."""
        lineage = with_records(partition_log.epochs.entries)
        seen = asked = 0
        try:
            for segment in self._metadata.segments_reaching(partition_of(partition_log), timestamp):
                asked += 1
                if asked % SEGMENTS_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
                if segment.start_offset >= partition_log.local_log_start_offset:
                    return
                if (
                    segment.state is SegmentState.COPY_SEGMENT_FINISHED
                    and segment.end_offset >= max(seen, partition_log.log_start_offset)
                    and is_within(segment, lineage, partition_log.end_offset)
                ):
                    seen = segment.end_offset + 1  # the same may have been copied twice
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
        """Once more where an index leads to no batch: what is kept of it on the disk may be the culprit."""
        try:
            return await self._search(partition_log, segment, timestamp, start_offset)
        except (CorruptRemoteData, CorruptBatch) as error:
            log.info(
                "%r is searched for timestamp %d once more: %s", partition_log, timestamp, error
            )
            for kind in (IndexType.TIMESTAMP, IndexType.OFFSET):
                await self._indexes.refuse(segment, kind)
            return await self._search(partition_log, segment, timestamp, start_offset)

    async def _search(
        self,
        partition_log: PartitionLog,
        segment: RemoteLogSegmentMetadata,
        timestamp: int,
        start_offset: int,
    ) -> TimestampAndOffset | None:
        place = await self._place_of(segment, timestamp, start_offset)
        if place is None:
            return None
        lane = str(partition_log.directory.parent)
        async for header in self._headers(segment, *place):
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            data = await self._bytes(segment, header.position, header.size)
            found = await self._offload.run(_first_at, data, timestamp, start_offset, lane=lane)
            if found is not None:
                return found
        return None

    async def _place_of(
        self, segment: RemoteLogSegmentMetadata, timestamp: int, start_offset: int
    ) -> tuple[int, int | None] | None:
        """Where to look from, and an offset where a batch from there on ends, by an index (as `BatchScanner` has
        it); the start where one is missing or of no use. None: no record has a timestamp."""
        try:
            times = await self._indexes.fetch(segment, IndexType.TIMESTAMP)
            if not len(times):
                return None
            offsets = await self._indexes.fetch(segment, IndexType.OFFSET)
        except (RemoteResourceNotFound, CorruptRemoteData):
            return 0, None
        hint = max(lookup_timestamp(times, segment.start_offset, timestamp), start_offset)
        found = lookup_offset(offsets, segment.start_offset, hint)
        return (0, None) if found is None else (found[1], found[0])

    async def _headers(
        self, segment: RemoteLogSegmentMetadata, position: int, ends_at: int | None
    ) -> AsyncIterator[Batch]:
        """Of the batches from the one at `position` on, one of which ends at offset `ends_at`;
        `Batch.position` is the one in the segment."""
        read = 0
        while position < segment.size_bytes:
            header = await self._bytes(segment, position, HEADER_SIZE)
            try:
                batch = Batch(memoryview(header))
            except CorruptBatch as error:
                raise CorruptRemoteData(
                    f"remote segment {segment.id} at {position}: {error}"
                ) from error
            if ends_at is not None and batch.last_offset >= ends_at:
                if batch.last_offset != ends_at:
                    raise CorruptRemoteData(
                        f"remote segment {segment.id} has no batch that ends at offset {ends_at}"
                        f" at position {position}"
                    )
                ends_at = None
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
        return await self._pieces.with_room(partial(self._read, segment, position, end))

    async def _read(
        self, segment: RemoteLogSegmentMetadata, position: int, end: int, has_turn: bool
    ) -> bytes:
        at_once = min(max(end - position, SEARCH_BYTES), FETCH_BYTES_MAX)
        pieces = self._pieces
        span = ContiguousRanges(
            await pieces.at(segment, position, position + at_once, has_quota=False)
        )
        try:
            while span.end < end:
                span.add(
                    await pieces.further(segment, span.end, end, has_turn=has_turn, has_quota=False)
                )
            return bytes(span.bytes_at(position, end - position))
        finally:
            span.close()


def _first_at(data: bytes, timestamp: int, start_offset: int) -> TimestampAndOffset | None:
    """In the batch that `data` is. In a thread, as the local tier does it. Raises CorruptBatch."""
    batch = Batch(memoryview(data))
    batch.check()
    for record in decode_lazily(batch):
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return TimestampAndOffset(
                record.timestamp, record.offset, max(batch.leader_epoch, NO_TIMESTAMP)
            )
    return None
