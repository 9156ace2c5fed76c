"""Batches of a segment, a page of some hundred KiB at a time.

CRCs, sizes, counts and offsets are all checked: a batch rebuilt from corrupt data would have a valid checksum.
The views of the batches are created one by one, because garbage collections would cost as much as the rest if all
those of a page existed at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import HEADER_SIZE, LOG_OVERHEAD, Batch
from odradek.protocol.records.compression import NONE, decompress
from odradek.protocol.records.records import MAX_DECOMPRESSED_BYTES
from odradek.seams.files import Buffer, File
from odradek.storage.errors import CorruptRecords
from odradek.storage.log.config import INT64_MAX

_unpack_length = Struct(">8xi").unpack_from


class BatchPage:
    """Complete batches, which are adjacent in `data` from its start on; `size` is their size in bytes.

    Iteration checks them, and raises CorruptRecords at the first that is invalid.
    """

    def __init__(self, file: File, position: int, size: int, end_offset: int) -> None:
        """Read `size` bytes of the file from `position` on; `end_offset` is the end of the preceding batches."""
        self._file = file
        self._position = position
        self.end_offset = end_offset
        """End of the batches that were iterated."""
        self.data = memoryview(file.read_at(position, size))
        self._starts: list[int] = []
        at, available = 0, len(self.data)
        while available - at >= HEADER_SIZE:
            (length,) = _unpack_length(self.data, at)
            end = at + length + LOG_OVERHEAD
            if length < HEADER_SIZE - LOG_OVERHEAD:
                raise self._corrupt(at, f"a length of {length} bytes")
            if end > available:
                break
            self._starts.append(at)
            at = end
        self.size = at

    def __iter__(self) -> Iterator[Batch]:
        for start in self._starts:
            try:
                batch = Batch(self.data, start)
                batch.check()
            except CorruptBatch as error:
                raise self._corrupt(start, error) from None
            if batch.last_offset_delta < 0 or batch.record_count < 0:
                raise self._corrupt(start, "a negative record count or offset delta")
            if batch.base_offset < self.end_offset or batch.last_offset >= INT64_MAX:
                raise self._corrupt(start, f"base offset {batch.base_offset}")
            self.end_offset = batch.last_offset + 1
            yield batch

    def _corrupt(self, start: int, fault: object) -> CorruptRecords:
        return CorruptRecords(
            f"invalid record batch at position {self._position + start} of {self._file.path}: {fault}"
        )


def read_pages(
    file: File, position: int, end: int, page_bytes: int, *, end_offset: int
) -> Iterator[BatchPage]:
    """Read the batches in [position, end) of `file` in pages of about `page_bytes`, which are iterated one by one.

    `end_offset` is the end of the preceding batches. Raises CorruptRecords.
    """
    while position < end:
        page = BatchPage(file, position, min(page_bytes, end - position), end_offset)
        if not page.size and len(page.data) >= HEADER_SIZE:  # a batch that is larger than a page
            size = _unpack_length(page.data)[0] + LOG_OVERHEAD
            page = BatchPage(file, position, min(size, end - position), end_offset)
        if not page.size:
            raise CorruptRecords(f"incomplete record batch at position {position} of {file.path}")
        yield page
        end_offset = page.end_offset
        position += page.size


def records_of(batch: Batch) -> Buffer:
    """The decompressed records of a batch. Raises CorruptBatch."""
    body = batch.view[HEADER_SIZE:]
    if batch.compression == NONE or not body:
        return body
    return decompress(batch.compression, body, MAX_DECOMPRESSED_BYTES)
