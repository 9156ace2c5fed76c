"""Encodes Arrow columns as records; compiled, without a Python object for each record.

The inverse of `decoding/`: keys, values, headers and timestamps become the body of a batch, whose header
`protocol.records.records.frame_batch` writes. A batch's rows are selected by row number, so that rows for several
partitions are neither sorted nor copied first.
"""

# Compiled by numba, which infers the types from the arguments.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, call-arg, var-annotated"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from odradek.client.transactions import EncodedRecords
from odradek.pipeline.decoding.record_kernels import _copy

COLUMNS = ("key", "value", "offset", "timestamp", "headers")
"""Columns that are needed to write records again."""
RECORD_BYTES_MAX, HEADER_BYTES_MAX = 36, 10
"""Maximum bytes of the lengths and deltas of a record, and of a header."""


class RecordEncoder:
    """Rows of an Arrow batch with COLUMNS, ready to encode. `sizes` are upper bounds of the encoded sizes in bytes."""

    def __init__(self, table: pa.RecordBatch) -> None:
        self._keys = _Binary(table.column("key"))
        self._values = _Binary(table.column("value"))
        headers = table.column("headers")
        pairs = headers.values
        self._header_ends = _ends(headers)
        self._header_keys = _Binary(pairs.field(0))
        self._header_values = _Binary(pairs.field(1))
        self.offsets = table.column("offset").to_numpy()
        self._timestamps = table.column("timestamp").cast(pa.int64()).to_numpy() // 1000
        lengths = np.diff(self._header_keys.ends) + np.diff(self._header_values.ends)
        header_bytes = np.concatenate(([0], np.cumsum(lengths.astype(np.int64) + HEADER_BYTES_MAX)))
        self.sizes = (
            np.diff(self._keys.ends).astype(np.int64)
            + np.diff(self._values.ends)
            + header_bytes[self._header_ends[1:]]
            - header_bytes[self._header_ends[:-1]]
            + RECORD_BYTES_MAX
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def by_key(self, partitions: int, otherwise: int, low: int, high: int) -> Any:
        """Return the partitions, out of `partitions`, of the rows low <= row < high, as Kafka's default partitioner
        chooses them by key; `otherwise` for rows without a key.
        """
        keys = self._keys
        found = np.full(high - low, otherwise, np.int32)
        partitions_of(keys.ends[low : high + 1], keys.nulls[low:high], keys.data, partitions, found)
        return found

    def beyond(self, at_ms: int) -> Any:
        """Return the offsets of records whose timestamp is at least `at_ms` before or after 1970."""
        return self.offsets[np.abs(self._timestamps) >= at_ms]

    def encode(self, rows: Any) -> EncodedRecords:
        """Encode these rows, at least one, as the body of a batch."""
        out = np.empty(int(self.sizes[rows].sum()), np.uint8)
        size = encode_records(
            rows,
            self._timestamps,
            self._keys.arrays,
            self._values.arrays,
            self._header_ends,
            self._header_keys.arrays,
            self._header_values.arrays,
            out,
        )
        times = self._timestamps[rows]
        return EncodedRecords(
            memoryview(out.data)[:size], len(rows), int(times[0]), int(times.max())
        )


def cut(sizes: Any, limit: int, count: int) -> Iterator[tuple[int, int]]:
    """Group consecutive items into ranges (low, high) with sums of at most `limit` and at most `count` items, but
    at least one.
    """
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + limit, side="right"))
        last = max(min(last, first + count), first + 1)
        yield first, last
        first = last


class _Binary:
    """A binary column: the items' ends (after a leading 0), the nulls and the bytes."""

    def __init__(self, column: pa.Array) -> None:
        data = column.buffers()[2]
        self.ends = _ends(column)
        self.nulls = column.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)
        self.data = np.frombuffer(data if data else b"", np.uint8)
        self.arrays = (self.ends, self.nulls, self.data)


def _ends(column: pa.Array) -> Any:
    buffer = column.buffers()[1]
    if buffer is None or len(column) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32)[column.offset : column.offset + len(column) + 1]


