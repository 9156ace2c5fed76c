"""Reads records that only the remote tier has (T-32, T-33).

    offset → its leader epoch in the log's lineage → segment with both → position by its offset index
           → byte ranges in memory (segment_range_cache.py) → whole batches (batch_scanner.py)

A sequential reader needs no index: its next position is remembered, and the prefetch distance grows
while it continues, across segments too. If a segment is deleted during a read, the lookup is
repeated. A wrong offset index is fetched again, and then the segment is read from its start
(remote_index_cache.py). If the log should have an offset and no segment is known to have it, the error is
retriable and never OFFSET_OUT_OF_RANGE: a consumer would reset its position because a leader has
not read all metadata yet.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import trio

from odradek.seams.files import FileSlice
from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.tiered.batch_scanner import BatchScanner
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    CorruptRemoteIndex,
    RemoteNotReady,
    RemoteResourceNotFound,
)
from odradek.storage.tiered.fetch_response_spill import FetchResponseSpill
from odradek.storage.tiered.remote_aborted_transactions import RemoteAbortedTransactions
from odradek.storage.tiered.remote_index_cache import RemoteIndexCache
from odradek.storage.tiered.remote_index_lookup import lookup_offset
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from odradek.storage.tiered.segment_range_cache import ContiguousRanges, SegmentRangeCache

_logger = logging.getLogger("odradek.tiered")

FETCH_BYTES = 1 << 20
"""Minimum bytes per fetch: the usual size of a consumer's fetch per partition."""
FETCH_BYTES_MAX = 4 << 20
AHEAD_BYTES_MAX = 16 << 20
"""Maximum prefetch distance of a sequential reader."""
READ_BYTES_MAX = 8 << 20
"""Maximum bytes per read, unless one batch is larger."""
POSITIONS_MAX = 4096
SEGMENTS_AHEAD_MAX = 16
INDEX_ATTEMPTS = 2
"""Reads that may fail because of a wrong index: a cached one, and the one that is fetched then."""


@dataclass(slots=True)
class RemoteRead:
    """Result of a read: slices of memory or a file, which the caller unpins, with the batches from
    `base_offset` to before `next_offset`. If there are none, `next_offset` is where to read
    next: the requested offset, or the local log start offset if there are no records in between."""

    next_offset: int
    records: Sequence[FileSlice] = ()
    base_offset: int = -1
    aborted: Sequence[AbortedTransaction] = ()

    @property
    def size(self) -> int:
        return sum(each.size for each in self.records)

    def unpin(self) -> None:
        for each in self.records:
            each.file.unpin()


@dataclass(slots=True)
class ReadLimits:
    """Limits of one read: `max_bytes` (the first batch may be larger with `at_least_one`), and
    records below `offset` only."""

    max_bytes: int
    offset: int
    at_least_one: bool = True


@dataclass(slots=True)
class _ReadPosition:
    """Position of a reader: a batch starts at `position` of `segment`. By the index, a batch from
    there on ends at `ends_at`, at or below the wanted offset."""

    segment: RemoteLogSegmentMetadata
    epoch: int
    position: int
    ends_at: int | None = None
    ahead_bytes: int = 0
    """Prefetch distance."""


def partition_of(partition_log: PartitionLog) -> TopicIdPartition:
    """Partition with topic id. Raises RemoteResourceNotFound for a log without a topic id, which
    cannot be in the remote tier."""
    if partition_log.topic_id is None:
        raise RemoteResourceNotFound(f"{partition_log!r} has no topic id")
    return TopicIdPartition(partition_log.topic_id, partition_log.topic, partition_log.partition)


