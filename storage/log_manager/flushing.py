"""Making logs durable while the broker runs: where the log asks for it, and by time.

A log asks when it has rolled (the sealed segment is to be durable, and the recovery point to move
on) and when flush.messages are unsynced (a Produce that made it so waits for that itself:
`LogManager.flush`); `flush.ms` is looked after here, as often as
`log.flush.scheduler.interval.ms` says (never, by default: replication is what Kafka relies on).
Each directory has a task and a queue of its own, so that a slow disk holds up no other. A log that
asks again before its turn is synced once.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import trio

from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.directory_logs import DirectoryLogs
from odradek.storage.log_manager.housekeeping import attempt

if TYPE_CHECKING:
    from odradek.storage.log_manager.log_manager import LogManager

RETRY_SECONDS = 1.0
"""After a flush that found no room for the epochs' file, or no descriptor: somebody may wait for it."""


class Flushing:
    """What is to be synced; changed on the loop alone."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._queues = {each.path: _Queue() for each in manager.directories.all}
        self._flushed: dict[PartitionLog, float] = {}

    def due(self, which: PartitionLog, up_to: int) -> None:
        """Sync all below offset `up_to`, soon."""
        queue = self._queues[which.directory.parent]
        queue.due[which] = max(up_to, queue.due.get(which, 0))
        queue.filled.set()

    async def run(self, home: DirectoryLogs) -> None:
        """Sync what is due in one directory, until cancelled or it is offline."""
        directory = home.directory
        queue = self._queues[directory.path]
        failed: dict[PartitionLog, int] = {}
        while not directory.failed:
            with trio.move_on_after(RETRY_SECONDS if failed else inf):
                await queue.filled.wait()
            queue.filled = trio.Event()
            queue.due = {**failed, **queue.due}
            failed.clear()
            while queue.due:
                which = next(iter(queue.due))
                up_to = queue.due.pop(which)
                async with self._manager.registry.maintaining(which) as its_home:
                    if which.failure is None and which.recovery_point < up_to:
                        lane = its_home.directory.lane
                        await self._manager.offload.run(flush, which, up_to, lane=lane)
                        wanted = min(up_to, which.end_offset)
                        if which.failure is None and which.recovery_point < wanted:
                            failed[which] = wanted
                    which.flushed()

    async def round(self) -> None:
        """flush.ms: logs that have held unsynced records for that long are due."""
        now = self._manager.clock.monotonic()
        logs = self._manager.logs()
        self._flushed = {which: self._flushed.get(which, now) for which in logs}
        for which in logs:
            if which.recovery_point >= which.end_offset:
                self._flushed[which] = now
            elif now - self._flushed[which] >= which.config.flush_ms / 1000:
                self._flushed[which] = now
                self.due(which, which.end_offset)


class _Queue:
    def __init__(self) -> None:
        self.due: dict[PartitionLog, int] = {}
        self.filled = trio.Event()


def flush(which: PartitionLog, up_to: int) -> None:
    """In a thread. A sync that fails has taken the directory offline already."""
    attempt(which, lambda each: each.flush(up_to))
