"""Reads slices of remote log segments, in Spark tasks.

The segment's offset index has the position of the first offset. From there, two pieces are fetched ahead of the
decoder, so that fetching and decoding overlap and memory holds only a few pieces, independent of the segment's
size. The pieces' memory is reused, because new pages cost more than filling them.

If no valid batch begins at the position, or a later one than the index states, the segment is read from its start.
So a wrong index hides no records, and corrupt bytes are reported with their true position.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from odradek.pipeline.decoding.batch_decoder import decoder_of
from odradek.pipeline.decoding.record_selection import RecordSelection
from odradek.pipeline.errors import CorruptSegment, UnreadableSegment
from odradek.pipeline.segment_columns import SegmentSlice
from odradek.pipeline.segment_indexes import LogRange, SegmentIndexes
from odradek.pipeline.store_errors import object_error
from odradek.storage.tiered.errors import CorruptRemoteData, RemoteStorageError
from odradek.storage.tiered.object_names import LOG_SUFFIX, segment_key
from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.pipeline.decoding.record_decoder import RecordDecoder

log = logging.getLogger("odradek.pipeline")

PIECE_BYTES = 8 << 20
PIECES_AHEAD = 2
HEADROOM_BYTES = 1 << 20
"""Bytes before each piece, for the start of a batch that the previous piece ended in."""


def read_slice(
    storage: RemoteStorageManager, segment_slice: SegmentSlice, wanted: RecordSelection
) -> Iterator[pa.RecordBatch]:
    """Return the wanted records of a slice. Raises UnreadableSegment and StoreUnavailable, with the object."""
    segment = segment_slice.segment
    key = segment_key(segment, LOG_SUFFIX)
    low, high = max(segment_slice.low, wanted.low), min(segment_slice.high, wanted.high)
    indexes = SegmentIndexes(storage, segment)

    def decoder_from(place: LogRange) -> RecordDecoder:
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
    storage: RemoteStorageManager, read: SegmentSlice, place: LogRange, decoder: RecordDecoder
) -> Iterator[pa.RecordBatch]:
    """Decode the range, and continue to the end of the log if the range ends before all wanted offsets."""
    size = read.segment.size_bytes
    for start, end in ((place.start, place.end), (place.end, size)):
        for piece in _pieces(storage, read.segment, start, end):
            yield from decoder.feed(piece, HEADROOM_BYTES)
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
    """Narrow a slice as `SegmentIndexes.narrowed` does, for a segment that is not read here."""
    return SegmentIndexes(storage, segment_slice.segment).narrowed(
        segment_slice, since_ms, too_late_ms
    )


def has_record_at_or_after(
    storage: RemoteStorageManager, segment_slice: SegmentSlice, at_ms: int
) -> bool:
    """Whether a record at or after `at_ms` exists, as `SegmentIndexes.has_record_at_or_after`."""
    return SegmentIndexes(storage, segment_slice.segment).has_record_at_or_after(at_ms)


def narrowed_to_time(
    storage: RemoteStorageManager, segment_slice: SegmentSlice, at_ms: int
) -> SegmentSlice:
    """Narrow a slice to where the time index has the first record at or after `at_ms`; the whole slice if the index
    is not usable.
    """
    narrow = narrowed(storage, segment_slice, at_ms, at_ms)
    return narrow if narrow.low < narrow.high else segment_slice


def _pieces(
    storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata, start: int, end: int
) -> Iterator[memoryview]:
    """Yield pieces in order, each with `HEADROOM_BYTES` of memory before it, and valid until the next one; others are
    fetched meanwhile.
    """
    from pyarrow import allocate_buffer  # Arrow's pool reuses freed memory

    starts = range(start, end, PIECE_BYTES)
    size = HEADROOM_BYTES + min(PIECE_BYTES, end - start)
    memory = [memoryview(allocate_buffer(size)).cast("B") for _ in starts[: PIECES_AHEAD + 1]]

    def fetch(number: int) -> memoryview:
        position = starts[number]
        wanted = min(PIECE_BYTES, end - position)
        piece = memory[number % len(memory)][: HEADROOM_BYTES + wanted]
        found = storage.fetch_segment_into(segment, position, piece[HEADROOM_BYTES:])
        if found != wanted:
            raise CorruptRemoteData(f"{found} bytes from position {position}, not {wanted}")
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
