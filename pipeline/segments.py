"""Reading stretches of remote segments, where the tasks run.

The segment's offset index says where its first offset is; from there on two pieces are fetched ahead of
what is decoded, so that the store and the processor work at the same time and memory holds a few pieces,
whatever the segment's size. It is the same memory for all of them: fresh pages cost more than filling them.

Where no batch begins, or a later one than the index says, or one that is broken, the segment is read from its
beginning: so nothing is hidden by an index, and what is broken is found where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from odradek.pipeline.decoding.batches import decoder_of
from odradek.pipeline.decoding.selection import RecordSelection
from odradek.pipeline.errors import CorruptSegment, UnreadableSegment
from odradek.pipeline.segment_columns import SegmentSlice
from odradek.pipeline.segment_indexes import LogRange, SegmentIndexes
from odradek.pipeline.store_errors import object_error
from odradek.storage.tiered.errors import CorruptRemoteData, RemoteStorageError
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata
from odradek.storage.tiered.object_names import LOG_SUFFIX, segment_key
from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.pipeline.decoding.decoder import Decoder

log = logging.getLogger("odradek.pipeline")

PIECE_BYTES = 8 << 20
PIECES_AHEAD = 2
ROOM_BYTES = 1 << 20
"""Before each piece, for what is left of the batch that the one before it has cut in two."""


def read_slice(
    storage: RemoteStorageManager, segment_slice: SegmentSlice, wanted: RecordSelection
) -> Iterator[pa.RecordBatch]:
    """Its records, as far as wanted. Raises UnreadableSegment and StoreUnavailable, which name the object."""
    segment = segment_slice.segment
    key = segment_key(segment, LOG_SUFFIX)
    low, high = max(segment_slice.low, wanted.low), min(segment_slice.high, wanted.high)
    indexes = SegmentIndexes(storage, segment)

    def decoder_from(place: LogRange) -> Decoder:
        decoder = decoder_of(replace(wanted, low=low, high=high), key)
        decoder.within(segment.start_offset, segment.end_offset, place.begins_by)
        decoder.seek(place.start)
        return decoder

    decoder = decoder_from(indexes.whole)
    try:
        read = indexes.narrowed(
            SegmentSlice(segment, low, high), wanted.since_ms, wanted.too_late_ms
        )
        if read.low >= read.high:
            return
        place = indexes.place(read.low, read.high)
        decoder = decoder_from(place)
        try:
            yield from _decoded(storage, read, place, decoder)
            return
        except CorruptSegment as error:
            if place.start == 0 or decoder.next_offset > low:
                raise
            log.warning("%s is read from its beginning, as its index may be wrong: %s", key, error)
        decoder = decoder_from(indexes.whole)
        yield from _decoded(storage, read, indexes.whole, decoder)
    except UnreadableSegment as error:
        error.key, error.unread_from = key, decoder.next_offset
        raise
    except RemoteStorageError as error:
        found = object_error(key, error)
        if isinstance(found, UnreadableSegment):
            found.unread_from = decoder.next_offset
        raise found from error


def _decoded(
    storage: RemoteStorageManager, read: SegmentSlice, place: LogRange, decoder: Decoder
) -> Iterator[pa.RecordBatch]:
    """From where the place begins, to where it ends or, if that is before all that is to be read, to the end of
    the log."""
    size = read.segment.size_bytes
    for start, end in ((place.start, place.end), (place.end, size)):
        for piece in _pieces(storage, read.segment, start, end):
            yield from decoder.feed(piece, ROOM_BYTES)
            if decoder.is_done:
                return
        if end < size:
            if decoder.next_offset >= read.high:
                return
            log.warning("%s is read to its end, as its index may be wrong", decoder.source)
    yield from decoder.end()


def narrowed(
    storage: RemoteStorageManager, segment_slice: SegmentSlice, since_ms: int, too_late_ms: int
) -> SegmentSlice:
    """`SegmentIndexes.narrowed`, for who does not read it."""
    return SegmentIndexes(storage, segment_slice.segment).narrowed(
        segment_slice, since_ms, too_late_ms
    )


def has_as_late(storage: RemoteStorageManager, segment_slice: SegmentSlice, at_ms: int) -> bool:
    """`SegmentIndexes.has_as_late`."""
    return SegmentIndexes(storage, segment_slice.segment).has_as_late(at_ms)


def narrowed_to_time(
    storage: RemoteStorageManager, segment_slice: SegmentSlice, at_ms: int
) -> SegmentSlice:
    """Where in it the first record that is as late as `at_ms` should be, by the segment's time index; all of
    it where that cannot be told."""
    narrow = narrowed(storage, segment_slice, at_ms, at_ms)
    return narrow if narrow.low < narrow.high else segment_slice


def _pieces(
    storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, start: int, end: int
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
        found = storage.fetch_segment_into(segment, position, piece[ROOM_BYTES:])
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
