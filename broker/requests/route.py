"""Route of an API: the functions that read its requests, handle them and write the responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Final

from odradek.broker.requests.context import RequestContext
from odradek.protocol import messages
from odradek.seams.files import Buffer, FileSlice
from odradek.seams.values import value_class

Handler = Callable[[Any, RequestContext], Awaitable[Any]]
Reader = Callable[[int, int, memoryview, int], Any]
Parts = Sequence[Buffer | FileSlice]
Writer = Callable[[int, int, Any], Buffer | Parts]
StepsReader = Callable[[int, int, memoryview, int], Generator[None, None, Any]]
StepsWriter = Callable[[int, int, Any], Generator[None, None, bytes] | None]

WOULD_BLOCK: Final = object()
"""Returned by a `handler_nowait` that would have to wait."""


@value_class
class Route:
    """How one API is read, handled and written.

    Handlers with `batches_responses` wait for nothing but the disk, or flush before they do: the responses to earlier
    pipelined requests may be held back and sent together.
    """

    handler: Handler
    read: Reader = messages.read_request
    write: Writer = messages.write_response
    batches_responses: bool = False
    handler_nowait: Callable[[Any, RequestContext], Any] | None = None
    """Handles the request if nothing has to be waited for. Returns WOULD_BLOCK otherwise, without any effect, and
    `handler` handles the request."""
    read_steps: StepsReader | None = None
    """Reads a long request in steps, between which other tasks run. None: `read` reads it at once."""
    write_steps: StepsWriter | None = None
    """Writes a long response in steps; returns None if the response is short and `write` writes it."""

    @classmethod
    def of(cls, handler: Handler) -> Route:
        """Route whose requests and responses are kio's messages, of which long ones are read and written in steps."""
        return cls(
            handler,
            read_steps=messages.read_request_in_steps,
            write_steps=messages.write_response_in_steps,
        )
