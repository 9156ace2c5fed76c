"""Decompresses the records of several batches into one buffer.

lz4 is the most common codec in Kafka, and most of the cost of reading it. lz4 frames in the form that Kafka clients
write are decompressed by compiled code, many at a time. Other frames and codecs are decompressed by
`protocol.records.compression`, which also reports what is wrong with a frame.
"""

from __future__ import annotations

from typing import Any

# Compiled by numba, which infers the types from the arguments.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, misc"
import llvmlite.binding
import lz4.block
import numpy as np
import pyarrow as pa
from numba import njit, types

from odradek.protocol.records.compression import LZ4, decompress
from odradek.protocol.records.records import MAX_DECOMPRESSED_BYTES


class DecompressionBuffer:
    """Buffer of decompressed batch bodies, whose memory is reused. It is full at `enough_bytes`."""

    def __init__(self, enough_bytes: int) -> None:
        self._enough_bytes = enough_bytes
        self._memory = _memory(2 * enough_bytes)
        self._ends: list[int] = []

    @property
    def is_full(self) -> bool:
        return self._size >= self._enough_bytes

    @property
    def _size(self) -> int:
        """Size in bytes of the bodies added since `take`."""
        return self._ends[-1] if self._ends else 0

    def add_frames(self, data: Any, codecs: Any, starts: Any, ends: Any) -> int:
        """Decompress bodies in `data` that are lz4 frames of Kafka clients, until one is not, is corrupt, or the
        buffer is full; return how many.
        """
        found = np.empty(len(starts), np.int64)
        count = int(
            put_frames(
                data, codecs, starts, ends, self._memory, self._size, self._enough_bytes, found
            )
        )
        self._ends += found[:count].tolist()
        return count

    def add(self, codec: int, body: memoryview) -> None:
        """Decompress one body of any codec. Raises CorruptBatch."""
        whole = np.frombuffer(decompress(codec, body, MAX_DECOMPRESSED_BYTES), np.uint8)
        at = self._size
        self._reserve(at + len(whole))
        self._memory[at : at + len(whole)] = whole
        self._ends.append(at + len(whole))

    def take(self) -> tuple[Any, Any]:
        """Return the bodies' bytes, valid until the next body is added, and the end of each body in them."""
        size, ends = self._size, np.array(self._ends, np.int64)
        self._ends = []
        return self._memory[:size], ends

    def _reserve(self, needed: int) -> None:
        if needed > len(self._memory):
            grown = _memory(max(needed, 2 * len(self._memory)))
            grown[: self._size] = self._memory[: self._size]
            self._memory = grown


def _memory(size: int) -> Any:
    """Allocate memory in Arrow's pool, which reuses freed memory."""
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


BLOCK_BYTES = 1 << 16
_HEADER = bytes.fromhex("04224d18604082")
"""lz4 frame header: magic, flags (independent blocks only), maximum block size 64 KiB, header checksum."""
_SIZE_BYTES = 4
_STORED = 1 << 31
"""Flag in a block's size: the block is not compressed."""
_OTHER = -1
"""Returned in place of an end: another kind of frame, or not enough memory."""

_NAME = "LZ4_decompress_safe"
llvmlite.binding.load_library_permanently(lz4.block._block.__file__)
if llvmlite.binding.address_of_symbol(_NAME) is None:  # numba would abort the process
    raise ImportError(f"{lz4.block._block.__file__} has no {_NAME}: install lz4 from PyPI")
_decompress_safe = types.ExternalFunction(
    _NAME, types.int32(types.uintp, types.uintp, types.int32, types.int32)
)


@njit(cache=True, nogil=True)
def put_frames(data, codecs, starts, ends, memory, to, enough, body_ends):
    """Decompress the frames in `data` from `starts` to `ends`, one after the other, into `memory` from `to` on,
    until it has `enough` bytes; set `body_ends` to the end of each.

    Stops at the first body that is not lz4, is another kind of frame, is corrupt, or does not fit into `memory`.
    Returns the number of decompressed frames.
    """
    for number in range(len(starts)):
        if to >= enough or codecs[number] != LZ4:
            return number
        to = _put(data, starts[number], ends[number], memory, to)
        if to == _OTHER:
            return number
        body_ends[number] = to
    return len(starts)


@njit(cache=True, nogil=True)
def _put(data, start, end, memory, to):
    """Decompress one frame; return the end of its body in `memory`, or _OTHER."""
    at = start + len(_HEADER)
    if at > end:
        return _OTHER
    for number in range(len(_HEADER)):
        if data[start + number] != _HEADER[number]:
            return _OTHER
    while at + _SIZE_BYTES <= end:
        word = np.int64(0)
        for number in range(_SIZE_BYTES):
            word |= np.int64(data[at + number]) << (8 * number)
        at += _SIZE_BYTES
        if word == 0:
            return to if at == end else _OTHER
        size = word & (_STORED - 1)
        if size > min(BLOCK_BYTES, end - at) or len(memory) - to < BLOCK_BYTES:
            return _OTHER
        if word >= _STORED:
            for number in range(size):
                memory[to + number] = data[at + number]
            to += size
        else:
            made = _decompress_safe(
                data.ctypes.data + at, memory.ctypes.data + to, size, BLOCK_BYTES
            )
            if made < 0:
                return _OTHER
            to += made
        at += size
    return _OTHER
