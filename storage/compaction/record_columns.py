"""Batches and records of a segment as numpy columns, a few MiB at a time.

A Python loop over records processes half a million per second; numpy over columns processes several
million. A page is read, the batch headers become rows of an array, the records of all batches are found
(compressed data is decompressed and appended to the page), and each field of all records is decoded at
once. Only the loops over batches are in Python.

CRCs, sizes, counts and offsets are all checked: a batch rebuilt from corrupt data would have a valid
checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from struct import Struct

import numpy as np

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    CRC_START,
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_MASK,
)
from odradek.protocol.records.compression import NONE, decompress
from odradek.protocol.records.crc32c import crc32c
from odradek.protocol.records.header_columns import header_columns
from odradek.protocol.records.records import MAX_DECOMPRESSED_BYTES, read_varint
from odradek.seams.files import File
from odradek.seams.values import value_class
from odradek.storage.compaction import key_hash
from odradek.storage.compaction.varint_columns import Bits, Bytes, Flags, Ints, varints
from odradek.storage.errors import CorruptRecords

PAD = bytes(key_hash.LONG + 16)
"""Bytes after every page, so that no column is read past its end."""

MANY_BATCHES = 100
"""From this number of equally long batches on, their records are found in parallel."""

_LENGTH = Struct(">i")
_LENGTH_AT = 8


@value_class
class RecordColumns:
    """Records of some batches of a page, in order; positions are those in `BatchPage.data`."""

    batch: Ints
    """Number of the batch in the page, for each record."""
    start: Ints
    end: Ints
    timestamp_end: Ints
    """End of the timestamp delta; the rest of the record stays if the timestamp is rewritten."""
    timestamp_delta: Ints
    offset: Ints
    key_start: Ints
    key_size: Ints
    """Size of the key in bytes, or -1 for a null key."""
    has_value: Flags

    def __len__(self) -> int:
        return len(self.start)


class BatchPage:
    """Complete batches, from `position` in their file on; `size` is their size there."""

    def __init__(self, data: bytes, position: int, starts: list[int], size: int) -> None:
        self.data = data
        self.position = position
        self.size = size
        self.starts = starts
        self.bytes: Bytes = np.frombuffer(data, np.uint8)
        self.headers = header_columns(data, starts)
        self.bodies: dict[int, tuple[int, int]] = {}
        """Range of the decompressed records of each compressed batch. They follow all batches in `bytes`."""

    def __len__(self) -> int:
        return len(self.starts)

    # Columns of the batches

    def column(self, name: str) -> Ints:
        found: Ints = self.headers[name].astype(np.int64)
        return found

    @cached_property
    def attributes(self) -> Ints:
        return self.column("attributes")

    @cached_property
    def base_offset(self) -> Ints:
        return self.column("base_offset")

    @cached_property
    def last_offset(self) -> Ints:
        return self.base_offset + self.column("last_offset_delta")

    @cached_property
    def base_timestamp(self) -> Ints:
        return self.column("base_timestamp")

    @cached_property
    def max_timestamp(self) -> Ints:
        return self.column("max_timestamp")

    @cached_property
    def producer_id(self) -> Ints:
        return self.column("producer_id")

    @cached_property
    def record_count(self) -> Ints:
        return self.column("record_count")

    @cached_property
    def ends(self) -> list[int]:
        return [*self.starts[1:], self.size]

    def flagged(self, mask: int) -> Flags:
        """Mask of the batches with that bit of the attributes."""
        found: Flags = (self.attributes & mask) != 0
        return found

    @cached_property
    def is_control(self) -> Flags:
        return self.flagged(CONTROL_MASK)

    @cached_property
    def is_transactional(self) -> Flags:
        return self.flagged(TRANSACTIONAL_MASK)

    @cached_property
    def has_horizon(self) -> Flags:
        return self.flagged(DELETE_HORIZON_MASK)

    @cached_property
    def codec(self) -> Ints:
        return self.attributes & COMPRESSION_MASK

    # Checks

    def check(self, end_offset: int) -> None:
        """Raise CorruptRecords unless all batches are valid and their offsets increase from
        `end_offset` on."""
        offsets_before = np.concatenate(([end_offset - 1], self.last_offset[:-1]))
        sound = (
            (self.headers["magic"] == MAGIC)
            & (self.headers["last_offset_delta"] >= 0)
            & (self.base_offset > offsets_before)
            & (self.record_count >= 0)
        )
        if not sound.all():
            raise self._corrupt(
                int(np.argmin(sound)), "has an invalid magic, offset range or record count"
            )
        view = memoryview(self.data)
        crcs = self.headers["crc"].tolist()
        for number, (start, end, crc) in enumerate(zip(self.starts, self.ends, crcs, strict=True)):
            if crc32c(view[start + CRC_START : end]) != crc:
                raise self._corrupt(number, "has an invalid CRC")

    def _corrupt(self, number: int, what: str) -> CorruptRecords:
        return CorruptRecords(
            f"the record batch at position {self.position + self.starts[number]} {what}"
        )

    # Records

    def records(self, wanted: Flags) -> RecordColumns:
        """The records of the `wanted` batches. Raises CorruptBatch."""
        numbers = np.flatnonzero(wanted & (self.record_count > 0))
        counts = self.record_count[numbers]
        bodies = [self._body(number) for number in numbers.tolist()]
        start = find_records(self.bytes, self.data, bodies, counts)
        return self._decoded(np.repeat(numbers, counts), start)

    def _body(self, number: int) -> tuple[int, int]:
        body = self.bodies.get(number)
        return (self.starts[number] + HEADER_SIZE, self.ends[number]) if body is None else body

    def _decoded(self, batch: Ints, start: Ints) -> RecordColumns:
        data = self.bytes
        size, at = varints(data, start)
        end = at + size
        timestamp_delta, timestamp_end = varints(data, at + 1)
        offset_delta, at = varints(data, timestamp_end)
        key_size, key_start = varints(data, at)
        value_at = key_start + np.maximum(key_size, 0)
        if (value_at >= end).any():
            raise CorruptBatch(f"a key exceeds its record, near position {self.position}")
        value_size, at = varints(data, value_at)
        if (at + np.maximum(value_size, 0) >= end).any():
            raise CorruptBatch(f"a value exceeds its record, near position {self.position}")
        offset = self.base_offset[batch] + offset_delta
        if (offset_delta < 0).any() or (offset > self.last_offset[batch]).any():
            raise CorruptBatch(f"an offset is outside of its batch, near position {self.position}")
        if (np.diff(offset) <= 0).any():
            raise CorruptBatch(f"offsets do not increase, near position {self.position}")
        return RecordColumns(
            batch=batch,
            start=start,
            end=end,
            timestamp_end=timestamp_end,
            timestamp_delta=timestamp_delta,
            offset=offset,
            key_start=key_start,
            key_size=key_size,
            has_value=value_size >= 0,
        )

    def key_bits(
        self, records: RecordColumns, rows: Ints, key_hash: key_hash.KeyHash
    ) -> tuple[Bits, Bits]:
        """Hashes of the keys of these rows; each row has a key."""
        return key_hash(self.bytes, records.key_start[rows], records.key_size[rows])


def find_records(data: Bytes, data_too: bytes, bodies: list[tuple[int, int]], counts: Ints) -> Ints:
    """Start of each record of all `bodies`, which contain `counts` records. Raises CorruptBatch.

    A record contains its length, so the records of a batch are found one after the other; many batches
    are processed in parallel.
    """
    if not bodies:
        return np.zeros(0, np.int64)
    if int(counts.sum()) >= MANY_BATCHES * int(counts.max()):
        return _find_across(data, np.array(bodies, np.int64), counts)
    starts: list[int] = []
    for (begin, end), count in zip(bodies, counts.tolist(), strict=True):
        found = len(starts)
        _find_within(data_too, begin, end, starts)
        if len(starts) - found != count:
            raise CorruptBatch(f"found {len(starts) - found} records in a batch of {count}")
    return np.array(starts, np.int64)


def _find_across(data: Bytes, bodies: Ints, counts: Ints) -> Ints:
    """Find the first record of every batch, then the second of all that have one, and so on."""
    # Batches with the most records first: the unfinished ones are a prefix.
    order = np.argsort(-counts, kind="stable")
    at, ends, counts_left = bodies[order, 0], bodies[order, 1], counts[order]
    first = (np.cumsum(counts) - counts)[order]
    starts = np.empty(int(counts.sum()), np.int64)
    active = len(order)
    for number in range(int(counts_left[0])):
        while counts_left[active - 1] <= number:
            active -= 1
        starts[first[:active] + number] = at[:active]
        size, after = varints(data, at[:active])
        at[:active] = after + size
        if (size < 0).any() or (at[:active] > ends[:active]).any():
            raise CorruptBatch("a record exceeds its batch")
    if (at != ends).any():
        raise CorruptBatch("bytes remain after the last record of a batch")
    return starts


def _find_within(data: bytes, position: int, end: int, starts: list[int]) -> None:
    """Find one batch's records, in [position, end)."""
    add = starts.append
    while position < end:
        add(position)
        size = data[position]
        if size < 0x80:
            position += (size >> 1) + 1
        elif (second := data[position + 1]) < 0x80:
            position += ((size & 0x7F | second << 7) >> 1) + 2
        else:
            length, position = read_varint(data, position)
            position += max(length, 0)
    if position != end:
        raise CorruptBatch("a batch does not end with its last record")


