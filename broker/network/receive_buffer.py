"""Receive buffer of a connection: splits the stream of bytes into frames.

Bytes are received directly into the buffer; frames are views into it, valid until the next `free_space()`. It grows
with the bytes that arrive, not by the announced size of a frame, and keeps its size, so later large frames are
not copied. `give_back` releases the memory of an idle connection.
"""

from __future__ import annotations

from struct import Struct

from odradek.protocol.errors import InvalidFrame
from odradek.seams.memory import SpareMemory

SIZE_PREFIX = 4
FIRST_BYTES = 16 * 1024
BUSY_BYTES = 1024 * 1024
"""Size to which the buffer grows if the client fills it with small frames."""

GROWTH = 4
"""Factor by which the space for a large frame may exceed its received bytes."""

KEPT_BYTES = 8 * 1024 * 1024
"""A buffer larger than this is released after the frame."""

FOREIGN = {b"\x16\x03": "TLS", b"GET ": "HTTP", b"POST": "HTTP", b"HEAD": "HTTP"}
"""First bytes of other protocols, for the error message."""

_SIZE = Struct(">i")


class ReceiveBuffer:
    def __init__(self, frame_bytes_max: int, *, is_limited: bool = False) -> None:
        """`is_limited` is whether the memory of all connections is limited. Then the buffer grows for large frames
        only."""
        self._frame_bytes_max = frame_bytes_max
        self._busy_bytes = FIRST_BYTES if is_limited else BUSY_BYTES
        self._allocate(FIRST_BYTES)
        self._start = 0
        self._end = 0

    def _allocate(self, size: int) -> None:
        self._size = size
        if size > FIRST_BYTES:
            self._grown: SpareMemory | None = SpareMemory(size)
            self._view = self._grown.view
        else:
            self._grown = None
            self._view = memoryview(bytearray(size))

    def next_frame(self) -> memoryview | None:
        """Next complete frame without its size prefix; None until more bytes are received.

        Raises InvalidFrame for a negative size or one above the limit.
        """
        first = self._start + SIZE_PREFIX
        if first > self._end:
            return None
        size: int = _SIZE.unpack_from(self._view, self._start)[0]
        if not 0 <= size <= self._frame_bytes_max:
            raise self._out_of_bounds(size)
        after = first + size
        if after > self._end:
            return None
        self._start = after
        return self._view[first:after]

    def _frame_size(self) -> int:
        size: int = _SIZE.unpack_from(self._view, self._start)[0]
        if not 0 <= size <= self._frame_bytes_max:
            raise self._out_of_bounds(size)
        return size

    def _out_of_bounds(self, size: int) -> InvalidFrame:
        text = f"a frame of {size} bytes; the limit is {self._frame_bytes_max}"
        start = bytes(self._view[self._start : self._start + SIZE_PREFIX])
        for begins, name in FOREIGN.items():
            if start.startswith(begins):
                text += f" (the client uses {name}; this listener serves the Kafka protocol)"
        return InvalidFrame(text)

    def free_space(self) -> memoryview:
        """Free space to receive into, never empty. Call it after `next_frame` has returned None."""
        held = self._end - self._start
        if held == 0:
            if self._size > KEPT_BYTES:
                self._allocate(BUSY_BYTES)
            elif self._end == self._size < self._busy_bytes:
                self._allocate(min(2 * self._size, BUSY_BYTES))
            self._start = self._end = 0
            return self._view
        wanted = SIZE_PREFIX + (self._frame_size() if held >= SIZE_PREFIX else 0)
        wanted = min(wanted, max(self._size, GROWTH * held))
        if self._end == self._size:
            wanted = max(wanted, min(2 * self._size, self._busy_bytes))
        if wanted > self._size or self._start + wanted > self._size:
            self._move_to_front(held, wanted)
        return self._view[self._end :]

    @property
    def large_frame_bytes(self) -> int:
        """Size of the incomplete frame with its prefix, if it does not fit in the first buffer; otherwise 0."""
        if self._end - self._start < SIZE_PREFIX:
            return 0
        size = SIZE_PREFIX + self._frame_size()
        return size if size > FIRST_BYTES else 0

    def shrink(self) -> None:
        """Replace the buffer by one of the first size, if it is empty."""
        if self._grown is not None and not self.holds_bytes:
            self._allocate(FIRST_BYTES)
            self._start = self._end = 0

    def _move_to_front(self, held: int, wanted: int) -> None:
        old, first = self._view, self._start
        if wanted > self._size:
            self._allocate(wanted)
        self._view[:held] = old[first : first + held]
        self._start, self._end = 0, held

    @property
    def holds_bytes(self) -> bool:
        """Whether there are bytes after the last frame."""
        return self._start < self._end

    def give_back(self) -> None:
        """Release the memory unless it has a part of a frame. The last `free_space()` stays valid."""
        if self._grown is not None and not self.holds_bytes:
            self._grown.give_back()

    def received(self, count: int) -> None:
        """Add `count` bytes that were received into the last `free_space()`."""
        self._end += count
