"""Reading stretches of remote segments, where the tasks run.

The segment's offset index says where its first offset is; from there on two pieces are fetched ahead of
what is decoded, so that the store and the processor work at the same time and memory holds a few pieces,
whatever the segment's size. It is the same memory for all of them: fresh pages cost more than filling them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from odradek.pipeline.decoding.batches import decoder_of
from odradek.pipeline.decoding.wanted import INT64_MIN, Wanted
from odradek.pipeline.errors import UnreadableSegment
from odradek.pipeline.segment_columns import Stretch
from odradek.pipeline.store_errors import of_object
from odradek.seams.files import Buffer
from odradek.storage.tiered.errors import (
    CorruptRemoteData,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from odradek.storage.tiered.index_entries import (
    check_index,
    lookup_offset,
    lookup_timestamp,
    offset_as_late,
    position_behind,
)
from odradek.storage.tiered.object_names import LOG_SUFFIX, segment_key
from odradek.storage.tiered.remote_storage import IndexType, RemoteStorageManager

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("odradek.pipeline")

PIECE_BYTES = 8 << 20
PIECES_AHEAD = 2
ROOM_BYTES = 1 << 20
"""Before each piece, for what is left of the batch that the one before it has cut in two."""


def read_stretch(
    storage: RemoteStorageManager, stretch: Stretch, wanted: Wanted
) -> Iterator[pa.RecordBatch]:
    """Its records, as far as wanted. Raises UnreadableSegment and StoreUnavailable, which name the object."""
    segment = stretch.segment
    key = segment_key(segment, LOG_SUFFIX)
    low, high = max(stretch.low, wanted.low), min(stretch.high, wanted.high)
    decoder = decoder_of(replace(wanted, low=low, high=high), key)
    decoder.within(segment.start_offset, segment.end_offset)
    try:
        read = Stretch(segment, low, high)
        read = narrowed(storage, read, wanted.since_ms, wanted.too_late_ms)
        start, end = _positions(storage, read)
        decoder.seek(start)
        for piece in _pieces(storage, stretch, start, end):
            yield from decoder.feed(piece, ROOM_BYTES)
            if decoder.is_done:
                return
        yield from decoder.end()
    except UnreadableSegment as error:
        error.key, error.unread_from = key, decoder.next_offset
        raise
    except RemoteStorageError as error:
        found = of_object(key, error)
        if isinstance(found, UnreadableSegment):
            found.unread_from = decoder.next_offset
        raise found from error


def narrowed(
    storage: RemoteStorageManager, stretch: Stretch, since_ms: int, too_late_ms: int
) -> Stretch:
    """What of it may have records as late as `since_ms`, up to the first that is as late as `too_late_ms`, as the
    segment's time index knows them: it may be nothing (`low` >= `high`). All of it where that cannot be told."""
    start = stretch.segment.start_offset
    is_early = since_ms > INT64_MIN
    is_late = stretch.segment.max_timestamp_ms >= too_late_ms
    index = _time_index(storage, stretch) if is_early or is_late else None
    if index is None:
        return stretch
    low, high = stretch.low, stretch.high
    if is_early:
        low = max(low, lookup_timestamp(index, start, since_ms - 1))
    by = offset_as_late(index, start, too_late_ms) if is_late else None
    if by is not None:
        high = min(high, by + 1)
    return Stretch(stretch.segment, low, high)


def narrowed_to_time(storage: RemoteStorageManager, stretch: Stretch, at_ms: int) -> Stretch:
    """Where in it the first record that is as late as `at_ms` should be, by the segment's time index; all of
    it where that cannot be told."""
    narrow = narrowed(storage, stretch, at_ms, at_ms)
    return narrow if narrow.low < narrow.high else stretch


def _time_index(storage: RemoteStorageManager, stretch: Stretch) -> Buffer | None:
    """None if it can't be had: reading the segment tells what is wrong, if anything is."""
    try:
        index = storage.fetch_index(stretch.segment, IndexType.TIMESTAMP)
        check_index(index, IndexType.TIMESTAMP, stretch.segment)
    except RemoteStorageError as error:
        log.debug("without a time index: %s", error)
        return None
    return index


def _positions(storage: RemoteStorageManager, stretch: Stretch) -> tuple[int, int]:
    """Bytes of the log (from, before) that have all batches with these offsets, and one more on either side: no
    CRC is over a batch's first offset, its neighbours tell a wrong one. The whole log, where its index is of
    no use."""
    segment, low, high = stretch.segment, stretch.low, stretch.high
    if low <= segment.start_offset and high > segment.end_offset:
        return 0, segment.size_bytes
    try:
        index = storage.fetch_index(segment, IndexType.OFFSET)
        check_index(index, IndexType.OFFSET, segment)
    except (RemoteResourceNotFound, CorruptRemoteData) as error:
        log.warning("%s is read from its beginning: %s", segment_key(segment, LOG_SUFFIX), error)
        return 0, segment.size_bytes
    before = lookup_offset(index, segment.start_offset, low - 1)
    behind = position_behind(index, segment.start_offset, high - 1)
    return before[1] if before else 0, segment.size_bytes if behind is None else behind


def _pieces(
    storage: RemoteStorageManager, stretch: Stretch, start: int, end: int
) -> Iterator[memoryview]:
    """In order, each behind `ROOM_BYTES` and valid until the next is asked for; a few are being fetched while one is
    decoded."""
    from pyarrow import allocate_buffer  # of memory that Arrow keeps for the next one

    starts = range(start, end, PIECE_BYTES)
    size = ROOM_BYTES + min(PIECE_BYTES, end - start)
    memory = [memoryview(allocate_buffer(size)).cast("B") for _ in starts[: PIECES_AHEAD + 1]]

    def fetch(number: int) -> memoryview:
        position = starts[number]
        wanted = min(PIECE_BYTES, end - position)
        piece = memory[number % len(memory)][: ROOM_BYTES + wanted]
        found = storage.fetch_segment_into(stretch.segment, position, piece[ROOM_BYTES:])
        if found != wanted:
            raise CorruptRemoteData(f"{found} bytes from {position} on, not {wanted}")
        return piece

    with ThreadPoolExecutor(PIECES_AHEAD, thread_name_prefix="odradek-ahead") as pool:
        coming = [pool.submit(fetch, number) for number in range(len(starts[:PIECES_AHEAD]))]
        try:
            for number in range(PIECES_AHEAD, len(starts) + PIECES_AHEAD):
                piece = coming.pop(0).result()
                if number < len(starts):
                    coming.append(pool.submit(fetch, number))
                yield piece
        finally:
            for each in coming:
                each.cancel()
