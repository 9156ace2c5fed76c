"""Loops of handlers over the items of a request, between which the event loop runs other tasks.

A request may have 131,072 items, and a handler needs some microseconds for each. The loops of a handler over them run
in steps: `[respond(each) async for each in in_steps(request.topics, ctx)]`. A request with few items is handled in one
step. State of the broker may change between two steps, so a handler takes what has to be consistent, such as the
metadata image, before its loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from odradek.broker.timers import LARGE_BYTES, RequestSteps

if TYPE_CHECKING:
    from odradek.broker.requests.context import RequestContext
    from odradek.broker.requests.route import Route
    from odradek.seams.files import Buffer, FileSlice

T = TypeVar("T")

ITEMS_PER_STEP = 16
"""Items that are handled between two looks at the clock."""


class in_steps(Generic[T]):  # noqa: N801 - used like a function
    """Asynchronous iterator over `items`: other tasks run when the request has occupied the event loop for 2 ms."""

    __slots__ = ("_ctx", "_items", "_left", "_steps")

    def __init__(self, items: Iterable[T], ctx: RequestContext) -> None:
        self._items: Iterator[T] = iter(items)
        self._ctx = ctx
        self._left = ITEMS_PER_STEP
        self._steps: RequestSteps | None = None

    def __aiter__(self) -> in_steps[T]:
        return self

    async def __anext__(self) -> T:
        self._left -= 1
        if self._left < 0:
            self._left = ITEMS_PER_STEP
            if self._steps is None:
                self._steps = steps_of(self._ctx)
            else:
                await self._steps.yield_if_due()
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None


def steps_of(ctx: RequestContext) -> RequestSteps:
    """Steps of a request, of which the first begins now."""
    services = ctx.services
    return RequestSteps(services.seams.clock, services.busy_connections)


async def read_in_steps(route: Route, frame: memoryview, offset: int, ctx: RequestContext) -> Any:
    """Read a request; a large one is read in steps. Raises InvalidFrame if it is malformed."""
    key, version = ctx.api.key, ctx.api_version
    if route.read_steps is None or len(frame) < LARGE_BYTES:
        return route.read(key, version, frame, offset)
    return await steps_of(ctx).run(route.read_steps(key, version, frame, offset))


async def write_in_steps(
    route: Route, values: Any, ctx: RequestContext
) -> Buffer | Sequence[Buffer | FileSlice]:
    """Body of a response; a long one is written in steps."""
    key, version = ctx.api.key, ctx.api_version
    work = None if route.write_steps is None else route.write_steps(key, version, values)
    if work is None:
        return route.write(key, version, values)
    return await steps_of(ctx).run(work)
