"""Reads of what only the remote tier has (T-32, T-33).

    offset → its epoch by our history → the segment that has both → position by its offset index
           → pieces of the segment in memory (pieces.py) → whole batches (batch_walk.py)

A reader that goes on where it stopped needs no index: its place is remembered, and the longer it goes
on, the farther ahead is fetched, into the next segments too. What was fetched stays for whoever comes
again. A segment that goes away under a read is looked for once more; where our log should have an offset
and no segment is known to have it, that is an error to be asked again, never an offset out of range: a
consumer would start over for a leader that has not read all metadata yet.
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
    RemoteNotReady,
    RemoteResourceNotFound,
)
from odradek.storage.tiered.index_lookup import lookup_offset
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata, TopicIdPartition
from odradek.storage.tiered.remote_aborted_transactions import RemoteAbortedTransactions
from odradek.storage.tiered.remote_index_cache import RemoteIndexCache
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.response_spill import ResponseSpill
from odradek.storage.tiered.segment_range_cache import ContiguousRanges, SegmentRangeCache

log = logging.getLogger("odradek.remote")

FETCH_BYTES = 1 << 20
"""The least that is fetched of a segment's records: what a consumer asks of a partition, mostly."""
FETCH_BYTES_MAX = 4 << 20
AHEAD_BYTES_MAX = 16 << 20
"""How far ahead of a reader that goes on and on is fetched."""
READ_BYTES_MAX = 8 << 20
"""The most that one read brings, unless a batch is larger."""
PLACES_MAX = 4096
SEGMENTS_AHEAD_MAX = 16


@dataclass(slots=True)
class RemoteRead:
    """What was found: slices of memory or of a file, which the caller unpins, of the batches with offsets from
    `base_offset` to before `next_offset`. Where there are none, `next_offset` is where to look: what was
    asked for, or where the local log begins, if there is nothing between."""

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
    """How much one read may bring: `max_bytes`, or the first batch if that is larger and
    `at_least_one`; nothing at or past `offset`."""

    max_bytes: int
    offset: int
    at_least_one: bool = True


@dataclass(slots=True)
class _Place:
    """Where a reader goes on: a batch begins at `position` of `segment`, which by an index ends at
    `ends_at`, at or before what it wants."""

    segment: RemoteLogSegmentMetadata
    epoch: int
    position: int
    ends_at: int | None = None
    ahead_bytes: int = 0
    """How far ahead of it is fetched."""


def partition_of(partition_log: PartitionLog) -> TopicIdPartition:
    """Raises RemoteResourceNotFound for a log without a topic id: it can't be in the remote tier."""
    if partition_log.topic_id is None:
        raise RemoteResourceNotFound(f"{partition_log!r} has no topic id")
    return TopicIdPartition(partition_log.topic_id, partition_log.topic, partition_log.partition)