class RemoteLogReader:
    """Reads batches and prefetches. Runs on the event loop."""

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        indexes: RemoteIndexCache,
        ranges: SegmentRangeCache,
        aborted: RemoteAbortedTransactions,
        spill: FetchResponseSpill,
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._ranges = ranges
        self._aborted = aborted
        self._spill = spill
        self._positions: dict[tuple[TopicIdPartition, int], _ReadPosition] = {}

    async def read(
        self, partition_log: PartitionLog, offset: int, limits: ReadLimits, *, committed: bool
    ) -> RemoteRead:
        """Batches of one segment from the one with `offset` on. With `committed`, also their
        aborted transactions (T-35).

        Raises OffsetOutOfRange if the log start offset has passed `offset`, RemoteStorageError
        (`RemoteStorageError.retryable`: the caller may try again).
        """
        if offset >= limits.offset:
            return RemoteRead(offset)
        for attempt in range(INDEX_ATTEMPTS + 1):
            try:
                return await self._read(partition_log, offset, limits, committed)
            except (RemoteResourceNotFound, CorruptRemoteData) as error:
                if attempt and not isinstance(error, CorruptRemoteIndex):
                    raise
                check_not_deleted(partition_log, offset)
                _logger.info(
                    "%r: retrying the remote read at offset %d: %s", partition_log, offset, error
                )
        return await self._read(partition_log, offset, limits, committed)

    async def _read(
        self, partition_log: PartitionLog, offset: int, limits: ReadLimits, committed: bool
    ) -> RemoteRead:
        wanted = offset
        while True:
            read_position = await self._find(partition_log, wanted)
            try:
                found = await self._read_at(partition_log, read_position, offset, limits)
            except (RemoteResourceNotFound, CorruptRemoteData) as error:
                error.segment_id = read_position.segment.id.id
                self._positions.pop((read_position.segment.partition, wanted), None)
                if isinstance(error, CorruptRemoteIndex):
                    await self._indexes.refuse(read_position.segment, IndexType.OFFSET, error)
                raise
            if found is not None:
                break
            wanted = read_position.segment.end_offset + 1
            if wanted >= partition_log.local_log_start_offset:
                return RemoteRead(wanted)
        try:
            if committed and found.records:
                found.aborted = await self._aborted.overlapping(
                    partition_log, read_position.segment, offset, found.next_offset
                )
                self._check_still_there(partition_log, read_position, wanted, offset)
            found.records = await self._spill.spill_if_needed(found.records)
        except BaseException:
            found.unpin()
            self._positions.pop((read_position.segment.partition, wanted), None)
            raise
        return found

    def _check_still_there(
        self, partition_log: PartitionLog, read_position: _ReadPosition, wanted: int, offset: int
    ) -> None:
        """Check that the segment still counts. Aborted transactions are searched by the log's
        epochs, which are removed below the log start offset, and in segments that are not being
        deleted. Segments are deleted from the oldest on, so if this one counts, no later one was
        missed."""
        check_not_deleted(partition_log, offset)
        segment = segment_with(self._metadata, partition_log, read_position.epoch, wanted)
        if segment is None or segment.id != read_position.segment.id:
            raise RemoteNotReady(
                f"{read_position.segment.id} no longer has offset {wanted} of {partition_log!r}"
            )

    # Position in a segment

    async def _find(self, partition_log: PartitionLog, offset: int) -> _ReadPosition:
        epoch = epoch_of(partition_log, offset)
        read_position = self._positions.get((partition_of(partition_log), offset))
        if read_position is not None and read_position.epoch == epoch:
            return read_position
        segment = self._segment_with(partition_log, epoch, offset)
        position, ends_at = 0, None
        if offset > segment.start_offset:
            entry = await self._lookup(segment, offset)
            if entry is not None:
                ends_at, position = entry
        return _ReadPosition(segment, epoch, position, ends_at)

    async def _lookup(
        self, segment: RemoteLogSegmentMetadata, offset: int
    ) -> tuple[int, int] | None:
        try:
            index = await self._indexes.fetch(segment, IndexType.OFFSET)
        except CorruptRemoteData:
            # The cache has logged it. A scan from the segment's start gives the same result (T-19).
            return None
        except RemoteResourceNotFound as error:
            _logger.warning(
                "reading remote log segment %s without its offset index: %s", segment.id, error
            )
            return None
        return lookup_offset(index, segment.start_offset, offset)

    def _segment_with(
        self, partition_log: PartitionLog, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata:
        segment = segment_with(self._metadata, partition_log, epoch, offset)
        if segment is None:
            check_not_deleted(partition_log, offset)
            raise RemoteNotReady(f"no remote log segment has offset {offset} of {partition_log!r}")
        return segment

    # Batches

    async def _read_at(
        self,
        partition_log: PartitionLog,
        read_position: _ReadPosition,
        offset: int,
        limits: ReadLimits,
    ) -> RemoteRead | None:
        """Batches of the segment, or None if it ends before `offset`."""
        return await self._ranges.with_free_memory(
            partial(self._read_with_memory, partition_log, read_position, offset, limits)
        )

    async def _read_with_memory(
        self,
        partition_log: PartitionLog,
        read_position: _ReadPosition,
        offset: int,
        limits: ReadLimits,
        may_exceed_limit: bool,
    ) -> RemoteRead | None:
        segment = read_position.segment
        scanner = BatchScanner(
            segment,
            read_position.position,
            offset,
            max_bytes=min(limits.max_bytes, READ_BYTES_MAX),
            at_least_one=limits.at_least_one,
            limit=limits.offset,
            epochs=partition_log.epochs.entries,
            ends_at=read_position.ends_at,
        )
        if scanner.is_done:
            return None  # compaction has removed all records
        at_once = min(
            max(limits.max_bytes, FETCH_BYTES, read_position.ahead_bytes // 4), FETCH_BYTES_MAX
        )
        loaded = ContiguousRanges(
            await self._ranges.fetch(
                segment, read_position.position, read_position.position + at_once
            )
        )
        try:
            while not scanner.is_done:
                if not scanner.advance(loaded.bytes_at, loaded.end):
                    await trio.lowlevel.checkpoint()
                elif scanner.is_done or not await self._extend(
                    loaded, segment, scanner, at_once, may_exceed_limit
                ):
                    break
            if scanner.begin is None:
                return RemoteRead(offset) if scanner.position < segment.size_bytes else None
            self._remember_next(partition_log, read_position, offset, scanner)
            records = loaded.slices(scanner.begin, scanner.end)
        finally:
            loaded.close()
        return RemoteRead(scanner.next_offset, records, scanner.base_offset)

    async def _extend(
        self,
        loaded: ContiguousRanges,
        segment: RemoteLogSegmentMetadata,
        scanner: BatchScanner,
        at_once: int,
        may_exceed_limit: bool,
    ) -> bool:
        """Add a range to `loaded`. False if that needs a fetch and there are batches already."""
        if scanner.begin is not None:
            after = self._ranges.find(segment.id.id, loaded.end)
            if after is None or not after.is_here:
                return False
        end = max(scanner.needed, loaded.end + at_once)
        loaded.add(
            await self._ranges.extend(segment, loaded.end, end, may_exceed_limit=may_exceed_limit)
        )
        return True

    # Sequential reads and prefetch

    def _remember_next(
        self,
        partition_log: PartitionLog,
        read_position: _ReadPosition,
        offset: int,
        scanner: BatchScanner,
    ) -> None:
        """Remember where the next read starts, and prefetch for a sequential reader."""
        if scanner.has_diverged:
            return
        segment, partition = read_position.segment, read_position.segment.partition
        key = partition, scanner.next_offset
        after = _ReadPosition(segment, read_position.epoch, scanner.end)
        if scanner.end >= segment.size_bytes:
            following = self._following(partition_log, segment)
            if following is None:
                return
            after, key = following, (partition, following.segment.start_offset)
        else:
            after.epoch = partition_log.epochs.epoch_for(scanner.next_offset) or 0
        known = self._positions.pop(key, None)
        if self._positions.get((partition, offset)) is read_position:  # a sequential reader
            after.ahead_bytes = min(
                2 * max(read_position.ahead_bytes, FETCH_BYTES), AHEAD_BYTES_MAX
            )
        elif known is not None:
            after.ahead_bytes = known.ahead_bytes
        self._positions[key] = after
        if len(self._positions) > POSITIONS_MAX:
            del self._positions[next(iter(self._positions))]
        if after.ahead_bytes:
            self._prefetch(partition_log, after)

    def _following(
        self, partition_log: PartitionLog, segment: RemoteLogSegmentMetadata
    ) -> _ReadPosition | None:
        """Start of the next segment, if it exists and its records are not local."""
        start = segment.end_offset + 1
        epoch = partition_log.epochs.epoch_for(start)
        if epoch is None or start >= partition_log.local_log_start_offset:
            return None
        try:
            following = segment_with(self._metadata, partition_log, epoch, start)
        except RemoteNotReady:
            return None
        if following is None or following.start_offset != start:
            return None
        return _ReadPosition(following, epoch, 0)

    def _prefetch(self, partition_log: PartitionLog, read_position: _ReadPosition) -> None:
        step = min(max(read_position.ahead_bytes // 4, FETCH_BYTES), FETCH_BYTES_MAX)
        left, position, segment = (
            read_position.ahead_bytes,
            read_position.position,
            read_position.segment,
        )
        for _ in range(SEGMENTS_AHEAD_MAX):
            while left > 0 and position < segment.size_bytes:
                segment_range = self._ranges.find(segment.id.id, position)
                if segment_range is not None:
                    left -= segment_range.end - position
                    position = segment_range.end
                    continue
                end = min(position + step, segment.size_bytes)
                is_little = left < step and end - position > left
                if is_little or not self._ranges.prefetch(segment, position, end):
                    return
                left -= end - position
                position = end
            following = self._following(partition_log, segment) if left > 0 else None
            if following is None:
                return
            segment, position = following.segment, 0


def epoch_of(partition_log: PartitionLog, offset: int) -> int:
    """Leader epoch of `offset` in the log's lineage. Raises OffsetOutOfRange if the log starts
    later."""
    epoch = partition_log.epochs.epoch_for(offset)
    if epoch is None:
        check_not_deleted(partition_log, offset)
        raise RemoteNotReady(f"{partition_log!r} has no leader epoch for offset {offset}")
    return epoch


def check_not_deleted(partition_log: PartitionLog, offset: int) -> None:
    """Raise OffsetOutOfRange if the log start offset has passed `offset`."""
    if offset < partition_log.log_start_offset:
        raise OffsetOutOfRange(
            f"offset {offset} is below the log start offset of {partition_log!r}"
        )


def segment_with(
    metadata: RemoteLogMetadataManager, partition_log: PartitionLog, epoch: int, offset: int
) -> RemoteLogSegmentMetadata | None:
    """Finished copy that has `offset` of `epoch`. Raises RemoteNotReady if the metadata is not read
    yet or the partition is not announced yet."""
    try:
        return metadata.segment_for(partition_of(partition_log), epoch, offset)
    except RemoteResourceNotFound as error:
        raise RemoteNotReady(str(error)) from error
