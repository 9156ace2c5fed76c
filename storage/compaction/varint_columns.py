"""Zigzag varints of many records at once: positions in, values and following positions out.

Each step decodes one byte of every unfinished varint, so there are as many steps as the longest varint
has bytes: usually two. The data must extend ten bytes past the last position (`record_columns.PAD`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from odradek.protocol.errors import CorruptBatch

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

_VARLONG_BYTES = 10


def raw_varints(data: Bytes, at: Ints) -> tuple[Bits, Ints]:
    """The varints at `at` before zigzag decoding, and the position after each. Raises CorruptBatch."""
    raw = data[at].astype(np.uint64)
    after = at + 1
    rows = np.flatnonzero(raw > 0x7F)
    raw[rows] &= np.uint64(0x7F)
    shift = 7
    while rows.size:
        if shift >= 7 * _VARLONG_BYTES:
            raise CorruptBatch("a varlong has more than 64 bits")
        byte = data[after[rows]].astype(np.uint64)
        after[rows] += 1
        raw[rows] |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        rows = rows[byte > 0x7F]
        shift += 7
    return raw, after


def varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The signed values of the varints at `at`, and the position after each."""
    raw, after = raw_varints(data, at)
    return (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64), after


def encode(value: int) -> bytes:
    """One signed value as a varint."""
    raw = ((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
