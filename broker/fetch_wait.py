"""A fetch that waits: ended by the append that fills it, by a change of role, or by its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import trio

from odradek.replication.partition.partition import Partition


class _Wait:
    """Wakes once a partition watched changed hands, or by what `visible` of its kinds says."""

    def __init__(self) -> None:
        self._enough = trio.Event()

    def visible(self, partition: Partition, size_bytes: int) -> None:
        raise NotImplementedError

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


class FetchWait(_Wait):
    """Wakes once `missing_bytes` more became visible in the partitions watched. It counts what is
    appended, reading nothing."""

    def __init__(self, missing_bytes: int) -> None:
        super().__init__()
        self._missing_bytes = missing_bytes

    def visible(self, partition: Partition, size_bytes: int) -> None:
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self._enough.set()


class StableWait(_Wait):
    """Wakes once a last stable offset has moved, for readers of what is committed: how many bytes
    that brings is not known without a look."""

    def __init__(self, stable_offsets: Mapping[Partition, int]) -> None:
        super().__init__()
        self._stable_offsets = stable_offsets

    def visible(self, partition: Partition, size_bytes: int) -> None:
        if partition.log.last_stable_offset > self._stable_offsets[partition]:
            self._enough.set()
