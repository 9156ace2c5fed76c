"""Reads of a broker from the remote tier: the caches and readers, their configuration, quota and
metrics.

`remote_fetch.py` uses it for Fetch, and `find_timestamp` serves ListOffsets.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from odradek.broker.metrics.recent_statistics import RecentStatistics
from odradek.replication.replication_quota import ReplicationQuota
from odradek.seams.containment import Containment
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.timestamp_lookup import TimestampAndOffset
from odradek.storage.tiered.errors import RemoteNotReady, RemoteStorageError
from odradek.storage.tiered.fetch_response_spill import FetchResponseSpill
from odradek.storage.tiered.remote_aborted_transactions import RemoteAbortedTransactions
from odradek.storage.tiered.remote_index_cache import RemoteIndexCache
from odradek.storage.tiered.remote_log_reader import RemoteLogReader, RemoteRead
from odradek.storage.tiered.remote_timestamp_lookup import RemoteTimestampLookup
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, SegmentState
from odradek.storage.tiered.segment_range_cache import ReaderLimits, SegmentRangeCache

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig
    from odradek.broker.environment import NodeEnvironment
    from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
    from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager

log = logging.getLogger("odradek.tiered")

CACHE_BYTES = "remote.log.index.file.cache.total.size.bytes"
NOT_READY_SECONDS = 0.1
"""Retry interval while the metadata is not read to its end."""


class RemoteReadService:
    """Owns the index cache, the range cache and the readers. Call `run` first. Runs on the event
    loop."""

    def __init__(
        self,
        environment: NodeEnvironment,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
    ) -> None:
        seams, config = environment.seams, environment.config
        self._config = config
        self._clock = seams.clock
        self._caches: Containment[str] = Containment(
            "removing cached indexes", consequence="they stay in the cache"
        )
        self._nursery: trio.Nursery | None = None
        self._quota = ReplicationQuota(
            lambda: config.get_int("remote.log.manager.fetch.max.bytes.per.second"),
            samples=config.get_int("remote.log.manager.fetch.quota.window.num"),
            sample_seconds=config.get_int("remote.log.manager.fetch.quota.window.size.seconds"),
        )
        self._throttled_ms = RecentStatistics(seams.clock.monotonic)
        self._fetch_timer = environment.metrics.timer("RemoteLogReaderFetchRateAndTimeMs")
        self.indexes = RemoteIndexCache(
            seams.files,
            environment.directories.all[0].path,
            seams.offload,
            storage,
            self._running,
            seams.clock.monotonic,
            limit_bytes=lambda: _cache_bytes(config),
            ttl_ms=config.get_int("remote.log.index.file.cache.ttl.ms"),
        )
        self.ranges = SegmentRangeCache(
            seams.offload,
            storage,
            self._running,
            lambda: _reader_limits(config),
            is_over_quota=self.is_over_quota,
            fetched=self._fetched,
            monotonic=seams.clock.monotonic,
        )
        aborted = RemoteAbortedTransactions(metadata, self.indexes, storage, seams.offload)
        spill = FetchResponseSpill(
            seams.files, environment.directories.all[0].path, seams.offload, self.ranges
        )
        self.reads = RemoteLogReader(metadata, self.indexes, self.ranges, aborted, spill)
        self._timestamps = RemoteTimestampLookup(metadata, self.indexes, self.ranges, seams.offload)
        self._failing: dict[tuple[str, int], dict[UUID | None, int]] = {}
        """Per partition, the segments that could not be read, with the offset; None if no segment
        caused the error."""
        self.waiting = 0
        """Fetches that wait for the remote tier."""
        metadata.on_segment(self._segment_changed)
        self._show(environment)

    def _show(self, environment: NodeEnvironment) -> None:
        gauge = environment.metrics.gauge
        gauge("RemoteLogReaderTaskQueueSize", lambda: self.ranges.pending)
        gauge("RemoteLogReaderAvgIdlePercent", lambda: self.ranges.idle_share)
        gauge("NumDelayedOperations", lambda: self.waiting)
        gauge("remote-fetch-throttle-time-avg", lambda: self._throttled_ms.average)
        gauge("remote-fetch-throttle-time-max", lambda: self._throttled_ms.maximum)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the cached indexes of an earlier run, and serve reads until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self.indexes.open()
            task_status.started()
            await trio.sleep_forever()

    def _running(self) -> trio.Nursery:
        assert self._nursery is not None, "the service is not running"
        return self._nursery

    @property
    def wait_seconds(self) -> float:
        """Maximum duration of a remote read in a fetch (remote.fetch.max.wait.ms)."""
        return self._config.get_int("remote.fetch.max.wait.ms") / 1000

    def is_over_quota(self) -> bool:
        """Whether remote.log.manager.fetch.max.bytes.per.second is exceeded."""
        return self._quota.is_exceeded(self._clock.monotonic())

    def is_left_out(self) -> bool:
        """Like `is_over_quota`, and record the throttle time of the read."""
        seconds = self._quota.seconds_left(self._clock.monotonic())
        if seconds <= 0:
            return False
        self._throttled_ms.record(seconds * 1000)
        return True

    def failed(self, topic: str, index: int, offset: int, error: RemoteStorageError) -> None:
        """Log the failure of a read once per segment, until a read of it succeeds."""
        failing = self._failing.setdefault((topic, index), {})
        if error.segment_id not in failing:
            failing[error.segment_id] = offset
            text = "TIERED_STORAGE_NOT_AVAILABLE: %s-%d at offset %d: %s"
            log.warning(text, topic, index, offset, error.message)

    def succeeded(self, topic: str, index: int, found: RemoteRead) -> None:
        failing = self._failing.get((topic, index), {})
        for segment_id, offset in list(failing.items()):
            is_there = found.records and found.base_offset <= offset < found.next_offset
            if segment_id is None or is_there:
                del failing[segment_id]
                text = "%s-%d: reads from the remote tier succeed again at offset %d"
                log.warning(text, topic, index, offset)

    def _fetched(self, size_bytes: int, seconds: float) -> None:
        self._quota.record(size_bytes, self._clock.monotonic())
        self._fetch_timer.update(seconds * 1000)

    def _segment_changed(self, segment: RemoteLogSegmentMetadata) -> None:
        """Remove a deleted segment from the caches."""
        if segment.state >= SegmentState.DELETE_SEGMENT_STARTED and self._nursery is not None:
            where = segment.partition.topic, segment.partition.partition
            self._failing.get(where, {}).pop(segment.id.id, None)
            self.ranges.forget([segment.id.id])
            if self.indexes.has(segment.id.id):
                self._nursery.start_soon(
                    self._caches.run, str(segment.id), self.indexes.forget, [segment.id.id]
                )

    def gone(self, topic: str, index: int) -> None:
        """The replica was removed: remove its segments from the caches."""
        self._failing.pop((topic, index), None)
        self.ranges.forget(self.ranges.segments_of(topic, index))
        indexed = self.indexes.segments_of(topic, index)
        if indexed and self._nursery is not None:
            self._nursery.start_soon(
                self._caches.run, f"{topic}-{index}", self.indexes.forget, indexed
            )

    async def find_timestamp(
        self, partition_log: PartitionLog, timestamp: int | None
    ) -> TimestampAndOffset | None:
        """First record at or after `timestamp`, or with the largest timestamp (None), in both tiers
        (T-39). Waits until the metadata is read to its end. Raises RemoteStorageError and the
        errors of the log."""
        while True:
            try:
                if timestamp is None:
                    return await self._timestamps.find_max(partition_log)
                return await self._timestamps.find(partition_log, timestamp)
            except RemoteNotReady:
                await self._clock.sleep(NOT_READY_SECONDS)


def _cache_bytes(config: ServerConfig) -> int:
    """Limit of the index cache. KIP-405's name in MiB (T-10) is used if the other one is not set."""
    mebibytes = config.optional_int("remote.log.index.file.cache.total.size.mb")
    if mebibytes is None or config.is_set(CACHE_BYTES):
        return config.get_int(CACHE_BYTES)
    return mebibytes << 20


def _reader_limits(config: ServerConfig) -> ReaderLimits:
    return ReaderLimits(
        config.get_int("remote.log.reader.threads"),
        config.get_int("remote.log.reader.max.pending.tasks"),
    )
