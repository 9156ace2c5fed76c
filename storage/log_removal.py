"""Taking logs away: renamed to `-delete` now, removed after `file.delete.delay.ms`; or `-stray`.

A reader that was in the middle of a deleted log has that long to finish; what it has pinned stays
readable even longer. What is left at shutdown, or after a crash in the middle of a removal, keeps
its `-delete` name and is scheduled anew by the next start. Order: the rename is durable before a
file is unlinked, so that no start ever finds a live directory with files missing.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from odradek.seams.clock import Clock
from odradek.seams.files import Files, OutOfDescriptors, Path
from odradek.seams.offload import Offload
from odradek.storage.directories.directory import LogDirectory
from odradek.storage.directories.failure import NO_ROOM
from odradek.storage.directory_logs import DirectoryLogs
from odradek.storage.errors import StorageError
from odradek.storage.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

IDLE_SECONDS = 3600.0
DESCRIPTORS_RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Leaving:
    """A log on its way out, no longer in `DirectoryLogs.logs`, and its directory's new name."""

    log: PartitionLog
    path: Path
    keep: bool
    """Whether it is closed whole (a stray), or only let go of."""


async def rename_away(
    files: Files,
    clock: Clock,
    offload: Offload,
    home: DirectoryLogs,
    leaving: Sequence[Leaving],
) -> None:
    """Rename all, make that durable, and write checkpoints without them, in this order.

    Neither cancelled nor given up half done because the process is out of descriptors. Raises
    OSError.
    """
    with trio.CancelScope(shield=True):
        async with home.maintenance:
            while True:
                try:
                    return await offload.run(
                        _rename_away, files, home, leaving, lane=home.directory.lane
                    )
                except OutOfDescriptors:
                    await clock.sleep(DESCRIPTORS_RETRY_SECONDS)


def _rename_away(files: Files, home: DirectoryLogs, leaving: Sequence[Leaving]) -> None:
    """In a thread; it can be called again."""
    for each in leaving:
        if each.keep:
            _close(each.log, clean=True)
        if files.exists(each.log.directory):
            files.rename(each.log.directory, each.path)
        if not each.keep:
            _close(each.log, clean=False)
    files.sync_directory(home.directory.path)
    try:
        home.write_checkpoints()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        # A full disk, and what is deleted is to make room: without the files more is read at the
        # next start, but none of their entries can meet a new log of an old name.
        home.remove_checkpoints()


def _close(which: PartitionLog, *, clean: bool) -> None:
    try:
        which.close(clean=clean)
    except StorageError as error:
        log.warning("%s could not be closed: %s", which.directory, error)
    except Exception as error:  # of its own making: it goes away like the others
        log.error("%s could not be closed", which.directory, exc_info=error)


class Removals:
    """The queue of directories to remove, and the task that does it."""

    def __init__(self, files: Files, clock: Clock, offload: Offload) -> None:
        self._files = files
        self._clock = clock
        self._offload = offload
        self._queue: list[tuple[float, int, LogDirectory, Path]] = []
        self._serial = itertools.count()
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def schedule(self, directory: LogDirectory, path: Path, delay_ms: int) -> None:
        """Remove `path` and all in it, in `delay_ms`."""
        due = self._clock.monotonic() + delay_ms / 1000
        heapq.heappush(self._queue, (due, next(self._serial), directory, path))
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
        _, _, directory, path = heapq.heappop(self._queue)
        if directory.failed:
            return
        try:
            await self._offload.run(self._files.remove_tree, path, lane=directory.lane)
        except OutOfDescriptors:
            self.schedule(directory, path, int(DESCRIPTORS_RETRY_SECONDS * 1000))
        except OSError as error:
            directory.report(error)
        else:
            log.info("removed %s", path)
