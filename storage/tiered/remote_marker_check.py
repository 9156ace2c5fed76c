"""Check of remote transaction indexes against the abort markers of their segments.

The last offset of each entry must be that of an abort marker of the entry's producer. The marker is found
through the offset index, and read with a ranged read of the interval between two entries of that index;
adjacent intervals share a read. An index with few entries is checked completely at its first use, of others
the entries in use. The result is remembered.

A segment is never read completely, so a wrong first offset or last stable offset, and a missing entry, are
not found. Without a usable offset index, entries are not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import trio

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import HEADER_SIZE, Batch
from odradek.seams.files import Buffer
from odradek.seams.offload import OBJECTS_LANE, Offload
from odradek.storage.log.producer_state import read_marker
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    CorruptRemoteIndex,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.remote_index_cache import RemoteIndexCache
from odradek.storage.tiered.remote_index_lookup import (
    all_transactions,
    lookup_offset,
    position_behind,
)
from odradek.storage.tiered.remote_storage_manager import IndexType, RemoteStorageManager
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata

ENTRIES_CHECKED_MAX = 32
"""Most entries of an index that is checked completely."""
READ_BYTES_MAX = 1 << 20
SEGMENTS_MAX = 1024
"""Segments whose checked entries are remembered."""


@dataclass(slots=True)
class _MarkerRead:
    """A ranged read of bytes [start, end) for the markers of `entries`."""

    start: int
    end: int
    entries: list[AbortedTransaction]


class RemoteMarkerCheck:
    """Runs on the event loop."""

    def __init__(
        self, indexes: RemoteIndexCache, storage: RemoteStorageManager, offload: Offload
    ) -> None:
        self._indexes = indexes
        self._storage = storage
        self._offload = offload
        self._checked: dict[UUID, set[AbortedTransaction]] = {}

    async def check(
        self,
        segment: RemoteLogSegmentMetadata,
        index: Buffer,
        used: Sequence[AbortedTransaction],
    ) -> None:
        """Check the entries of a transaction index before the entries in `used` are returned. Raises
        CorruptRemoteIndex, RemoteStorageError."""
        checked = self._checked.get(segment.id.id)
        if checked is None:
            wanted = all_transactions(index, ENTRIES_CHECKED_MAX) or used
        else:
            wanted = [each for each in used if each not in checked]
        if wanted:
            await self._read_and_check(segment, wanted)
            if checked is None:
                checked = self._checked.setdefault(segment.id.id, set())
                if len(self._checked) > SEGMENTS_MAX:
                    del self._checked[next(iter(self._checked))]
            checked.update(wanted)

    async def _read_and_check(
        self, segment: RemoteLogSegmentMetadata, wanted: Sequence[AbortedTransaction]
    ) -> None:
        try:
            offsets = await self._indexes.fetch(segment, IndexType.OFFSET)
        except (RemoteResourceNotFound, CorruptRemoteData):
            return
        errors: list[RemoteStorageError] = []

        async def read(marker_read: _MarkerRead) -> None:
            try:
                await self._offload.run(self._check_one, segment, marker_read, lane=OBJECTS_LANE)
            except RemoteStorageError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for marker_read in _plan(segment, offsets, wanted):
                nursery.start_soon(read, marker_read)
        if errors:
            raise errors[0]

    def _check_one(self, segment: RemoteLogSegmentMetadata, marker_read: _MarkerRead) -> None:
        """Read and check, in a thread."""
        data = self._storage.fetch_segment(segment, marker_read.start, marker_read.end - 1)
        for each in marker_read.entries:
            if _is_wrong(memoryview(data), each):
                raise CorruptRemoteIndex(
                    f"the {IndexType.TRANSACTION.value} of remote segment {segment.id} has a transaction of producer "
                    f"{each.producer_id} that ends at offset {each.last_offset}, where the segment has no abort "
                    f"marker of this producer"
                )


def _plan(
    segment: RemoteLogSegmentMetadata, offsets: Buffer, wanted: Iterable[AbortedTransaction]
) -> list[_MarkerRead]:
    """Reads for the markers; those of adjacent intervals are merged."""
    reads: list[_MarkerRead] = []
    for each in sorted(wanted, key=lambda each: each.last_offset):
        entry = lookup_offset(offsets, segment.start_offset, each.last_offset)
        start = 0 if entry is None else entry[1]
        end = position_behind(offsets, segment.start_offset, each.last_offset)
        end = segment.size_bytes if end is None else end
        last = reads[-1] if reads else None
        if last is not None and start <= last.end and end - last.start <= READ_BYTES_MAX:
            last.end = max(last.end, end)
            last.entries.append(each)
        else:
            reads.append(_MarkerRead(start, end, [each]))
    return reads


def _is_wrong(data: memoryview, entry: AbortedTransaction) -> bool:
    """Whether the batches in `data` show that no abort marker of the producer is at the last offset. Not if
    a batch is corrupt, or if the offset index led to another part of the segment."""
    at, has_earlier = 0, False
    try:
        while at + HEADER_SIZE <= len(data):
            batch = Batch(data, at)
            if batch.base_offset > entry.last_offset:
                return has_earlier
            if batch.last_offset >= entry.last_offset:
                if batch.base_offset != entry.last_offset or not batch.is_control:
                    return True
                batch.check()
                marker = read_marker(batch)
                is_abort = marker is not None and not marker.is_commit
                return not is_abort or batch.producer_id != entry.producer_id
            has_earlier = True
            at += batch.size
    except CorruptBatch:
        return False
    return False
