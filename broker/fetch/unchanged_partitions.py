"""Unchanged partitions of a follower's fetch session, which are not read for every fetch.

A follower that has caught up in a thousand partitions fetches after every append to one of them.
Reading the other 999 each time would take most of the time. So a partition that was read without
news is skipped until an append, an advance of its high watermark, a change of its role, or a
different fetch offset. All partitions are read periodically, so that the leader records that the
follower is still caught up (`replica.lag.time.max.ms`), and the follower receives the current log
start offsets.

A partition is unchanged only while the follower is in the ISR and has caught up, and the leader has
no pending ISR proposal.
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
"""Longest time without a read of an unchanged partition."""
LAG_PARTS = 4
"""Minimum number of reads of all partitions within replica.lag.time.max.ms."""


class UnchangedPartitions:
    """Unchanged partitions of one session.

    It watches their appends; `_HighWatermarkWatcher` watches their high watermarks.
    """

    def __init__(self, *, lag_max_ms: int) -> None:
        self._all_seconds = min(ALL_SECONDS_MAX, lag_max_ms / 1000 / LAG_PARTS)
        self._unchanged: dict[PartitionKey, LogReadResult] = {}
        self._changed: dict[PartitionKey, LogReadResult] = {}
        self._keys: dict[Partition, PartitionKey] = {}
        """Keys of the unchanged partitions."""
        self._high_watermark_moved: dict[PartitionKey, None] = {}
        """Unchanged partitions whose new high watermark goes into the next response."""
        self._high_watermark_watcher = _HighWatermarkWatcher(self)
        self._is_closed = False
        self._all_at = -inf
        self._broker_epoch = -1
        self.waiting: DelayedFetch | None = None
        """The last waiting fetch of this session; it may have its response already."""

    def __len__(self) -> int:
        return len(self._unchanged)

    def take(
        self,
        partitions: Mapping[PartitionKey, CachedPartition],
        changed: Iterable[PartitionKey],
        *,
        broker_epoch: int,
        now: float,
    ) -> list[CachedPartition]:
        """Return the partitions that a request has to read.

        `changed` are the partitions that the request adds, updates or forgets. `now` is in
        monotonic seconds.
        """
        if now >= self._all_at or broker_epoch != self._broker_epoch:
            self.clear()
            self._all_at, self._broker_epoch = now + self._all_seconds, broker_epoch
            return list(partitions.values())
        self._changed.clear()
        for key in (*self._high_watermark_moved, *changed):
            self._wake(key)
        return [each for key, each in partitions.items() if key not in self._unchanged]

    def settle(self, found: Iterable[LogReadResult]) -> None:
        """Treat the partitions without news in these results as unchanged from now on."""
        if self._is_closed:
            return
        for read in found:
            partition = read.partition
            if (
                partition is not None
                and partition not in self._keys
                and _is_unchanged(read, partition)
            ):
                self._unchanged[read.wanted.key] = read
                self._keys[partition] = read.wanted.key
                partition.watch(self, end=True)
                partition.watch(self._high_watermark_watcher)

    def is_unchanged(self, read: LogReadResult) -> bool:
        return read.partition in self._keys

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def take_changed(self) -> list[LogReadResult]:
        """Return the earlier results of partitions with an append or a new role since; they are no
        longer unchanged."""
        reads = list(self._changed.values())
        self._changed.clear()
        return reads

    def clear(self) -> None:
        """Treat no partition as unchanged."""
        for partition in self._keys:
            partition.unwatch(self)
            partition.unwatch(self._high_watermark_watcher)
        self._keys.clear()
        self._unchanged.clear()
        self._changed.clear()
        self._high_watermark_moved.clear()

    def close(self) -> None:
        """Handle the end of the session; one of its fetches may still be running."""
        self._is_closed = True
        self.clear()

    def _wake(self, key: PartitionKey) -> LogReadResult | None:
        self._high_watermark_moved.pop(key, None)
        read = self._unchanged.pop(key, None)
        if read is not None:
            assert read.partition is not None
            del self._keys[read.partition]
            read.partition.unwatch(self)
            read.partition.unwatch(self._high_watermark_watcher)
        return read

    # Watcher

    def visible(self, partition: Partition, size_bytes: int) -> None:
        """Handle an append to an unchanged partition."""
        self._mark_changed(partition)
        if self.waiting is not None:
            self.waiting.visible(partition, size_bytes)

    def interrupted(self, partition: Partition) -> None:
        self._mark_changed(partition)
        if self.waiting is not None:
            self.waiting.interrupted(partition)

    def moved(self, partition: Partition) -> None:
        """Handle an advance of the high watermark: it goes into the next response, without
        completing a wait."""
        key = self._keys.get(partition)
        if key is not None:
            self._high_watermark_moved[key] = None

    def _mark_changed(self, partition: Partition) -> None:
        key = self._keys.get(partition)
        read = None if key is None else self._wake(key)
        if key is not None and read is not None:
            self._changed[key] = read


class _HighWatermarkWatcher:
    """Watcher of the high watermarks of unchanged partitions."""

    def __init__(self, unchanged: UnchangedPartitions) -> None:
        self._unchanged = unchanged

    def visible(self, partition: Partition, size_bytes: int) -> None:
        self._unchanged.moved(partition)

    def interrupted(self, partition: Partition) -> None:
        self._unchanged.interrupted(partition)


def _is_unchanged(read: LogReadResult, partition: Partition) -> bool:
    response, leader_role = read.response, partition.leader_role
    return (
        response.error_code == ErrorCode.none
        and response.diverging_epoch is None
        and read.end_offset == read.wanted.offset
        and read.is_current()
        and leader_role is not None
        and read.params.replica_id in leader_role.state.isr.committed
        and leader_role.state.isr.proposal is None
    )
