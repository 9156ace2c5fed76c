"""lz4 frames, many at a time, with no call from Python for each.

A frame as Kafka's clients write it (independent blocks of at most 64 KiB, no sizes, no checksums) is a
header of seven bytes, blocks behind their sizes, and a size of 0. Compiled code goes through it, and has
each block decompressed by lz4's own `LZ4_decompress_safe`, out of the library that the `lz4` package
brings, to where its bytes are wanted: without a context, a buffer and a copy for each batch.
"""

# Code for the compiler, which knows no types but by what it is called with.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, misc"

from __future__ import annotations

import llvmlite.binding
import lz4.block
import numpy as np
from numba import njit, types

from odradek.protocol.records.compression import LZ4

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
