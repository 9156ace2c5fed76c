"""The response to a request, which a coordinator sets once and one task awaits."""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

A = TypeVar("A")


class ResponseFuture(Generic[A]):
    __slots__ = ("_responded", "_response")

    def __init__(self) -> None:
        self._response: A | None = None
        self._responded: trio.Event | None = None

    @property
    def is_responded(self) -> bool:
        return self._response is not None

    def set(self, response: A) -> None:
        self._response = response
        if self._responded is not None:
            self._responded.set()

    async def wait(self) -> A:
        if self._response is None:
            self._responded = trio.Event()
            await self._responded.wait()
            assert self._response is not None
        return self._response
