"""The wire format of schema registries: a schema id before the encoded value.

    0 | id, four bytes, big-endian | encoded value

For Protobuf, message indexes follow the id, as zigzag varints: their number, and for each nesting level the index
of the message. A single 0 is short for the first message. Ids are read from whole binary columns, not value by
value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PREFIX_BYTES = 5
FIRST_MESSAGE = (0,)


def schema_ids(values: pa.Array) -> Any:
    """Return the schema id of each value, int64; -1 for values that are too short, null, or begin with another
    byte.
    """
    found = np.full(len(values), -1, np.int64)
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return found
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    size = np.diff(ends)
    has = np.flatnonzero((size >= PREFIX_BYTES) & values.is_valid().to_numpy(zero_copy_only=False))
    bytes_ = np.frombuffer(data, np.uint8)
    starts = ends[:-1][has].astype(np.int64)
    has, starts = has[bytes_[starts] == 0], starts[bytes_[starts] == 0]
    ids = np.zeros(len(has), np.int64)
    for place in range(1, PREFIX_BYTES):
        ids = ids << 8 | bytes_[starts + place]
    found[has] = ids
    return found


def without_first(values: pa.Array, size: int) -> pa.Array:
    """Return the values without their first `size` bytes; none may be null or shorter."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    kept = np.ones(ends[-1] - ends[0], bool)
    for at in range(size):
        kept[ends[:-1] - ends[0] + at] = False
    rest = np.frombuffer(data, np.uint8, len(kept), ends[0])[kept]
    ends = (ends - ends[0] - size * np.arange(len(ends))).astype(np.int32)
    return pa.Array.from_buffers(
        values.type, len(values), [None, pa.py_buffer(ends), pa.py_buffer(rest)]
    )


def by_message(payloads: pa.Array) -> Iterator[tuple[tuple[int, ...] | None, Any, pa.Array]]:
    """Group Protobuf values by message: the message indexes, the positions of the values, and their bytes. None
    stands for invalid message indexes.
    """
    first = pc.starts_with(payloads, b"\0").to_numpy(zero_copy_only=False)
    usual = np.flatnonzero(first)
    if len(usual):
        yield FIRST_MESSAGE, usual, without_first(payloads.take(pa.array(usual)), 1)
    others: dict[tuple[int, ...] | None, list[tuple[int, bytes]]] = {}
    for number in np.flatnonzero(~first).tolist():
        value = payloads[number].as_py()
        path, at = _path(value)
        others.setdefault(path, []).append((number, value[at:]))
    for path, found in others.items():
        numbers, messages = zip(*found, strict=True)
        yield path, np.array(numbers), pa.array(messages, pa.binary())


def _path(message: bytes) -> tuple[tuple[int, ...] | None, int]:
    count, at = _varint(message, 0)
    path = []
    while count > 0 and at > 0:
        number, at = _varint(message, at)
        path.append(number)
        count -= 1
    sound = at > 0 and count == 0 and all(number >= 0 for number in path)
    return (tuple(path), at) if sound else (None, 0)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a zigzag varint; return (value, end). The end is 0 if it is invalid."""
    value = shift = 0
    for position in range(at, min(len(data), at + 5)):
        value |= (data[position] & 127) << shift
        if data[position] < 128:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
    return 0, 0