@njit(cache=True, nogil=True)
def _size_of(value):
    """Return the size of a number as a zigzag varint."""
    raw = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while raw > np.uint64(127):
        raw >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True)
def _put(out, at, value):
    """Write a zigzag varint; return its end."""
    raw = np.uint64((value << 1) ^ (value >> 63))
    while raw > np.uint64(127):
        out[at] = np.uint8((raw & np.uint64(127)) | np.uint64(128))
        raw >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(raw)
    return at + 1


@njit(cache=True, nogil=True)
def _length(ends, nulls, row):
    return np.int64(-1) if nulls[row] else np.int64(ends[row + 1]) - np.int64(ends[row])


@njit(cache=True, nogil=True)
def _put_bytes(out, at, ends, data, row, length):
    at = _put(out, at, length)
    if length > 0:
        _copy(data, np.int64(ends[row]), out, at, length)
        at += length
    return at


@njit(cache=True, nogil=True)
def encode_records(
    rows, timestamps, key_arrays, value_arrays, header_ends, header_key_arrays, header_value_arrays, out
):  # fmt: skip
    """Encode these rows, with consecutive offsets, into `out`, which is large enough; return the number of bytes.

    A binary column is (ends, nulls, bytes); `header_ends` are the ends of the rows' headers.
    """
    key_ends, key_nulls, keys = key_arrays
    value_ends, value_nulls, values = value_arrays
    header_key_ends, header_key_nulls, header_keys = header_key_arrays
    header_value_ends, header_nulls, header_values = header_value_arrays
    at = 0
    base = timestamps[rows[0]]
    for number in range(len(rows)):
        row = rows[number]
        delta = timestamps[row] - base
        key = _length(key_ends, key_nulls, row)
        value = _length(value_ends, value_nulls, row)
        first, last = np.int64(header_ends[row]), np.int64(header_ends[row + 1])
        size = 1 + _size_of(delta) + _size_of(np.int64(number)) + _size_of(last - first)
        size += _size_of(key) + max(key, 0) + _size_of(value) + max(value, 0)
        for each in range(first, last):
            name = _length(header_key_ends, header_key_nulls, each)
            length = _length(header_value_ends, header_nulls, each)
            size += _size_of(name) + name + _size_of(length) + max(length, 0)
        at = _put(out, at, np.int64(size))
        out[at] = 0
        at = _put(out, at + 1, delta)
        at = _put(out, at, np.int64(number))
        at = _put_bytes(out, at, key_ends, keys, row, key)
        at = _put_bytes(out, at, value_ends, values, row, value)
        at = _put(out, at, last - first)
        for each in range(first, last):
            name = _length(header_key_ends, header_key_nulls, each)
            at = _put_bytes(out, at, header_key_ends, header_keys, each, name)
            length = _length(header_value_ends, header_nulls, each)
            at = _put_bytes(out, at, header_value_ends, header_values, each, length)
    return at


_SEED, _M, _R = np.uint32(0x9747B28C), np.uint32(0x5BD1E995), np.uint32(24)


@njit(cache=True, nogil=True)
def partitions_of(ends, nulls, data, partitions, out):
    """Set the partition of each non-null key by Kafka's murmur2 hash (client/partitioner.py)."""
    for row in range(len(out)):
        if nulls[row]:
            continue
        at, end = np.int64(ends[row]), np.int64(ends[row + 1])
        value = _SEED ^ np.uint32(end - at)
        while end - at >= 4:
            k = (
                np.uint32(data[at])
                | np.uint32(data[at + 1]) << np.uint32(8)
                | np.uint32(data[at + 2]) << np.uint32(16)
                | np.uint32(data[at + 3]) << np.uint32(24)
            )
            k = np.uint32(k * _M)
            k ^= k >> _R
            k = np.uint32(k * _M)
            value = np.uint32(value * _M) ^ k
            at += 4
        if at < end:
            for number in range(end - at):
                value ^= np.uint32(data[at + number]) << np.uint32(8 * number)
            value = np.uint32(value * _M)
        value ^= value >> np.uint32(13)
        value = np.uint32(value * _M)
        value ^= value >> np.uint32(15)
        out[row] = np.int64(value & np.uint32(0x7FFFFFFF)) % partitions
