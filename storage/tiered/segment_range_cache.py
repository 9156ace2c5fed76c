"""Bounded memory cache of byte ranges of remote log segments.

A range is the result of one ranged fetch. Like a file, it is a source of slices (`FileSlice`) for
sockets, and it is pinned until they are sent. So the memory is known whatever consumers do;
fetch_response_spill.py moves the responses of slow ones to disk. Unpinned ranges are evicted when memory
is needed: first those that were read, least recently used first, then those that were prefetched.

Fetches run in their own nursery. If a reader leaves because its request timed out or its client
disconnected, the fetch continues, and the next request finds the range.

A read that needs several ranges at once runs in `with_free_memory`. Reads that all wait for memory with
ranges pinned would deadlock. So one read at a time may exceed the limit by one range, and waits for
the next one until the memory is within the limit again.

The number of concurrent fetches is the number of reader threads. A configured number of fetches may
wait for a reader; more are refused. A prefetch starts only if a reader and memory are free.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import trio

from odradek.protocol.uuids import uuid_to_text
from odradek.seams.files import Buffer, FileSlice, Path
from odradek.seams.offload import OBJECTS_LANE, Offload
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteStorageError,
    RemoteStorageUnavailable,
)
from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata

_logger = logging.getLogger("odradek.tiered")

T = TypeVar("T")

BYTES_MAX = 64 << 20
"""Limit of all ranges of a node. One range may exceed it, for a batch that the first range did not
have completely."""
READERS_KEPT_FREE = 2
"""Reader threads that prefetches leave free for waiting requests."""


class TooManyReads(RemoteStorageUnavailable):
    """remote.log.reader.max.pending.tasks reads are already waiting (T-13)."""


class RangeCacheFull(Exception):
    """The memory is in use by other reads."""


class RemoteFetchQuotaExceeded(RemoteStorageUnavailable):
    """The quota remote.log.manager.fetch.max.bytes.per.second is exceeded."""


class SegmentRange:
    """The bytes [start, end) of a segment. Has the interface of a file for senders."""

    __slots__ = (
        "_data",
        "_released",
        "end",
        "error",
        "is_prefetched",
        "loaded",
        "partition",
        "pins",
        "segment_id",
        "start",
    )

    def __init__(
        self,
        segment: RemoteLogSegmentId,
        start: int,
        end: int,
        released: Callable[[SegmentRange], None],
    ) -> None:
        self.partition = segment.partition
        self.segment_id = segment.id
        self.start = start
        self.end = end
        self.loaded = trio.Event()
        """Set when the fetch has succeeded or failed."""
        self.error: RemoteStorageError | None = None
        self.is_prefetched = False
        """Whether it was prefetched and no reader has used it."""
        self.pins = 0
        self._data: memoryview | None = None
        self._released = released

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def path(self) -> Path:
        """Name for messages; no such file exists."""
        return Path(f"remote/{uuid_to_text(self.segment_id)}.log")

    def put(self, data: Buffer) -> None:
        self._data = memoryview(data).toreadonly()
        self.loaded.set()

    @property
    def is_here(self) -> bool:
        return self._data is not None

    def read_at(self, position: int, size: int, *, nowait: bool = False) -> memoryview:
        """Bytes at a position of the segment."""
        assert self._data is not None, "the range is not loaded"
        at = position - self.start
        return self._data[at : at + size]

    def is_in_memory(self, position: int, size: int) -> bool:
        return self.is_here

    def slice(self, position: int, end: int) -> FileSlice:
        """A slice, with a pin that the caller releases."""
        self.pin()
        return FileSlice(self, position, end - position)

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        if not self.pins:
            raise ValueError(f"{self.path} is not pinned")
        self.pins -= 1
        if not self.pins:
            self._released(self)


@dataclass(slots=True)
class ReaderLimits:
    """Current values of the reader configuration."""

    threads: int
    pending_max: int


class SegmentRangeCache:
    """Fetches, caches and evicts ranges. Runs on the event loop."""

    def __init__(
        self,
        offload: Offload,
        storage: RemoteStorageManager,
        nursery: Callable[[], trio.Nursery],
        limits: Callable[[], ReaderLimits],
        *,
        is_over_quota: Callable[[], bool] = lambda: False,
        fetched: Callable[[int, float], None] = lambda size_bytes, seconds: None,
        monotonic: Callable[[], float] = trio.current_time,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        """`fetched` is called with the size and duration (s) of every fetch for a consumer; only
        these are subject to the quota."""
        self._offload = offload
        self._storage = storage
        self._nursery = nursery
        self._limits = limits
        self._is_over_quota = is_over_quota
        self._fetched = fetched
        self._monotonic = monotonic
        self._bytes_max = bytes_max
        self._prefetched_bytes_max = bytes_max * 3 // 4
        self._by_segment: dict[UUID, list[SegmentRange]] = {}
        self._used: dict[SegmentRange, None] = {}  # least recently used first
        self._prefetched: dict[SegmentRange, None] = {}
        self._memory_freed = trio.Event()
        self._exceeding = trio.Lock()
        """The read that holds it may exceed the limit with ranges pinned."""
        self._readers = trio.CapacityLimiter(1)
        self._under_way = 0
        self.total_bytes = 0
        self.prefetched_bytes = 0

    @property
    def pending(self) -> int:
        """Number of fetches that wait for a reader (RemoteLogReaderTaskQueueSize)."""
        return max(0, self._under_way - self._limits().threads)

    @property
    def idle_share(self) -> float:
        """Share of idle readers, 0 to 1 (RemoteLogReaderAvgIdlePercent)."""
        threads = self._limits().threads
        return max(0, threads - self._under_way) / threads

    @property
    def is_half_pinned(self) -> bool:
        """Whether responses that are not sent yet hold half of the memory."""
        idle = (
            segment_range for ranges in (self._used, self._prefetched) for segment_range in ranges
        )
        free_bytes = sum(each.size for each in idle if not each.pins or not each.is_here)
        return self.total_bytes - free_bytes > self._bytes_max // 2

    # Lookup

    def find(self, segment_id: UUID, position: int) -> SegmentRange | None:
        """Range with that byte: a loaded one if there is one, then the one with the highest end."""
        found = [
            each
            for each in self._by_segment.get(segment_id, ())
            if each.start <= position < each.end
        ]
        return max(found, key=lambda each: (each.is_here, each.end), default=None)

    async def fetch(
        self,
        segment: RemoteLogSegmentMetadata,
        position: int,
        end: int,
        *,
        is_for_consumer: bool = True,
    ) -> SegmentRange:
        """Pinned range with the byte at `position`. If there is none, it fetches up to `end` once
        memory is free. The caller must hold no other pin. `is_for_consumer`: the read is for a
        consumer. Raises RemoteStorageError."""
        return await self._at(
            segment, position, end, waits=True, exceeds_limit=False, is_for_consumer=is_for_consumer
        )

    async def extend(
        self,
        segment: RemoteLogSegmentMetadata,
        position: int,
        end: int,
        *,
        may_exceed_limit: bool,
        is_for_consumer: bool = True,
    ) -> SegmentRange:
        """Like `fetch`, for a read in `with_free_memory` that holds pins. With `may_exceed_limit`
        it may exceed the limit; without, RangeCacheFull is raised if memory is not free."""
        return await self._at(
            segment,
            position,
            end,
            waits=may_exceed_limit,
            exceeds_limit=may_exceed_limit,
            is_for_consumer=is_for_consumer,
        )

    async def _at(
        self,
        segment: RemoteLogSegmentMetadata,
        position: int,
        end: int,
        *,
        waits: bool,
        exceeds_limit: bool,
        is_for_consumer: bool,
    ) -> SegmentRange:
        segment_id = segment.id.id
        while True:
            segment_range = self.find(segment_id, position)
            if segment_range is None:
                end = self._up_to_next(segment_id, position, min(end, segment.size_bytes))
                if not self._has_free_memory(end - position, exceeds_limit=exceeds_limit):
                    if not waits:
                        raise RangeCacheFull
                    await self._memory_freed.wait()
                    continue  # the range may be in the cache by now
                segment_range = self._begin(segment, position, end, is_for_consumer=is_for_consumer)
            segment_range.pin()
            try:
                await segment_range.loaded.wait()
            except BaseException:
                segment_range.unpin()
                raise
            if segment_range.error is not None:
                segment_range.unpin()
                raise segment_range.error
            self._touch(segment_range)
            return segment_range

    async def with_free_memory(self, read: Callable[[bool], Awaitable[T]]) -> T:
        """Result of `read`, which receives whether it may exceed the limit. If it raises
        RangeCacheFull, it is called again when it may."""
        with suppress(RangeCacheFull):
            return await read(False)
        async with self._exceeding:
            return await read(True)

    def _up_to_next(self, segment_id: UUID, position: int, end: int) -> int:
        """`end`, or the start of the next range if that is lower."""
        starts = [each.start for each in self._by_segment.get(segment_id, ())]
        return min([end, *(start for start in starts if position < start)])

    def _touch(self, segment_range: SegmentRange) -> None:
        if segment_range in self._prefetched:
            del self._prefetched[segment_range]
            self.prefetched_bytes -= segment_range.size
        elif segment_range in self._used:
            del self._used[segment_range]
        else:
            return  # removed meanwhile
        self._used[segment_range] = None

    # Prefetch

    def prefetch(self, segment: RemoteLogSegmentMetadata, position: int, end: int) -> bool:
        """Start to fetch [position, end). False if no memory or no reader is free."""
        size_bytes = end - position
        readers = max(1, self._limits().threads - READERS_KEPT_FREE)
        if self._under_way >= readers or self._is_over_quota():
            return False
        if self.prefetched_bytes + size_bytes > self._prefetched_bytes_max:
            return False
        if not self._evict_for(size_bytes, self._used):
            return False
        self._begin(segment, position, end, is_prefetched=True)
        return True

    # Fetch

    def _begin(
        self,
        segment: RemoteLogSegmentMetadata,
        start: int,
        end: int,
        *,
        is_prefetched: bool = False,
        is_for_consumer: bool = True,
    ) -> SegmentRange:
        limits = self._limits()
        self._readers.total_tokens = limits.threads
        if not is_prefetched:
            if is_for_consumer and self._is_over_quota():
                raise RemoteFetchQuotaExceeded(
                    "remote.log.manager.fetch.max.bytes.per.second is exceeded"
                )
            if self._under_way >= limits.threads + limits.pending_max:
                raise TooManyReads(f"{self.pending} reads are already waiting for the remote tier")
        segment_range = SegmentRange(segment.id, start, end, self._released)
        self._by_segment.setdefault(segment_range.segment_id, []).append(segment_range)
        self.total_bytes += segment_range.size
        segment_range.is_prefetched = is_prefetched
        if is_prefetched:
            self._prefetched[segment_range] = None
            self.prefetched_bytes += segment_range.size
        else:
            self._used[segment_range] = None
        self._under_way += 1
        self._nursery().start_soon(self._fetch, segment, segment_range, is_for_consumer)
        return segment_range

    async def _fetch(
        self, segment: RemoteLogSegmentMetadata, segment_range: SegmentRange, is_for_consumer: bool
    ) -> None:
        try:
            async with self._readers:
                began = self._monotonic()
                data = await self._offload.run(
                    self._storage.fetch_segment,
                    segment,
                    segment_range.start,
                    segment_range.end - 1,
                    lane=OBJECTS_LANE,
                )
                if is_for_consumer:
                    self._fetched(len(data), self._monotonic() - began)
            if len(data) != segment_range.size:
                raise CorruptRemoteData(
                    f"remote segment {segment.id} is truncated: expected {segment_range.size} bytes from "
                    f"position {segment_range.start}, but found {len(data)}"
                )
            segment_range.put(data)
            self._notify()  # the reader may have left, and the range can be evicted then
        except RemoteStorageError as error:
            self._failed(segment_range, error)
        except Exception as error:
            _logger.exception("unexpected error while reading remote log segment %s", segment.id)
            self._failed(segment_range, RemoteStorageError(str(error)))
        finally:
            self._under_way -= 1
            if not segment_range.loaded.is_set():
                self._failed(segment_range, RemoteStorageUnavailable("the broker is shutting down"))

    def _failed(self, segment_range: SegmentRange, error: RemoteStorageError) -> None:
        segment_range.error = error
        self._remove(segment_range)
        segment_range.loaded.set()

    # Memory

    def _has_free_memory(self, size_bytes: int, *, exceeds_limit: bool) -> bool:
        """Whether the bytes are free, after evicting unpinned ranges if needed."""
        if self._evict_for(size_bytes, self._used) or self._evict_for(size_bytes, self._prefetched):
            return True
        return exceeds_limit and self.total_bytes <= self._bytes_max

    def _evict_for(self, size_bytes: int, ranges: dict[SegmentRange, None]) -> bool:
        """Evict unpinned ranges of `ranges` until `size_bytes` are free; whether they are."""
        if self.total_bytes + size_bytes <= self._bytes_max:
            return True
        for segment_range in [each for each in ranges if not each.pins and each.is_here]:
            self._remove(segment_range)
            if self.total_bytes + size_bytes <= self._bytes_max:
                return True
        return False

    def _remove(self, segment_range: SegmentRange) -> None:
        """Remove a range from the tables. Its memory counts until it is unpinned."""
        segment_ranges = self._by_segment.get(segment_range.segment_id)
        if segment_ranges is None or segment_range not in segment_ranges:
            return
        segment_ranges.remove(segment_range)
        if not segment_ranges:
            del self._by_segment[segment_range.segment_id]
        self._used.pop(segment_range, None)
        if segment_range in self._prefetched:
            del self._prefetched[segment_range]
            self.prefetched_bytes -= segment_range.size
        if not segment_range.pins:
            self._freed(segment_range)

    def _released(self, segment_range: SegmentRange) -> None:
        """Called when the last pin is released."""
        if segment_range not in self._by_segment.get(segment_range.segment_id, ()):
            self._freed(segment_range)
        else:
            self._notify()

    def _freed(self, segment_range: SegmentRange) -> None:
        self.total_bytes -= segment_range.size
        self._notify()

    def _notify(self) -> None:
        """Wake the reads that wait for memory."""
        if self._memory_freed.statistics().tasks_waiting:
            self._memory_freed.set()
            self._memory_freed = trio.Event()

    def segments_of(self, topic: str, index: int) -> list[UUID]:
        """Segments of a partition that have ranges in the cache."""
        return [
            segment_id
            for segment_id, (segment_range, *_) in self._by_segment.items()
            if (segment_range.partition.topic, segment_range.partition.partition) == (topic, index)
        ]

    def forget(self, segment_ids: Iterable[UUID]) -> None:
        """Remove the ranges of segments that are deleted or not needed any more."""
        for segment_id in segment_ids:
            for segment_range in list(self._by_segment.get(segment_id, ())):
                if segment_range.is_here:
                    self._remove(segment_range)


class ContiguousRanges:
    """Adjacent pinned ranges: the bytes of a segment from `start` to before `end`."""

    def __init__(self, first: SegmentRange) -> None:
        """Takes over the pin of `first`."""
        self.ranges = [first]
        self.start = first.start
        self.end = first.end

    def add(self, segment_range: SegmentRange) -> None:
        """Append a pinned range that has the byte at `end`."""
        self.ranges.append(segment_range)
        self.end = segment_range.end

    def bytes_at(self, position: int, size: int) -> Buffer:
        """Bytes within [start, end); copied if they span several ranges."""
        segment_range = self.ranges[-1]
        if not segment_range.start <= position:
            segment_range = next(each for each in self.ranges if position < each.end)
        if position + size <= segment_range.end:
            return segment_range.read_at(position, size)
        return b"".join(
            each.file.read_at(each.position, each.size)
            for each in self._cut(position, position + size)
        )

    def slices(self, begin: int, end: int) -> list[FileSlice]:
        """Slices of [begin, end), each pinned."""
        found = self._cut(begin, end)
        for each in found:
            each.file.pin()
        return found

    def _cut(self, begin: int, end: int) -> list[FileSlice]:
        found = []
        for segment_range in self.ranges:
            stop = min(end, segment_range.end)
            if segment_range.start <= begin < stop:
                found.append(FileSlice(segment_range, begin, stop - begin))
                begin = stop
        return found

    def close(self) -> None:
        for segment_range in self.ranges:
            segment_range.unpin()
