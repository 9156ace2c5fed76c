"""Scan of the batches of a segment's file by their headers, without reading the records."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from odradek.protocol.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, Batch
from odradek.seams.files import File
from odradek.storage.errors import CorruptRecords
from odradek.storage.log.index_file import CorruptIndex

# Base offset, length, magic and last offset delta: needed to find the next batch.
_HOP = Struct(">qi4xb6xi")
_CHUNK_BYTES = 4096
_HEADER_CHUNK_BYTES = 512
"""Bytes per read for batches that are much larger than their headers, so that less memory is touched."""


class BatchPosition(NamedTuple):
    """A batch in a segment: bytes [position, end), offsets [base_offset, last_offset]."""

    last_offset: int
    position: int
    end: int
    base_offset: int


def locate(
    file: File, offset: int, start: int, end: int, *, nowait: bool, ends_at: int | None = None
) -> BatchPosition | None:
    """First batch in [start, end) that ends at or past `offset`; `start` is the start of a batch.

    `ends_at` is the last offset of the batch at `start` according to an index. Raises WouldBlock (with
    `nowait`), CorruptRecords, and CorruptIndex if no batch at `start` ends at `ends_at`.
    """
    if ends_at is not None and not 0 <= start <= end - HEADER_SIZE:
        raise CorruptIndex(f"it has position {start}, but {file.path} has {end} bytes")
    position, wanted = start, _HEADER_CHUNK_BYTES
    while position < end:
        chunk = file.read_at(position, min(wanted, end - position), nowait=nowait)
        available = len(chunk) - HEADER_SIZE
        at = 0
        while at <= available:
            base_offset, length, magic, delta = _HOP.unpack_from(chunk, at)
            size = length + LOG_OVERHEAD
            if ends_at is not None:
                if base_offset + delta != ends_at:
                    raise CorruptIndex(
                        f"no record batch at position {start} of {file.path} ends at offset {ends_at}"
                    )
                ends_at = None
            if magic != MAGIC or size < HEADER_SIZE or delta < 0 or position + at + size > end:
                raise CorruptRecords(f"no record batch at position {position + at} of {file.path}")
            if base_offset + delta >= offset:
                begin = position + at
                return BatchPosition(base_offset + delta, begin, begin + size, base_offset)
            at += size
            wanted = _HEADER_CHUNK_BYTES if size > _CHUNK_BYTES // 2 else _CHUNK_BYTES
        if at == 0:
            raise CorruptRecords(f"no record batch at position {position} of {file.path}")
        position += at
    return None


def headers(file: File, start: int, end: int) -> Iterator[Batch]:
    """Headers of all batches in [start, end); `Batch.position` is the position in the file.

    `Batch.view` holds little more than the header. Raises CorruptRecords, CorruptBatch.
    """
    position = start
    while position < end:
        chunk = memoryview(file.read_at(position, min(_CHUNK_BYTES, end - position)))
        available = len(chunk) - HEADER_SIZE
        at = 0
        while at <= available:
            batch = Batch(chunk, at)
            at += batch.size
            batch.position += position
            if batch.last_offset_delta < 0 or position + at > end:
                raise CorruptRecords(f"no record batch at position {batch.position} of {file.path}")
            yield batch
        if at == 0:
            raise CorruptRecords(f"no record batch at position {position} of {file.path}")
        position += at


def read_batch(file: File, position: int, size: int) -> Batch:
    """The whole batch at `position`. Raises CorruptBatch if it is incomplete or corrupt."""
    batch = Batch(memoryview(file.read_at(position, size)))
    batch.check()
    return batch
