"""The response to a request, which a coordinator sets once and one task awaits."""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

A = TypeVar("A")


class ResponseFuture(Generic[A]):
    __slots__ = ("_respond", "_responded")

    def __init__(self) -> None:
        self._respond: A | None = None
        self._responded: trio.Event | None = None

    @property
    def is_responded(self) -> bool:
        return self._respond is not None

    def set(self, respond: A) -> None:
        self._respond = respond
        if self._responded is not None:
            self._responded.set()

    async def wait(self) -> A:
        if self._respond is None:
            self._responded = trio.Event()
            await self._responded.wait()
            assert self._respond is not None
        return self._respond
