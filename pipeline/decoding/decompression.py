"""What the records of compressed batches decompress to, one behind the other in one buffer.

lz4 is most of what is compressed in Kafka, and most of what reading it costs: frames as Kafka's clients write
them are decompressed many at a time (`lz4_frames.py`). Other frames and codecs go the way that everybody's
batches go (`protocol.records.compression`), which also says what is wrong with a frame.
"""

from __future__ import annotations

from typing import Any

# Code for the compiler, which knows no types but by what it is called with.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, misc"
import llvmlite.binding
import lz4.block
import numpy as np
import pyarrow as pa
from numba import njit, types

from odradek.protocol.records.compression import LZ4, decompress
from odradek.protocol.records.records import MAX_DECOMPRESSED_BYTES


class Bodies:
    """The bodies of a few batches; its memory is used again for the next few. `enough_bytes` are what these
    come to at least, unless there are no more."""

    def __init__(self, enough_bytes: int) -> None:
        self._enough_bytes = enough_bytes
        self._memory = _memory(2 * enough_bytes)
        self._ends: list[int] = []

    @property
    def is_full(self) -> bool:
        return self._size >= self._enough_bytes

    @property
    def _size(self) -> int:
        """Bytes of what was added since it was taken."""
        return self._ends[-1] if self._ends else 0

    def add_frames(self, data: Any, codecs: Any, starts: Any, ends: Any) -> int:
        """Decompress those of the bodies, which lie in `data`, that are frames of Kafka's clients, up to the first
        that is not, or is broken; fewer when it is full by then. How many."""
        found = np.empty(len(starts), np.int64)
        count = int(
            put_frames(
                data, codecs, starts, ends, self._memory, self._size, self._enough_bytes, found
            )
        )
        self._ends += found[:count].tolist()
        return count

    def add(self, codec: int, body: memoryview) -> None:
        """Decompress one, whatever it is. Raises CorruptBatch."""
        whole = np.frombuffer(decompress(codec, body, MAX_DECOMPRESSED_BYTES), np.uint8)
        at = self._size
        self._make_room(at + len(whole))
        self._memory[at : at + len(whole)] = whole
        self._ends.append(at + len(whole))

    def take(self) -> tuple[Any, Any]:
        """The bytes of all, valid until the next is added, and where each ends in them."""
        size, ends = self._size, np.array(self._ends, np.int64)
        self._ends = []
        return self._memory[:size], ends

    def _make_room(self, needed: int) -> None:
        if needed > len(self._memory):
            grown = _memory(max(needed, 2 * len(self._memory)))
            grown[: self._size] = self._memory[: self._size]
            self._memory = grown


def _memory(size: int) -> Any:
    """Of Arrow's, which it keeps for the next one."""
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


BLOCK_BYTES = 1 << 16
_HEADER = bytes.fromhex("04224d18604082")
"""Magic, independent blocks and nothing else, 64 KiB, and the checksum of the latter two."""
_SIZE_BYTES = 4
_STORED = 1 << 31
"""Of a block's size: its bytes are as they are."""
_OTHER = -1
"""In place of where a body ends: no such frame, or no room."""

_NAME = "LZ4_decompress_safe"
llvmlite.binding.load_library_permanently(lz4.block._block.__file__)
if llvmlite.binding.address_of_symbol(_NAME) is None:  # the compiler would end the process
    raise ImportError(f"{lz4.block._block.__file__} has no {_NAME}: install lz4 from PyPI")
_decompress_safe = types.ExternalFunction(
    _NAME, types.int32(types.uintp, types.uintp, types.int32, types.int32)
)


@njit(cache=True, nogil=True)
def put_frames(data, codecs, starts, ends, memory, to, enough, body_ends):
    """Decompress the frames that lie in `data` from `starts` to `ends`, one behind the other, to `memory` from `to`
    on, until this has `enough` bytes; `body_ends` are filled with where each ends.

    Stops before the first that is no lz4, another frame, or broken, or has no room in `memory`. How many there were.
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
    """Of one frame; where its body ends, or _OTHER."""
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
