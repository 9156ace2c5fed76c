"""Workers without processes: each step runs in the loop, on the node's own virtual disk."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import trio

from odradek.seams.files import Files
from odradek.seams.workers import WorkerDied
from odradek.testing.power import NodeCrashed, Power

A = TypeVar("A")
T = TypeVar("T")


class VirtualWorkers:
    """A worker pool that runs each step in the loop; the next `deaths` steps fail by a worker's
    end."""

    def __init__(self, files: Files, power: Power | None = None) -> None:
        self._files = files
        self._power = power or Power()
        self.opened = 0
        """The number of workers that were started."""
        self.deaths = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[VirtualWorkers]:
        self._power.check()
        self.opened += 1
        yield self

    async def run(
        self, work: Callable[[Files, A], Iterator[T]], argument: A
    ) -> AsyncGenerator[T, None]:
        steps = work(self._files, argument)
        try:
            while True:
                await trio.lowlevel.checkpoint()
                self._power.check()
                if self.deaths:
                    self.deaths -= 1
                    raise WorkerDied("as the test wished")
                try:
                    step = next(steps)
                except StopIteration:
                    return
                yield step
        finally:
            with suppress(NodeCrashed):  # cleanup after a crash has no effect
                getattr(steps, "close", lambda: None)()