def read_pages(
    file: File, position: int, size: int, page_bytes: int, *, end_offset: int
) -> Iterator[BatchPage]:
    """Read the batches in [position, size) of `file`, checked, in pages of about `page_bytes`.

    `end_offset` is the end of the preceding batches. Raises CorruptRecords, CorruptBatch.
    """
    while position < size:
        chunk = file.read_at(position, min(page_bytes, size - position))
        starts, end = _find_batches(chunk)
        if not starts:
            chunk = _one_batch(file, position, size, chunk)
            starts, end = [0], len(chunk)
        for page in _split(chunk, position, starts, end, page_bytes):
            page.check(end_offset)
            end_offset = int(page.last_offset[-1]) + 1
            yield page
        position += end


def _find_batches(chunk: bytes) -> tuple[list[int], int]:
    """Starts of the complete batches in `chunk`, and the end of the last one."""
    starts: list[int] = []
    position, last = 0, len(chunk) - HEADER_SIZE
    while position <= last:
        (length,) = _LENGTH.unpack_from(chunk, position + _LENGTH_AT)
        end = position + length + LOG_OVERHEAD
        if length < HEADER_SIZE - LOG_OVERHEAD:
            raise CorruptRecords(f"invalid record batch length {length}")
        if end > len(chunk):
            break
        starts.append(position)
        position = end
    return starts, position


