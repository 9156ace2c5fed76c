"""A log in two tiers and its reader. The object store and the segment metadata are in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import trio

from odradek.protocol.records.batch import Batch, batches
from odradek.seams.files import Buffer, FileSlice, Path
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.tiered.copy_candidates import list_candidate_segments, open_segment_to_copy
from odradek.storage.tiered.errors import (
    RemoteNotReady,
    RemoteResourceNotFound,
    RemoteSegmentNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.fetch_response_spill import FetchResponseSpill
from odradek.storage.tiered.remote_aborted_transactions import RemoteAbortedTransactions
from odradek.storage.tiered.remote_index_cache import RemoteIndexCache
from odradek.storage.tiered.remote_log_reader import (
    ReadLimits,
    RemoteLogReader,
    RemoteRead,
    partition_of,
)
from odradek.storage.tiered.remote_storage_manager import IndexType, LogSegmentData
from odradek.storage.tiered.remote_timestamp_lookup import RemoteTimestampLookup
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.storage.tiered.segment_range_cache import ReaderLimits, SegmentRangeCache
from odradek.testing.virtual_offload import VirtualOffload
from tests.support.partition_logs import FOREVER, NOW_MS, LogWorld

TIERED = dataclasses.replace(
    FOREVER,
    internal_segment_bytes=300,
    index_interval_bytes=100,
    file_delete_delay_ms=0,
    remote_storage_enable=True,
    local_retention_bytes=1,
)
EVERYTHING = ReadLimits(1 << 20, 1 << 40)
CACHE_ROOT = Path("/cache")


def as_bytes(part: Buffer | FileSlice | None) -> bytes:
    if part is None:
        return b""
    return part.read() if isinstance(part, FileSlice) else bytes(part)


@dataclass
class Store:
    """Remote storage manager that keeps segments in a dictionary."""

    objects: dict[tuple[UUID, IndexType | None], bytes] = field(default_factory=dict)
    fetched: list[tuple[str, int, int]] = field(default_factory=list)
    """(object suffix, base offset of the segment, returned bytes) of every call."""
    error: RemoteStorageError | None = None

    def fetch_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int | None = None
    ) -> Buffer:
        if start < 0 or (end_inclusive is not None and end_inclusive < start):
            raise ValueError(f"invalid range of a log: {start} to {end_inclusive}")
        data = self._get(metadata, None)
        found = data[start : len(data) if end_inclusive is None else end_inclusive + 1]
        self.fetched.append((".log", metadata.start_offset + 0, len(found)))
        return found

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> Buffer:
        data = self._get(metadata, kind)
        self.fetched.append((kind.value, metadata.start_offset, len(data)))
        return data

    def _get(self, metadata: RemoteLogSegmentMetadata, kind: IndexType | None) -> bytes:
        if self.error is not None:
            raise self.error
        data = self.objects.get((metadata.id.id, kind))
        if data is None and (metadata.id.id, None) not in self.objects:
            raise RemoteSegmentNotFound(f"{metadata.id} is gone")
        if data is None:
            raise RemoteResourceNotFound(f"{metadata.id} has no {kind}")
        return data

    def copy_segment(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        parts = {
            None: data.log,
            IndexType.OFFSET: data.offset_index,
            IndexType.TIMESTAMP: data.time_index,
            IndexType.TRANSACTION: data.transaction_index,
        }
        for kind, part in parts.items():
            content = as_bytes(part)
            if content or kind is not IndexType.TRANSACTION:
                self.objects[metadata.id.id, kind] = content

    def delete_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        for key in [each for each in self.objects if each[0] == metadata.id.id]:
            del self.objects[key]

    def has_any_of(self, partition: TopicIdPartition) -> bool:
        return bool(self.objects)

    def check_access(self) -> None: ...

    def put_summary(self, partition: TopicIdPartition, leader_epoch: int, data: bytes) -> None: ...

    def remove_summaries(self, partition: TopicIdPartition) -> None: ...

    def close(self) -> None:
        pass


def copy_sealed(
    log: PartitionLog, store: Store, copies: int = 0
) -> Iterator[RemoteLogSegmentMetadata]:
    """Copy the inactive segments below the last stable offset that are not copied yet. Ids follow `copies`."""
    for sealed in list_candidate_segments(log):
        if sealed.base_offset <= log.highest_copied_offset:
            continue
        opened = open_segment_to_copy(log, sealed)
        copies += 1
        segment = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(partition_of(log), UUID(int=copies)),
            sealed.base_offset,
            sealed.end_offset,
            1,
            opened.max_timestamp_ms,
            NOW_MS,
            opened.epochs,
            sealed.size_bytes,
            SegmentState.COPY_SEGMENT_FINISHED,
            None,
            opened.txn_index_empty,
        )
        store.copy_segment(segment, opened.data)
        opened.close()
        log.advance_highest_copied_offset(sealed.end_offset)
        yield segment


@dataclass
class Metadata:
    """Segment metadata in a list."""

    known: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    ready: bool = True

    def _ask(self) -> None:
        if not self.ready:
            raise RemoteNotReady("not read to the end yet")

    def segment_for(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        self._ask()
        for each in self.known:
            last = each.last_offset_of(leader_epoch)
            if last is not None and offset <= last:
                first = next(e.start_offset for e in each.epochs if e.epoch == leader_epoch)
                if first <= offset and each.state is SegmentState.COPY_SEGMENT_FINISHED:
                    return each
        return None

    def next_segment_with_transactions(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        self._ask()
        for each in self.known:
            last = each.last_offset_of(leader_epoch)
            counts = each.state is SegmentState.COPY_SEGMENT_FINISHED and not each.txn_index_empty
            if last is not None and offset <= last and counts:
                return each
        return None

    def segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        self._ask()
        for each in self.known:
            if leader_epoch is None or each.last_offset_of(leader_epoch) is not None:
                yield each

    def segments_reaching(
        self, partition: TopicIdPartition, timestamp: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return (each for each in self.segments(partition) if each.max_timestamp_ms >= timestamp)


@dataclass
class Tiers:
    """A log in two tiers. `limit_bytes` is the size of the index cache."""

    log_world: LogWorld = field(default_factory=lambda: LogWorld(TIERED))
    store: Store = field(default_factory=Store)
    metadata: Metadata = field(default_factory=Metadata)
    reader_limits: ReaderLimits = field(default_factory=lambda: ReaderLimits(10, 100))
    limit_bytes: int = 1 << 20
    ttl_ms: int = -1
    bytes_max: int = 64 << 20
    aside_max: int = 1 << 20
    copies: int = 0
    over_quota: bool = False

    def __post_init__(self) -> None:
        self.offload = VirtualOffload(calls_per_lane=16)

    @property
    def log(self) -> PartitionLog:
        return self.log_world.log

    def append(self, data: memoryview, *, epoch: int = 0) -> None:
        self.log_world.append(data, epoch=epoch)

    def copy_and_expire(self) -> None:
        """Copy all inactive segments below the last stable offset, and delete them from the disk."""
        self.log.advance_high_watermark(self.log.end_offset)
        self.log_world.flush()
        for segment in copy_sealed(self.log, self.store, self.copies):
            self.copies += 1
            self.metadata.known.append(segment)
        self.log.delete_expired(NOW_MS)
        self.log.remove_deleted(NOW_MS)

    @asynccontextmanager
    async def readers(self) -> AsyncIterator[Readers]:
        async with trio.open_nursery() as nursery:
            readers = Readers(self, nursery)
            await readers.indexes.open()
            yield readers
            nursery.cancel_scope.cancel()


class Readers:
    def __init__(self, tiers: Tiers, nursery: trio.Nursery) -> None:
        self.tiers = tiers
        self.counted: list[int] = []
        """Bytes of each fetch that the quota counts."""
        self.indexes = RemoteIndexCache(
            tiers.log_world.files,
            CACHE_ROOT,
            tiers.offload,
            tiers.store,
            lambda: nursery,
            tiers.log_world.clock.monotonic,
            limit_bytes=lambda: tiers.limit_bytes,
            ttl_ms=tiers.ttl_ms,
        )
        self.ranges = SegmentRangeCache(
            tiers.offload,
            tiers.store,
            lambda: nursery,
            lambda: tiers.reader_limits,
            is_over_quota=lambda: tiers.over_quota,
            fetched=lambda size_bytes, seconds: self.counted.append(size_bytes),
            bytes_max=tiers.bytes_max,
        )
        metadata: object = tiers.metadata
        aborted = RemoteAbortedTransactions(metadata, self.indexes, tiers.store, tiers.offload)  # type: ignore[arg-type]
        self.spill = FetchResponseSpill(
            tiers.log_world.files, CACHE_ROOT, tiers.offload, self.ranges, bytes_max=tiers.aside_max
        )
        self.reads = RemoteLogReader(metadata, self.indexes, self.ranges, aborted, self.spill)  # type: ignore[arg-type]
        self.timestamps = RemoteTimestampLookup(
            metadata,  # type: ignore[arg-type]
            self.indexes,
            self.ranges,
            tiers.offload,
        )

    async def read(
        self, offset: int, limits: ReadLimits = EVERYTHING, *, committed: bool = False
    ) -> RemoteRead:
        with trio.fail_after(5):
            return await self.reads.read(self.tiers.log, offset, limits, committed=committed)

    async def batches(self, offset: int, limits: ReadLimits = EVERYTHING) -> list[Batch]:
        found = await self.read(offset, limits)
        data = b"".join(as_bytes(each) for each in found.records)
        found.unpin()
        return list(batches(memoryview(data), check=True))

    async def offsets(self, offset: int, limits: ReadLimits = EVERYTHING) -> list[int]:
        """Return the offsets of the records of one read."""
        return [
            each
            for batch in await self.batches(offset, limits)
            for each in range(batch.base_offset, batch.next_offset)
        ]

    async def all_from(self, offset: int, limits: ReadLimits = EVERYTHING) -> list[int]:
        """Return the offsets of all records up to the local log start offset, in several reads."""
        found: list[int] = []
        while offset < self.tiers.log.local_log_start_offset:
            more = await self.offsets(offset, limits)
            assert more, f"nothing at {offset}"
            found += more
            offset = more[-1] + 1
        return found
