"""Answers out of a stream of bytes, received into directly.

Small answers come many at once, and are copied out of one chunk; what a large one lacks is received straight
into its place. Unlike the frames of a broker's ReceiveBuffer, an answer is memory of its own: whoever waited
for it keeps it.
"""

from __future__ import annotations

from struct import Struct

from odradek.protocol.errors import InvalidFrame

MAX_RESPONSE_BYTES = 256 << 20
"""A response larger than this is taken for garbage."""
RECEIVE_BYTES = 64 << 10

_SIZE = Struct(">i")


class IncomingResponses:
    """What has come so far. Nothing of it is lost by a receiver that is cancelled, and goes on later."""

    def __init__(self) -> None:
        self._chunk = memoryview(bytearray(RECEIVE_BYTES))
        self._start = self._end = 0
        self._body: memoryview | None = None
        """Of an answer that is not all there yet: the chunk is used up."""
        self._have = 0

    def room(self) -> memoryview:
        """Where to receive next; never empty. Call it when `next_response` has nothing more to give."""
        if self._body is not None:
            return self._body[self._have :]
        left = bytes(self._chunk[self._start : self._end])
        self._start, self._end = 0, len(left)
        self._chunk[: self._end] = left
        return self._chunk[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes were put into the last `room()`."""
        if self._body is None:
            self._end += count
        else:
            self._have += count

    def next_response(self) -> memoryview | None:
        """The next whole answer without its size prefix, or None until more has been received.

        Raises InvalidFrame for a size that no answer has.
        """
        if self._body is None:
            start = self._start + _SIZE.size
            if start > self._end:
                return None
            (size,) = _SIZE.unpack_from(self._chunk, self._start)
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                raise InvalidFrame(f"an answer of {size} bytes (is this a Kafka listener?)")
            self._body = memoryview(bytearray(size))
            self._have = min(size, self._end - start)
            self._start = start + self._have
            self._body[: self._have] = self._chunk[start : self._start]
        if self._have < len(self._body):
            return None
        body, self._body = self._body, None
        return body
