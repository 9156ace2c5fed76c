"""One call for all who want the same thing at once, which goes on when they have left.

A reader whose time is up must not take with it what others wait for, nor throw away what it has paid
for; and a call in a thread can't be given up anyway. So calls run in a nursery of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

K = TypeVar("K")
T = TypeVar("T")


class _Call(Generic[T]):
    def __init__(self) -> None:
        self.done = trio.Event()
        self.returned: list[T] = []
        self.raised: Exception | None = trio.ClosedResourceError("the call was given up")

    def outcome(self) -> T:
        if self.raised is not None:
            raise self.raised
        return self.returned[0]


class SharedCalls(Generic[K, T]):
    """Calls under way, by what they are for. Nothing is kept of one that is over."""

    def __init__(self, nursery: Callable[[], trio.Nursery]) -> None:
        """`nursery` is asked for when a call begins."""
        self._nursery = nursery
        self._under_way: dict[K, _Call[T]] = {}

    async def result(self, key: K, make: Callable[[], Awaitable[T]]) -> T:
        """What `make` returns or raises, or the call for `key` that is under way. Each of several
        gets the same exception."""
        call = self._under_way.get(key)
        if call is None:
            call = self._under_way[key] = _Call()
            self._nursery().start_soon(self._run, key, call, make)
        await call.done.wait()
        return call.outcome()

    async def _run(self, key: K, call: _Call[T], make: Callable[[], Awaitable[T]]) -> None:
        try:
            call.returned.append(await make())
            call.raised = None
        except Exception as error:  # raised where it is awaited
            call.raised = error
        finally:
            del self._under_way[key]
            call.done.set()
