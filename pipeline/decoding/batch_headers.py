"""Finds record batches in the bytes of a log and returns their headers as arrays.

It uses no compiled code, because queries that need only headers would wait longer for numba's import than for the
headers. Headers are not validated here: the batch's CRC covers everything but the base offset and the length, which
are checked against the adjacent batches.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from odradek.protocol.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC

_LENGTH_AT = 8
_LENGTH_AND_MAGIC = Struct(">i4xb")

_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
assert _HEADER.itemsize == HEADER_SIZE

BATCH = np.dtype(
    [
        ("position", np.int64),
        ("size", np.int64),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("leader_epoch", np.int32),
        ("count", np.int32),
        ("crc", np.uint32),
        ("attributes", np.int16),
    ]
)
"""The header fields that are kept of each batch."""
_AS_THEY_ARE = (
    "base_offset",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "leader_epoch",
    "crc",
    "attributes",
)


def find_batches(view: memoryview, start: int, at_most: int) -> tuple[Any, int, str | None]:
    """Find the complete batches from position `start` on, at most `at_most`.

    Returns their headers, an array of BATCH; the position after the last of them; and what is wrong at that
    position, or None. A batch that is cut short by the end of the bytes is not an error, and is not returned.
    """
    positions: list[int] = []
    position, size, wrong = start, len(view), None
    unpack = _LENGTH_AND_MAGIC.unpack_from
    while len(positions) < at_most and size - position >= HEADER_SIZE:
        length, magic = unpack(view, position + _LENGTH_AT)
        if magic != MAGIC:
            wrong = "no record batch with magic 2 (Kafka 0.11 or later) starts there"
            break
        if length < HEADER_SIZE - LOG_OVERHEAD:
            wrong = "the batch's length is invalid"
            break
        if size - position < length + LOG_OVERHEAD:
            break
        positions.append(position)
        position += length + LOG_OVERHEAD
    return _headers(view, positions), position, wrong


def _headers(view: memoryview, positions: list[int]) -> Any:
    found = np.empty(len(positions), BATCH)
    if not positions:
        return found
    at_every_byte: Any = np.ndarray((len(view) - HEADER_SIZE + 1,), _HEADER, view, strides=(1,))
    headers = at_every_byte[np.array(positions, np.int64)]
    found["position"] = positions
    found["size"] = headers["length"].astype(np.int64) + LOG_OVERHEAD
    found["last_offset"] = headers["base_offset"] + headers["last_offset_delta"]
    found["count"] = headers["record_count"]
    for name in _AS_THEY_ARE:
        found[name] = headers[name]
    return found
