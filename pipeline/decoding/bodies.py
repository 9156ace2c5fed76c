"""What the records of compressed batches decompress to, one behind the other in one buffer.

lz4 is most of what is compressed in Kafka, and most of what reading it costs: an lz4 frame as Kafka's clients
write it (independent blocks of at most 64 KiB, no sizes, no checksums) is decompressed block by block to where
its bytes are wanted, without a context, a buffer and a copy for each batch. Other frames and codecs go the way
that everybody's batches go (`protocol.records.compression`), which also says what is wrong with a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.compression import LZ4, decompress
from odradek.protocol.records.records import MAX_DECOMPRESSED_BYTES

BLOCK_BYTES = 1 << 16
_FRAME = bytes.fromhex("04224d18604082")
"""Magic, independent blocks and nothing else, 64 KiB, and the checksum of the latter two."""
_WORD = Struct("<I")
_STORED = 1 << 31

Block = tuple[int, int, bool]
"""Of a body: where it begins, its bytes, whether they are stored as they are."""


class Bodies:
    """The bodies of a few batches; its memory is used again for the next few. `usual_bytes` are what these
    come to."""

    def __init__(self, usual_bytes: int) -> None:
        self._usual_bytes = usual_bytes
        self._memory: Any = np.empty(0, np.uint8)
        self._ends: list[int] = []

    @property
    def size(self) -> int:
        """Bytes of what was added since it was taken."""
        return self._ends[-1] if self._ends else 0

    def add(self, codec: int, body: memoryview) -> None:
        """Decompress one more. Raises CorruptBatch."""
        blocks = lz4_blocks(body) if codec == LZ4 else None
        if blocks is not None and len(blocks) * BLOCK_BYTES <= MAX_DECOMPRESSED_BYTES:
            self._ends.append(self._put_blocks(body, blocks))
            return
        whole = np.frombuffer(decompress(codec, body, MAX_DECOMPRESSED_BYTES), np.uint8)
        at = self.size
        self._make_room(len(whole))
        self._memory[at : at + len(whole)] = whole
        self._ends.append(at + len(whole))

    def take(self) -> tuple[Any, Any]:
        """The bytes of all, valid until the next is added, and where each ends in them."""
        ends, self._ends = self._ends, []
        return self._memory[: ends[-1] if ends else 0], np.array(ends, np.int64)

    def _put_blocks(self, body: memoryview, blocks: Sequence[Block]) -> int:
        """Where they end in the memory."""
        at = self.size
        self._make_room(len(blocks) * BLOCK_BYTES)
        memory = self._memory
        for start, size, is_stored in blocks:
            block = body[start : start + size]
            if is_stored:
                memory[at : at + size] = np.frombuffer(block, np.uint8)
                at += size
                continue
            try:
                at += cramjam.lz4.decompress_block_into(
                    block, memory[at : at + BLOCK_BYTES], output_len=BLOCK_BYTES
                )
            except cramjam.DecompressionError as error:
                raise CorruptBatch(f"lz4: {error}") from None
        return at

    def _make_room(self, size: int) -> None:
        needed = self.size + size
        if needed > len(self._memory):
            most = max(needed, 2 * len(self._memory), self._usual_bytes)
            grown = np.frombuffer(pa.allocate_buffer(most), np.uint8)  # Arrow's memory is kept
            grown[: self.size] = self._memory[: self.size]
            self._memory = grown


def lz4_blocks(body: memoryview) -> list[Block] | None:
    """The blocks of a frame such as Kafka's clients write; None of any other, and of what is no whole
    frame."""
    if body[: len(_FRAME)] != _FRAME:
        return None
    blocks: list[Block] = []
    at, end = len(_FRAME), len(body)
    while at + _WORD.size <= end:
        (word,) = _WORD.unpack_from(body, at)
        at += _WORD.size
        if word == 0:
            return blocks if at == end else None
        size = word & (_STORED - 1)
        if size > min(BLOCK_BYTES, end - at):
            return None
        blocks.append((at, size, word >= _STORED))
        at += size
    return None
