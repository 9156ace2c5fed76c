"""The partitions of a follower's session in which nothing happens: they are not read for every fetch.

A follower that has all of a thousand partitions fetches whenever something is appended to one of them.
To read the other 999 each time would take longer than all the rest. So a partition that was read and
had no news is left alone until something is appended to it, its high watermark or its role changes,
or the follower asks for another offset; and all are read once in a while, by which the leader learns
that the follower still is where it was (`replica.lag.time.max.ms`), and the follower where the log starts
by now.

A partition is quiet only while the follower is in sync, has all, and the leader waits for no answer of
the controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from odradek.broker.fetch.log_reading import LogReadResult
from odradek.broker.fetch.purgatory import DelayedFetch
from odradek.broker.fetch.session_cache import CachedPartition, PartitionKey
from odradek.protocol.errors import ErrorCode
from odradek.replication.partition.partition import Partition

ALL_SECONDS_MAX = 3.0
"""How long a quiet partition is not read at most."""
LAG_PARTS = 4
"""So many times, at the least, all are read in replica.lag.time.max.ms."""


class UnchangedPartitions:
    """Of one session. A watcher of what is appended to them; `_Moves` watches what becomes visible."""

    def __init__(self, *, lag_max_ms: int) -> None:
        self._all_seconds = min(ALL_SECONDS_MAX, lag_max_ms / 1000 / LAG_PARTS)
        self._quiet: dict[PartitionKey, LogReadResult] = {}
        self._changed: dict[PartitionKey, LogReadResult] = {}
        self._keys: dict[Partition, PartitionKey] = {}
        """Of those that are quiet."""
        self._high_watermark_moved: dict[PartitionKey, None] = {}
        """Quiet ones whose high watermark has moved: told with the next answer."""
        self._moves = _Moves(self)
        self._is_closed = False
        self._all_at = -inf
        self._broker_epoch = -1
        self.waiting: DelayedFetch | None = None
        """The last fetch of this session that waits, if one does; it may have been answered just now."""

    def __len__(self) -> int:
        return len(self._quiet)

    def take(
        self,
        partitions: Mapping[PartitionKey, CachedPartition],
        changed: Iterable[PartitionKey],
        *,
        broker_epoch: int,
        now: float,
    ) -> list[CachedPartition]:
        """What a request is to read of the session's `partitions`; it names `changed` anew, or not to be
        fetched any more. `now` is monotonic seconds."""
        if now >= self._all_at or broker_epoch != self._broker_epoch:
            self.clear()
            self._all_at, self._broker_epoch = now + self._all_seconds, broker_epoch
            return list(partitions.values())
        self._changed.clear()
        for key in (*self._high_watermark_moved, *changed):
            self._wake(key)
        return [each for key, each in partitions.items() if key not in self._quiet]

    def settle(self, found: Iterable[LogReadResult]) -> None:
        """Leave alone what has no news in it, from here on."""
        if self._is_closed:
            return
        for read in found:
            partition = read.partition
            if (
                partition is not None
                and partition not in self._keys
                and _is_unchanged(read, partition)
            ):
                self._quiet[read.wanted.key] = read
                self._keys[partition] = read.wanted.key
                partition.watch(self, end=True)
                partition.watch(self._moves)

    def is_unchanged(self, read: LogReadResult) -> bool:
        return read.partition in self._keys

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def take_changed(self) -> list[LogReadResult]:
        """What was read before in those to which something was appended since, or that changed hands;
        they are not quiet any more."""
        reads = list(self._changed.values())
        self._changed.clear()
        return reads

    def clear(self) -> None:
        """Nothing is quiet."""
        for partition in self._keys:
            partition.unwatch(self)
            partition.unwatch(self._moves)
        self._keys.clear()
        self._quiet.clear()
        self._changed.clear()
        self._high_watermark_moved.clear()

    def close(self) -> None:
        """The session has ended; a fetch of it may still be under way."""
        self._is_closed = True
        self.clear()

    def _wake(self, key: PartitionKey) -> LogReadResult | None:
        self._high_watermark_moved.pop(key, None)
        read = self._quiet.pop(key, None)
        if read is not None:
            assert read.partition is not None
            del self._keys[read.partition]
            read.partition.unwatch(self)
            read.partition.unwatch(self._moves)
        return read

    # As a watcher

    def visible(self, partition: Partition, size_bytes: int) -> None:
        """Something was appended."""
        self._mark_changed(partition)
        if self.waiting is not None:
            self.waiting.visible(partition, size_bytes)

    def interrupted(self, partition: Partition) -> None:
        self._mark_changed(partition)
        if self.waiting is not None:
            self.waiting.interrupted(partition)

    def moved(self, partition: Partition) -> None:
        """The high watermark: news for the next answer, not worth one of its own."""
        key = self._keys.get(partition)
        if key is not None:
            self._high_watermark_moved[key] = None

    def _mark_changed(self, partition: Partition) -> None:
        key = self._keys.get(partition)
        read = None if key is None else self._wake(key)
        if key is not None and read is not None:
            self._changed[key] = read


class _Moves:
    """Watches what becomes visible in quiet partitions."""

    def __init__(self, quiet: UnchangedPartitions) -> None:
        self._quiet = quiet

    def visible(self, partition: Partition, size_bytes: int) -> None:
        self._quiet.moved(partition)

    def interrupted(self, partition: Partition) -> None:
        self._quiet.interrupted(partition)


def _is_unchanged(read: LogReadResult, partition: Partition) -> bool:
    response, leader_role = read.response, partition.leader_role
    return (
        response.error_code == ErrorCode.none
        and response.diverging_epoch is None
        and read.end_offset == read.wanted.offset
        and read.is_current()
        and leader_role is not None
        and read.limits.replica_id in leader_role.state.isr.committed
        and leader_role.state.isr.proposal is None
    )
