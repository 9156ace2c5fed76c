"""What the records of compressed batches decompress to, one behind the other in one buffer.

lz4 is most of what is compressed in Kafka, and most of what reading it costs: frames as Kafka's clients write
them are decompressed many at a time (`lz4_frames.py`). Other frames and codecs go the way that everybody's
batches go (`protocol.records.compression`), which also says what is wrong with a frame.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from odradek.pipeline.decoding.lz4_frames import put_frames
from odradek.protocol.records.compression import decompress
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
