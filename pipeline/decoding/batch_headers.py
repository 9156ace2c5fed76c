"""The headers of record batches, found in the bytes of a log: as arrays, for as many as there are.

Without a compiler: who asks for headers alone would wait longer for that than for the headers. A header is what
its bytes say; whether these are right, the batch's CRC says, which is over all but where the batch lies: its first
offset and its length, which its neighbours tell.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from odradek.protocol.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC
from odradek.protocol.records.header_columns import header_columns

_LENGTH_AT = 8
_LENGTH_AND_MAGIC = Struct(">i4xb")

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
    headers = header_columns(view, positions)
    found = np.empty(len(positions), BATCH)
    found["position"] = positions
    found["size"] = headers["length"].astype(np.int64) + LOG_OVERHEAD
    found["last_offset"] = headers["base_offset"] + headers["last_offset_delta"]
    found["count"] = headers["record_count"]
    for name in _AS_THEY_ARE:
        found[name] = headers[name]
    return found
