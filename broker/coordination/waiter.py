"""A client's request that a coordinator will answer."""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

A = TypeVar("A")


class ClientWaiter(Generic[A]):
    __slots__ = ("_answer", "_answered")

    def __init__(self) -> None:
        self._answer: A | None = None
        self._answered: trio.Event | None = None

    @property
    def is_answered(self) -> bool:
        return self._answer is not None

    def set(self, answer: A) -> None:
        self._answer = answer
        if self._answered is not None:
            self._answered.set()

    async def wait(self) -> A:
        if self._answer is None:
            self._answered = trio.Event()
            await self._answered.wait()
            assert self._answer is not None
        return self._answer
