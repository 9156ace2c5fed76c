"""Frames out of a stream of bytes: one buffer a connection, received into directly.

The frames handed out are views into the buffer, valid until the next `room()`. The buffer grows to a
large frame as its bytes come, never on the word of its size alone, and stays grown: the frames after it
are received straight into their place. What a client that is silent does not use, `give_back` returns.
"""

from __future__ import annotations

from struct import Struct

from odradek.protocol.errors import InvalidFrame
from odradek.seams.memory import SpareMemory

SIZE_PREFIX = 4
FIRST_BYTES = 16 * 1024
BUSY_BYTES = 1024 * 1024
"""How far the buffer grows on its own where the peer fills it, without a frame that needs it."""

GROWTH = 4
"""A peer that sent so many bytes of a frame gets room for so many times as many."""

KEPT_BYTES = 8 * 1024 * 1024
"""A buffer that a frame made larger than this is given back after the frame."""

FOREIGN = {b"\x16\x03": "TLS", b"GET ": "HTTP", b"POST": "HTTP", b"HEAD": "HTTP"}
"""What the first bytes of another protocol are, of those that are taken for ours by mistake."""

_SIZE = Struct(">i")


class ReceiveBuffer:
    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
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
        """The next whole frame without its size prefix, or None until more has been received.

        Raises InvalidFrame for a size that is negative or over the limit.
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
                text += f" (the client speaks {name}, and this listener Kafka's protocol)"
        return InvalidFrame(text)

    def room(self) -> memoryview:
        """Where to receive next; never empty. Call it when `next_frame` has nothing more to give."""
        held = self._end - self._start
        filled = self._end == self._size
        if held == 0:
            if self._size > KEPT_BYTES:
                self._allocate(BUSY_BYTES)
            elif filled and self._size < BUSY_BYTES:
                self._allocate(min(2 * self._size, BUSY_BYTES))
            self._start = self._end = 0
            return self._view
        wanted = SIZE_PREFIX + (self._frame_size() if held >= SIZE_PREFIX else 0)
        wanted = min(wanted, max(self._size, GROWTH * held))
        if filled:
            wanted = max(wanted, min(2 * self._size, BUSY_BYTES))
        if wanted > self._size or self._start + wanted > self._size:
            self._move_to_front(held, wanted)
        return self._view[self._end :]

    def _move_to_front(self, held: int, wanted: int) -> None:
        old, first = self._view, self._start
        if wanted > self._size:
            self._allocate(wanted)
        self._view[:held] = old[first : first + held]
        self._start, self._end = 0, held

    @property
    def holds_bytes(self) -> bool:
        """Whether something was received behind the last frame."""
        return self._start < self._end

    def give_back(self) -> None:
        """Let go of the memory that it grew to, unless it holds a part of a frame. The last `room()` stays
        good."""
        if self._grown is not None and not self.holds_bytes:
            self._grown.give_back()

    def received(self, count: int) -> None:
        """`count` bytes were put into the last `room()`."""
        self._end += count
