"""From a frame to its handler and back: one row an API.

Each module of `broker/apis` ends in its `HANDLERS`. A row is a handler, `async (request, ctx) ->
values`, or a `Route` where the API reads or writes its messages by other means than kio's schemas
(Produce and Fetch, whose records must not be copied). ApiVersions shows the rows there are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from odradek.broker.context import RequestContext
from odradek.protocol import messages
from odradek.protocol.apis import Api
from odradek.seams.files import Buffer, FileSlice

Handler = Callable[[Any, RequestContext], Awaitable[Any]]
Reader = Callable[[int, int, memoryview, int], Any]
Writer = Callable[[int, int, Any], "Buffer | Sequence[Buffer | FileSlice]"]


@dataclass(frozen=True, slots=True)
class Route:
    """How one API is read, handled and written.

    `prompt` handlers wait for nothing but the disk, or flush before they do: the answers to
    pipelined requests before them may be held back and sent together.
    """

    handler: Handler
    read: Reader = messages.read_request
    write: Writer = messages.write_response
    prompt: bool = False


MODULES = (
    "api_versions",
    "cluster",
    "configs",
    "fetch",
    "find_coordinator",
    "group_offsets",
    "groups",
    "log_dirs",
    "metadata",
    "offsets",
    "produce",
    "producer_ids",
    "topics",
)


@cache
def routes() -> Mapping[int, Route]:
    """API key to route, of every API that this broker serves."""
    found: dict[int, Route] = {}
    for name in MODULES:
        handlers: Mapping[Api, Handler | Route] = import_module(
            f"odradek.broker.apis.{name}"
        ).HANDLERS
        for api, row in handlers.items():
            assert api.key not in found, f"two handlers for {api.name}"
            found[api.key] = row if isinstance(row, Route) else Route(row)
    return found
