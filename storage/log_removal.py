"""Removing what was renamed to `-delete`, after `file.delete.delay.ms`.

A reader that was in the middle of a deleted log has that long to finish; what it has pinned stays
readable even longer. What is left at shutdown, or after a crash in the middle of a removal, keeps
its `-delete` name and is scheduled anew by the next start. Order: the rename is durable before a
file is unlinked, so that no start ever finds a live directory with files missing.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable

import trio

from odradek.seams.clock import Clock
from odradek.seams.files import Path
from odradek.seams.offload import Offload
from odradek.storage.directories.directory import LogDirectory

log = logging.getLogger(__name__)

IDLE_SECONDS = 3600.0


class Removals:
    """The queue of directories to remove, and the task that does it."""

    def __init__(self, clock: Clock, offload: Offload) -> None:
        self._clock = clock
        self._offload = offload
        self._queue: list[tuple[float, int, LogDirectory, Path, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def schedule(
        self, directory: LogDirectory, path: Path, remove: Callable[[], None], delay_ms: int
    ) -> None:
        """Call `remove`, through offload, in `delay_ms`; `path` is what it removes."""
        due = self._clock.monotonic() + delay_ms / 1000
        heapq.heappush(self._queue, (due, next(self._serial), directory, path, remove))
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled; a removal under way is finished first."""
        while True:
            wait = self._queue[0][0] - self._clock.monotonic() if self._queue else IDLE_SECONDS
            if wait <= 0:
                await self._remove_first()
                continue
            self._changed = trio.Event()
            with trio.move_on_after(wait):
                await self._changed.wait()

    async def _remove_first(self) -> None:
        _, _, directory, path, remove = heapq.heappop(self._queue)
        if directory.failed:
            return
        try:
            await self._offload.run(remove, lane=directory.lane)
        except OSError as error:
            directory.report(error)
        else:
            log.info("removed %s", path)