class RemoteLogReader:
    """See the module. Called on the loop."""

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        indexes: RemoteIndexCache,
        pieces: SegmentRangeCache,
        aborted: RemoteAbortedTransactions,
        aside: ResponseSpill,
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._pieces = pieces
        self._aborted = aborted
        self._aside = aside
        self._places: dict[tuple[TopicIdPartition, int], _Place] = {}

    async def read(
        self, partition_log: PartitionLog, offset: int, limits: ReadLimits, *, committed: bool
    ) -> RemoteRead:
        """Batches of one segment from the one with `offset` on; with `committed` the transactions that
        were aborted there, too (T-35).

        Raises OffsetOutOfRange where the log has begun later meanwhile, RemoteStorageError (ask again
        where that is `retryable`).
        """
        if offset >= limits.offset:
            return RemoteRead(offset)
        try:
            return await self._read(partition_log, offset, limits, committed)
        except (RemoteResourceNotFound, CorruptRemoteData) as error:
            check_not_deleted(partition_log, offset)
            log.info("%r is read at %d once more: %s", partition_log, offset, error)
            return await self._read(partition_log, offset, limits, committed)

    async def _read(
        self, partition_log: PartitionLog, offset: int, limits: ReadLimits, committed: bool
    ) -> RemoteRead:
        wanted = offset
        while True:
            place = await self._find(partition_log, wanted)
            try:
                found = await self._read_at(partition_log, place, offset, limits)
            except (RemoteResourceNotFound, CorruptRemoteData) as error:
                error.segment_id = place.segment.id.id
                self._places.pop((place.segment.partition, wanted), None)
                if place.ends_at is not None:  # the index may be the culprit
                    await self._indexes.refuse(place.segment, IndexType.OFFSET)
                raise
            if found is not None:
                break
            wanted = place.segment.end_offset + 1
            if wanted >= partition_log.local_log_start_offset:
                return RemoteRead(wanted)
        try:
            if committed and found.records:
                found.aborted = await self._aborted.overlapping(
                    partition_log, place.segment, offset, found.next_offset
                )
                self._check_still_there(partition_log, place, wanted, offset)
            found.records = await self._aside.settle(found.records)
        except BaseException:
            found.unpin()
            self._places.pop((place.segment.partition, wanted), None)
            raise
        return found

    def _check_still_there(
        self, partition_log: PartitionLog, place: _Place, wanted: int, offset: int
    ) -> None:
        """Aborted transactions are looked for by the epochs of the log, which forgets those before its start,
        and in segments of which none is being deleted: they go from the oldest on, so that no later one was
        passed over if this one still counts."""
        check_not_deleted(partition_log, offset)
        segment = segment_with(self._metadata, partition_log, place.epoch, wanted)
        if segment is None or segment.id != place.segment.id:
            raise RemoteNotReady(f"{partition_log!r} has {wanted} no more in {place.segment.id}")

    # The place

    async def _find(self, partition_log: PartitionLog, offset: int) -> _Place:
        epoch = epoch_of(partition_log, offset)
        place = self._places.get((partition_of(partition_log), offset))
        if place is not None and place.epoch == epoch:
            return place
        segment = self._segment_with(partition_log, epoch, offset)
        position, ends_at = 0, None
        if offset > segment.start_offset:
            entry = await self._lookup(segment, offset)
            if entry is not None:
                ends_at, position = entry
        return _Place(segment, epoch, position, ends_at)

    async def _lookup(
        self, segment: RemoteLogSegmentMetadata, offset: int
    ) -> tuple[int, int] | None:
        try:
            index = await self._indexes.fetch(segment, IndexType.OFFSET)
        except (RemoteResourceNotFound, CorruptRemoteData) as error:
            # The segment says the same, if it is read from its start (T-19).
            log.warning("remote segment %s is read without its index: %s", segment.id, error)
            return None
        return lookup_offset(index, segment.start_offset, offset)

    def _segment_with(
        self, partition_log: PartitionLog, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata:
        segment = segment_with(self._metadata, partition_log, epoch, offset)
        if segment is None:
            check_not_deleted(partition_log, offset)
            raise RemoteNotReady(
                f"no remote segment is known to have {partition_log!r} at {offset}"
            )
        return segment

    # Its batches

    async def _read_at(
        self, partition_log: PartitionLog, place: _Place, offset: int, limits: ReadLimits
    ) -> RemoteRead | None:
        """None if the segment ends before `offset`."""
        return await self._pieces.with_room(
            partial(self._read_pieces, partition_log, place, offset, limits)
        )

    async def _read_pieces(
        self,
        partition_log: PartitionLog,
        place: _Place,
        offset: int,
        limits: ReadLimits,
        has_turn: bool,
    ) -> RemoteRead | None:
        segment = place.segment
        walk = BatchScanner(
            segment,
            place.position,
            offset,
            max_bytes=min(limits.max_bytes, READ_BYTES_MAX),
            at_least_one=limits.at_least_one,
            limit=limits.offset,
            epochs=partition_log.epochs.entries,
            ends_at=place.ends_at,
        )
        if walk.is_done:
            return None  # of the whole segment compaction has left nothing
        at_once = min(max(limits.max_bytes, FETCH_BYTES, place.ahead_bytes // 4), FETCH_BYTES_MAX)
        span = ContiguousRanges(
            await self._pieces.at(segment, place.position, place.position + at_once)
        )
        try:
            while not walk.is_done:
                if not walk.advance(span.bytes_at, span.end):
                    await trio.lowlevel.checkpoint()
                elif walk.is_done or not await self._extend(span, segment, walk, at_once, has_turn):
                    break
            if walk.begin is None:
                return RemoteRead(offset) if walk.position < segment.size_bytes else None
            self._go_on(partition_log, place, offset, walk)
            records = span.slices(walk.begin, walk.end)
        finally:
            span.close()
        return RemoteRead(walk.next_offset, records, walk.base_offset)

    async def _extend(
        self,
        span: ContiguousRanges,
        segment: RemoteLogSegmentMetadata,
        walk: BatchScanner,
        at_once: int,
        has_turn: bool,
    ) -> bool:
        """Have more of the segment in `span`. False if that would be a wait, and there is something
        already."""
        if walk.begin is not None:
            after = self._pieces.find(segment.id.id, span.end)
            if after is None or not after.is_here:
                return False
        end = max(walk.needed, span.end + at_once)
        span.add(await self._pieces.further(segment, span.end, end, has_turn=has_turn))
        return True

    # Its next place, and what will be wanted there

    def _go_on(
        self, partition_log: PartitionLog, place: _Place, offset: int, walk: BatchScanner
    ) -> None:
        """Remember where the next read begins, and fetch ahead for a reader that has gone on before."""
        if walk.has_parted:
            return
        segment, partition = place.segment, place.segment.partition
        key = partition, walk.next_offset
        after = _Place(segment, place.epoch, walk.end)
        if walk.end >= segment.size_bytes:
            following = self._following(partition_log, segment)
            if following is None:
                return
            after, key = following, (partition, following.segment.start_offset)
        else:
            after.epoch = partition_log.epochs.epoch_for(walk.next_offset) or 0
        known = self._places.pop(key, None)
        if self._places.get((partition, offset)) is place:  # it has come from there
            after.ahead_bytes = min(2 * max(place.ahead_bytes, FETCH_BYTES), AHEAD_BYTES_MAX)
        elif known is not None:
            after.ahead_bytes = known.ahead_bytes
        self._places[key] = after
        if len(self._places) > PLACES_MAX:
            del self._places[next(iter(self._places))]
        if after.ahead_bytes:
            self._fetch_ahead(partition_log, after)

    def _following(
        self, partition_log: PartitionLog, segment: RemoteLogSegmentMetadata
    ) -> _Place | None:
        """The start of the next segment, if it is known and its records are not local."""
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
        return _Place(following, epoch, 0)

    def _fetch_ahead(self, partition_log: PartitionLog, place: _Place) -> None:
        step = min(max(place.ahead_bytes // 4, FETCH_BYTES), FETCH_BYTES_MAX)
        left, position, segment = place.ahead_bytes, place.position, place.segment
        for _ in range(SEGMENTS_AHEAD_MAX):
            while left > 0 and position < segment.size_bytes:
                piece = self._pieces.find(segment.id.id, position)
                if piece is not None:
                    left -= piece.end - position
                    position = piece.end
                    continue
                end = min(position + step, segment.size_bytes)
                is_little = left < step and end - position > left
                if is_little or not self._pieces.fetch_ahead(segment, position, end):
                    return
                left -= end - position
                position = end
            following = self._following(partition_log, segment) if left > 0 else None
            if following is None:
                return
            segment, position = following.segment, 0


def epoch_of(partition_log: PartitionLog, offset: int) -> int:
    """The epoch of `offset` by the log's history. Raises OffsetOutOfRange if it begins later."""
    epoch = partition_log.epochs.epoch_for(offset)
    if epoch is None:
        check_not_deleted(partition_log, offset)
        raise RemoteNotReady(f"{partition_log!r} knows no epoch of offset {offset}")
    return epoch


def check_not_deleted(partition_log: PartitionLog, offset: int) -> None:
    """Raises OffsetOutOfRange if the log begins past `offset` by now."""
    if offset < partition_log.log_start_offset:
        raise OffsetOutOfRange(f"offset {offset} is below the start of {partition_log!r} by now")


def segment_with(
    metadata: RemoteLogMetadataManager, partition_log: PartitionLog, epoch: int, offset: int
) -> RemoteLogSegmentMetadata | None:
    """The finished copy that has `offset` of `epoch`. Raises RemoteNotReady where that is not known
    yet, which it is not before the partition is announced either."""
    try:
        return metadata.segment_for(partition_of(partition_log), epoch, offset)
    except RemoteResourceNotFound as error:
        raise RemoteNotReady(str(error)) from error
