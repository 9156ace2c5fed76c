"""Arrow schemas and builders of a table's columns. The Spark types are in `schema.py`, which does not import Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from odradek.pipeline.decoding.schema import BATCHES, RECORDS

HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
    )
)

GAPS = pa.struct(
    [
        pa.field("lastOffset", pa.int64()),
        pa.field("object", pa.string()),
        pa.field("reason", pa.string()),
    ]
)

TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS,
}
"""Arrow types of record columns by name."""

BATCH_TYPES = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TYPES["timestamp"],
    "timestampType": pa.int32(),
    "baseOffset": pa.int64(),
    "records": pa.int32(),
    "bytes": pa.int64(),
    "uncompressedBytes": pa.int64(),
    "codec": pa.string(),
    "leaderEpoch": pa.int32(),
    "producerId": pa.int64(),
    "isTransactional": pa.bool_(),
    "isControl": pa.bool_(),
}
"""Arrow types of batch columns by name."""


def arrow_schema(columns: Sequence[str], rows: str = RECORDS) -> pa.Schema:
    types = BATCH_TYPES if rows == BATCHES else TYPES
    return pa.schema([pa.field(name, types[name]) for name in columns])


def empty_array(kind: Any, size: int) -> Any:
    """Allocate an uninitialized array in Arrow's memory pool, which reuses freed memory: new pages cost more than
    filling them.
    """
    return np.frombuffer(pa.allocate_buffer(size * np.dtype(kind).itemsize), dtype=kind)


def repeated(text: str, rows: int) -> pa.Array:
    data = text.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(data))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data * rows)]
    return pa.Array.from_buffers(TYPES["topic"], rows, buffers)


def numbers(values: Any, kind: pa.DataType) -> pa.Array:
    """Convert an array whose items are as wide as `kind` to Arrow; booleans are packed into bits."""
    if pa.types.is_boolean(kind):
        packed = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(packed)])
    assert values.itemsize * 8 == kind.bit_width
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [None, buffer])


class BinaryColumn:
    """Builder of a binary column."""

    def __init__(self, rows: int, size: int, wanted: bool) -> None:
        self._offsets = empty_array(np.int32, rows + 1 if wanted else 1)
        self._offsets[0] = 0
        self._nulls = empty_array(np.uint8, rows if wanted else 0)
        self._data = empty_array(np.uint8, size if wanted else 0)
        self.arrays = (self._offsets[1:], self._nulls, self._data)

    def column(self, rows: int, kind: pa.DataType = TYPES["value"]) -> pa.Array:
        data = self._data[: self._offsets[rows]]
        buffers = [_validity(self._nulls[:rows]), self._offsets[: rows + 1], data]
        return pa.Array.from_buffers(kind, rows, [_buffer(each) for each in buffers])


class HeadersColumn:
    """Builder of the headers column: lists of keys and values."""

    def __init__(self, rows: int, size: int, wanted: bool) -> None:
        most = size // 2 if wanted else 0
        self._ends = empty_array(np.int32, rows + 1 if wanted else 1)
        self._ends[0] = 0
        self._keys = BinaryColumn(most, size, wanted)
        self._values = BinaryColumn(most, size, wanted)
        key_ends, _, keys = self._keys.arrays
        self.arrays = (self._ends[1:], key_ends, keys, *self._values.arrays)

    def column(self, rows: int, count: int) -> pa.Array:
        self._keys.arrays[1][:count] = 0
        keys = self._keys.column(count, pa.string())
        try:
            keys.validate(full=True)
        except pa.ArrowInvalid:
            keys = _as_text(self._keys.column(count))
        pairs = pa.StructArray.from_arrays(
            [keys, self._values.column(count)], fields=list(HEADERS.value_type)
        )
        ends = self._ends[: rows + 1]
        none = ends[1:] == ends[:-1]  # null without headers, as in Spark's Kafka source
        buffers = [_buffer(_validity(none)), _buffer(ends)]
        return pa.Array.from_buffers(HEADERS, rows, buffers, children=[pairs])


def _as_text(keys: pa.Array) -> pa.Array:
    """Decode keys, with U+FFFD for invalid UTF-8 as Java clients do; brokers do not validate header keys."""
    return pa.array([each.decode(errors="replace") for each in keys.to_pylist()], pa.string())


def _validity(nulls: Any) -> Any:
    return np.packbits(nulls == 0, bitorder="little") if nulls.any() else None


def _buffer(array: Any) -> pa.Buffer | None:
    return None if array is None else pa.py_buffer(array)
