"""Pieces of remote segments in memory: fetched once, shared, kept for the next reader, and bounded.

A piece is what one ranged fetch brought. It is a source of slices that go to sockets as those of files
do (`FileSlice`): pinned until they were sent, so that what is in memory is known whatever readers do;
response_spill.py sees to it that slow ones don't hold all of it. A
piece that nobody has pinned goes when others need the room: first those that were read, the least
recently used of them first, and then those that were fetched ahead.

Fetches run in a nursery of their own. A reader that leaves (its time is up, its client is gone) loses
nothing: the piece is there for its next request.

Who needs more than one piece at once reads by `with_room`: were they all to wait for room with pieces pinned,
it might be each other that they wait for. So they take turns, and for whoever has the turn one piece may come
on top of all, where others might always be there first; for the next one he waits until all are within bounds.

Who fetches: as many at once as there are readers; as many again as allowed may wait for that, and more
are refused. A fetch ahead is made only where a reader is free and there is room that nothing else uses.
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
from odradek.storage.tiered.metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager

log = logging.getLogger("odradek.remote")

T = TypeVar("T")

BYTES_MAX = 64 << 20
"""All pieces of a node. One, of a batch that did not come whole with the first, may come on top."""
READERS_KEPT_FREE = 2
"""By fetches ahead, where there are more: for those who wait."""


class TooManyReads(RemoteStorageUnavailable):
    """remote.log.reader.max.pending.tasks wait already (T-13)."""


class RangeCacheFull(Exception):
    """Others hold the memory that it would take, for now."""


class RemoteFetchQuotaExceeded(RemoteStorageUnavailable):
    """remote.log.manager.fetch.max.bytes.per.second is used up for now."""


class SegmentRange:
    """The bytes [start, end) of a segment, once they are here. What senders ask of a file, it answers."""

    __slots__ = (
        "_data",
        "_released",
        "end",
        "error",
        "is_ahead",
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
        """Set when the fetch is over, whatever came of it."""
        self.error: RemoteStorageError | None = None
        self.is_ahead = False
        """Nobody has asked for it yet."""
        self.pins = 0
        self._data: memoryview | None = None
        self._released = released

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def path(self) -> Path:
        """For messages; there is no such file."""
        return Path(f"remote/{uuid_to_text(self.segment_id)}.log")

    def put(self, data: Buffer) -> None:
        self._data = memoryview(data).toreadonly()
        self.loaded.set()

    @property
    def is_here(self) -> bool:
        return self._data is not None

    def read_at(self, position: int, size: int, *, nowait: bool = False) -> memoryview:
        """Of the segment, by its positions."""
        assert self._data is not None, "it was not waited for"
        at = position - self.start
        return self._data[at : at + size]

    def is_in_memory(self, position: int, size: int) -> bool:
        return self.is_here

    def slice(self, position: int, end: int) -> FileSlice:
        """Pinned."""
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
    """What the configs say now."""

    threads: int
    pending_max: int


class SegmentRangeCache:
    """See the module. Called on the loop."""

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
        """`fetched` hears of what every fetch for consumers brought, and how long it took; they alone have
        a quota."""
        self._offload = offload
        self._storage = storage
        self._nursery = nursery
        self._limits = limits
        self._is_over_quota = is_over_quota
        self._fetched = fetched
        self._monotonic = monotonic
        self._bytes_max = bytes_max
        self._ahead_bytes_max = bytes_max * 3 // 4
        self._by_segment: dict[UUID, list[SegmentRange]] = {}
        self._used: dict[SegmentRange, None] = {}  # the least recently used first
        self._ahead: dict[SegmentRange, None] = {}
        self._room = trio.Event()
        self._turn = trio.Lock()
        """Whoever has it may come on top with pieces pinned."""
        self._readers = trio.CapacityLimiter(1)
        self._under_way = 0
        self.total_bytes = 0
        self.ahead_bytes = 0

    @property
    def pending(self) -> int:
        """Fetches that wait for a reader (RemoteLogReaderTaskQueueSize)."""
        return max(0, self._under_way - self._limits().threads)

    @property
    def idle_share(self) -> float:
        """How many of the readers have nothing to do, 0 to 1 (RemoteLogReaderAvgIdlePercent)."""
        threads = self._limits().threads
        return max(0, threads - self._under_way) / threads

    @property
    def is_short(self) -> bool:
        """Whether half of the memory is held by those who have read, and have not sent it."""
        idle = (piece for pieces in (self._used, self._ahead) for piece in pieces)
        free_bytes = sum(each.size for each in idle if not each.pins or not each.is_here)
        return self.total_bytes - free_bytes > self._bytes_max // 2

    # Finding

    def find(self, segment_id: UUID, position: int) -> SegmentRange | None:
        """The piece with that byte: one that is here, if there is, and then that reaches farthest."""
        found = [
            each
            for each in self._by_segment.get(segment_id, ())
            if each.start <= position < each.end
        ]
        return max(found, key=lambda each: (each.is_here, each.end), default=None)

    async def at(
        self,
        segment: RemoteLogSegmentMetadata,
        position: int,
        end: int,
        *,
        has_quota: bool = True,
    ) -> SegmentRange:
        """The piece with the byte at `position`; one is fetched up to `end` where there is none, once there
        is room. Pinned. For whoever has none pinned. `has_quota`: for a consumer. Raises RemoteStorageError."""
        return await self._at(segment, position, end, waits=True, on_top=False, has_quota=has_quota)

    async def further(
        self,
        segment: RemoteLogSegmentMetadata,
        position: int,
        end: int,
        *,
        has_turn: bool,
        has_quota: bool = True,
    ) -> SegmentRange:
        """As `at`, for whoever reads by `with_room` and has pieces pinned: with the turn it comes on top,
        else NoRoom is raised where there is none."""
        return await self._at(
            segment, position, end, waits=has_turn, on_top=has_turn, has_quota=has_quota
        )

    async def _at(
        self,
        segment: RemoteLogSegmentMetadata,
        position: int,
        end: int,
        *,
        waits: bool,
        on_top: bool,
        has_quota: bool,
    ) -> SegmentRange:
        segment_id = segment.id.id
        while True:
            piece = self.find(segment_id, position)
            if piece is None:
                end = self._up_to_next(segment_id, position, min(end, segment.size_bytes))
                if not self._has_room(end - position, on_top=on_top):
                    if not waits:
                        raise RangeCacheFull
                    await self._room.wait()
                    continue  # meanwhile it may have come
                piece = self._begin(segment, position, end, has_quota=has_quota)
            piece.pin()
            try:
                await piece.loaded.wait()
            except BaseException:
                piece.unpin()
                raise
            if piece.error is not None:
                piece.unpin()
                raise piece.error
            self._touch(piece)
            return piece

    async def with_room(self, read: Callable[[bool], Awaitable[T]]) -> T:
        """What `read` returns. It is told whether it has the turn; where it has not, and NoRoom comes of that,
        it is called again when it has."""
        with suppress(RangeCacheFull):
            return await read(False)
        async with self._turn:
            return await read(True)

    def _up_to_next(self, segment_id: UUID, position: int, end: int) -> int:
        """`end`, or where a piece begins before it."""
        starts = [each.start for each in self._by_segment.get(segment_id, ())]
        return min([end, *(start for start in starts if position < start)])

    def _touch(self, piece: SegmentRange) -> None:
        if piece in self._ahead:
            del self._ahead[piece]
            self.ahead_bytes -= piece.size
        elif piece in self._used:
            del self._used[piece]
        else:
            return  # forgotten meanwhile
        self._used[piece] = None

    # Fetching ahead

    def fetch_ahead(self, segment: RemoteLogSegmentMetadata, position: int, end: int) -> bool:
        """Begin to fetch what is not here of [position, end), in one go, unless there is no room or no
        reader. False: there is no more to be had now."""
        size_bytes = end - position
        readers = max(1, self._limits().threads - READERS_KEPT_FREE)
        if self._under_way >= readers or self._is_over_quota():
            return False
        if self.ahead_bytes + size_bytes > self._ahead_bytes_max:
            return False
        if not self._evict_for(size_bytes, self._used):
            return False
        self._begin(segment, position, end, is_ahead=True)
        return True

    # The fetch

    def _begin(
        self,
        segment: RemoteLogSegmentMetadata,
        start: int,
        end: int,
        *,
        is_ahead: bool = False,
        has_quota: bool = True,
    ) -> SegmentRange:
        limits = self._limits()
        self._readers.total_tokens = limits.threads
        if not is_ahead:
            if has_quota and self._is_over_quota():
                raise RemoteFetchQuotaExceeded("reads from the remote tier are over their quota")
            if self._under_way >= limits.threads + limits.pending_max:
                raise TooManyReads(f"{self.pending} reads wait for the remote tier already")
        piece = SegmentRange(segment.id, start, end, self._released)
        self._by_segment.setdefault(piece.segment_id, []).append(piece)
        self.total_bytes += piece.size
        piece.is_ahead = is_ahead
        if is_ahead:
            self._ahead[piece] = None
            self.ahead_bytes += piece.size
        else:
            self._used[piece] = None
        self._under_way += 1
        self._nursery().start_soon(self._fetch, segment, piece, has_quota)
        return piece

    async def _fetch(
        self, segment: RemoteLogSegmentMetadata, piece: SegmentRange, has_quota: bool
    ) -> None:
        try:
            async with self._readers:
                began = self._monotonic()
                data = await self._offload.run(
                    self._storage.fetch_segment,
                    segment,
                    piece.start,
                    piece.end - 1,
                    lane=OBJECTS_LANE,
                )
                if has_quota:
                    self._fetched(len(data), self._monotonic() - began)
            if len(data) != piece.size:
                raise CorruptRemoteData(
                    f"remote segment {segment.id} has {len(data)} bytes from position {piece.start} "
                    f"on, not {piece.size}: its object is not whole"
                )
            piece.put(data)
            self._notify()  # whoever has asked for it may have left
        except RemoteStorageError as error:
            self._failed(piece, error)
        except Exception as error:
            log.exception("a read of remote segment %s broke", segment.id)
            self._failed(piece, RemoteStorageError(str(error)))
        finally:
            self._under_way -= 1
            if not piece.loaded.is_set():
                self._failed(piece, RemoteStorageUnavailable("the node ends"))

    def _failed(self, piece: SegmentRange, error: RemoteStorageError) -> None:
        piece.error = error
        self._remove(piece)
        piece.loaded.set()

    # Room

    def _has_room(self, size_bytes: int, *, on_top: bool) -> bool:
        """Once what nobody uses is gone."""
        if self._evict_for(size_bytes, self._used) or self._evict_for(size_bytes, self._ahead):
            return True
        return on_top and self.total_bytes <= self._bytes_max

    def _evict_for(self, size_bytes: int, pieces: dict[SegmentRange, None]) -> bool:
        """Whether there is room for so much, without `pieces` that nobody uses."""
        if self.total_bytes + size_bytes <= self._bytes_max:
            return True
        for piece in [each for each in pieces if not each.pins and each.is_here]:
            self._remove(piece)
            if self.total_bytes + size_bytes <= self._bytes_max:
                return True
        return False

    def _remove(self, piece: SegmentRange) -> None:
        """Take it from the tables; its memory counts until nobody has it pinned."""
        of_segment = self._by_segment.get(piece.segment_id)
        if of_segment is None or piece not in of_segment:
            return
        of_segment.remove(piece)
        if not of_segment:
            del self._by_segment[piece.segment_id]
        self._used.pop(piece, None)
        if piece in self._ahead:
            del self._ahead[piece]
            self.ahead_bytes -= piece.size
        if not piece.pins:
            self._freed(piece)

    def _released(self, piece: SegmentRange) -> None:
        """Its last pin is gone."""
        if piece not in self._by_segment.get(piece.segment_id, ()):
            self._freed(piece)
        else:
            self._notify()

    def _freed(self, piece: SegmentRange) -> None:
        self.total_bytes -= piece.size
        self._notify()

    def _notify(self) -> None:
        """There may be room."""
        if self._room.statistics().tasks_waiting:
            self._room.set()
            self._room = trio.Event()

    def segments_of(self, topic: str, index: int) -> list[UUID]:
        """Those of a partition of which there is something here."""
        return [
            segment_id
            for segment_id, (piece, *_) in self._by_segment.items()
            if (piece.partition.topic, piece.partition.partition) == (topic, index)
        ]

    def forget(self, segment_ids: Iterable[UUID]) -> None:
        """These segments are deleted, or of no use here."""
        for segment_id in segment_ids:
            for piece in list(self._by_segment.get(segment_id, ())):
                if piece.is_here:
                    self._remove(piece)


class ContiguousRanges:
    """Neighbouring pieces, pinned: bytes of a segment from `start` to before `end`."""

    def __init__(self, first: SegmentRange) -> None:
        """`first` is pinned already."""
        self.pieces = [first]
        self.start = first.start
        self.end = first.end

    def add(self, piece: SegmentRange) -> None:
        """`piece` has the byte at `end`, and is pinned."""
        self.pieces.append(piece)
        self.end = piece.end

    def bytes_at(self, position: int, size: int) -> Buffer:
        """What lies in [start, end); from several pieces it is copied together."""
        piece = self.pieces[-1]
        if not piece.start <= position:
            piece = next(each for each in self.pieces if position < each.end)
        if position + size <= piece.end:
            return piece.read_at(position, size)
        return b"".join(
            each.file.read_at(each.position, each.size)
            for each in self._cut(position, position + size)
        )

    def slices(self, begin: int, end: int) -> list[FileSlice]:
        """[begin, end), each slice pinned."""
        found = self._cut(begin, end)
        for each in found:
            each.file.pin()
        return found

    def _cut(self, begin: int, end: int) -> list[FileSlice]:
        found = []
        for piece in self.pieces:
            stop = min(end, piece.end)
            if piece.start <= begin < stop:
                found.append(FileSlice(piece, begin, stop - begin))
                begin = stop
        return found

    def close(self) -> None:
        for piece in self.pieces:
            piece.unpin()