def _one_batch(file: File, position: int, size: int, chunk: bytes) -> bytes:
    """Read a batch that is larger than a page."""
    if len(chunk) < HEADER_SIZE:
        raise CorruptRecords(f"no record batch at position {position} of {file.path}")
    (length,) = _LENGTH.unpack_from(chunk, _LENGTH_AT)
    end = length + LOG_OVERHEAD
    if position + end > size:
        raise CorruptRecords(f"incomplete record batch at position {position} of {file.path}")
    whole = file.read_at(position, end)
    if len(whole) != end:
        raise CorruptRecords(f"{file.path} ends within the record batch at position {position}")
    return whole


def _split(
    chunk: bytes, position: int, starts: list[int], end: int, page_bytes: int
) -> Iterator[BatchPage]:
    """Split batches into decompressed pages that need a limited amount of memory."""
    first = 0
    bodies: list[bytes] = []
    places: dict[int, tuple[int, int]] = {}
    used = 0
    view = memoryview(chunk)
    for number, start in enumerate(starts):
        batch_end = starts[number + 1] if number + 1 < len(starts) else end
        codec = chunk[start + CRC_START + 1] & COMPRESSION_MASK
        if codec == NONE or batch_end - start == HEADER_SIZE:
            continue
        body = bytes(
            decompress(codec, view[start + HEADER_SIZE : batch_end], MAX_DECOMPRESSED_BYTES)
        )
        if used and used + len(body) > page_bytes:
            yield _page(view, position, starts[first:number], start, bodies, places)
            first, bodies, places, used = number, [], {}, 0
        bodies.append(body)
        places[number - first] = (used, used + len(body))
        used += len(body)
    yield _page(view, position, starts[first:], end, bodies, places)


def _page(
    view: memoryview,
    position: int,
    starts: list[int],
    end: int,
    bodies: list[bytes],
    places: dict[int, tuple[int, int]],
) -> BatchPage:
    begin = starts[0]
    size = end - begin
    data = b"".join((view[begin:end], *bodies, PAD))
    page = BatchPage(data, position + begin, [start - begin for start in starts], size)
    page.bodies = {number: (size + start, size + stop) for number, (start, stop) in places.items()}
    return page
