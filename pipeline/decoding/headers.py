"""The headers of record batches, found in the bytes of a log: as arrays, for as many as there are.

Without a compiler: who asks for headers alone would wait longer for that than for the headers. A header is what
its bytes say; whether these are right, the batch's CRC says, which is over all but where the batch lies: its first
offset and its length, which its neighbours tell.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from odradek.protocol.records.batch import HEADER_SIZE, LOG_OVERHEAD

MAGIC = 2
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
        ("count", ">i4"),
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
"""What is kept of a batch's header."""
_AS_THEY_ARE = BATCH.names[BATCH.names.index("base_timestamp") :] if BATCH.names else ()


def find_batches(view: memoryview, start: int, at_most: int) -> tuple[Any, int, str | None]:
    """The headers of the whole batches from `start` on, an array of BATCH; where the first byte is that belongs
    to none of them; what is wrong there. A batch cut short at the end is no error; nor is it counted."""
    positions: list[int] = []
    position, size, wrong = start, len(view), None
    unpack = _LENGTH_AND_MAGIC.unpack_from
    while len(positions) < at_most and size - position >= HEADER_SIZE:
        length, magic = unpack(view, position + _LENGTH_AT)
        if magic != MAGIC:
            wrong = "no record batch of Kafka 0.11 or later begins there"
            break
        if length < HEADER_SIZE - LOG_OVERHEAD:
            wrong = "the batch's length is none"
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
    anywhere: Any = np.ndarray(len(view) - HEADER_SIZE + 1, _HEADER, view, strides=(1,))
    at = np.array(positions, np.int64)
    headers = anywhere[at]
    found["position"] = at
    found["size"] = headers["length"].astype(np.int64) + LOG_OVERHEAD
    found["base_offset"] = headers["base_offset"]
    found["last_offset"] = found["base_offset"] + headers["last_offset_delta"]
    for name in _AS_THEY_ARE:
        found[name] = headers[name]
    return found
