"""A fetch that waits: ended by the append that fills it, by a change of role, or by its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import trio

from odradek.replication.partition.partition import Partition


class FetchWait:
    """Wakes once `missing_bytes` more became visible in the partitions watched, or one of them
    changed hands. It counts what is appended, reading nothing."""

    def __init__(self, missing_bytes: int) -> None:
        self._missing_bytes = missing_bytes
        self._enough = trio.Event()

    def visible(self, partition: Partition, size_bytes: int) -> None:
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self._enough.set()

    def interrupted(self, partition: Partition) -> None:
        self._enough.set()

    @contextmanager
    def watching(self, partitions: Iterable[Partition]) -> Iterator[None]:
        """Count what becomes visible from here on."""
        watched = list(partitions)
        for partition in watched:
            partition.watch(self)
        try:
            yield
        finally:
            for partition in watched:
                partition.unwatch(self)

    async def wait(self, seconds: float) -> None:
        """Return when woken, or after `seconds`."""
        with trio.move_on_after(seconds):
            await self._enough.wait()
