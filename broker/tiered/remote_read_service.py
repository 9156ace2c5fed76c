"""What a broker reads from the remote tier: the parts, what the configs allow, and what is counted.

`remote_fetch.py` has what Fetch asks for, `find_timestamp` is what ListOffsets does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from odradek.broker.metrics.recent import Recent
from odradek.replication.quota import ReplicationQuota
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.timestamps import TimestampAndOffset
from odradek.storage.tiered.errors import RemoteNotReady, RemoteStorageError
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata, SegmentState
from odradek.storage.tiered.remote_aborted_transactions import RemoteAbortedTransactions
from odradek.storage.tiered.remote_index_cache import RemoteIndexCache
from odradek.storage.tiered.remote_log_reader import RemoteLogReader, RemoteRead
from odradek.storage.tiered.remote_timestamp_lookup import RemoteTimestampLookup
from odradek.storage.tiered.response_spill import ResponseSpill
from odradek.storage.tiered.segment_range_cache import ReaderLimits, SegmentRangeCache

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig
    from odradek.broker.environment import NodeEnvironment
    from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
    from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager

log = logging.getLogger("odradek.remote")

CACHE_BYTES = "remote.log.index.file.cache.total.size.bytes"
NOT_READY_SECONDS = 0.1
"""How soon metadata that was not read to the end is asked again."""


class RemoteReadService:
    """See the module. `run` comes first; all is called on the loop."""

    def __init__(
        self,
        environment: NodeEnvironment,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
    ) -> None:
        seams, config = environment.seams, environment.config
        self._config = config
        self._clock = seams.clock
        self._nursery: trio.Nursery | None = None
        self._quota = ReplicationQuota(
            lambda: config.get_int("remote.log.manager.fetch.max.bytes.per.second"),
            samples=config.get_int("remote.log.manager.fetch.quota.window.num"),
            sample_seconds=config.get_int("remote.log.manager.fetch.quota.window.size.seconds"),
        )
        self._throttled_ms = Recent(seams.clock.monotonic)
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
        self.pieces = SegmentRangeCache(
            seams.offload,
            storage,
            self._running,
            lambda: _reader_limits(config),
            is_over_quota=self.is_over_quota,
            fetched=self._fetched,
            monotonic=seams.clock.monotonic,
        )
        aborted = RemoteAbortedTransactions(metadata, self.indexes, seams.offload)
        aside = ResponseSpill(
            seams.files, environment.directories.all[0].path, seams.offload, self.pieces
        )
        self.reads = RemoteLogReader(metadata, self.indexes, self.pieces, aborted, aside)
        self._timestamps = RemoteTimestampLookup(metadata, self.indexes, self.pieces, seams.offload)
        self._failing: dict[tuple[str, int], dict[UUID | None, int]] = {}
        """Of partitions, the segments that could not be read, and at which offset; None where it was no
        segment's fault."""
        self.waiting = 0
        """Fetches that wait for the remote tier."""
        metadata.on_segment(self._segment_changed)
        self._show(environment)

    def _show(self, environment: NodeEnvironment) -> None:
        gauge = environment.metrics.gauge
        gauge("RemoteLogReaderTaskQueueSize", lambda: self.pieces.pending)
        gauge("RemoteLogReaderAvgIdlePercent", lambda: self.pieces.idle_share)
        gauge("NumDelayedOperations", lambda: self.waiting)
        gauge("remote-fetch-throttle-time-avg", lambda: self._throttled_ms.average)
        gauge("remote-fetch-throttle-time-max", lambda: self._throttled_ms.largest)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take over the indexes that an earlier run left, and read until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self.indexes.open()
            task_status.started()
            await trio.sleep_forever()

    def _running(self) -> trio.Nursery:
        assert self._nursery is not None, "it runs not yet, or not any more"
        return self._nursery

    @property
    def wait_seconds(self) -> float:
        """How long a fetch waits for what is read (remote.fetch.max.wait.ms)."""
        return self._config.get_int("remote.fetch.max.wait.ms") / 1000

    def is_over_quota(self) -> bool:
        """Whether nothing is to be read now (remote.log.manager.fetch.max.bytes.per.second)."""
        return self._quota.is_exceeded(self._clock.monotonic())

    def is_left_out(self) -> bool:
        """As `is_over_quota`, of a read that is wanted now: it counts as throttled."""
        seconds = self._quota.seconds_left(self._clock.monotonic())
        if seconds <= 0:
            return False
        self._throttled_ms.record(seconds * 1000)
        return True

    def failed(self, topic: str, index: int, offset: int, error: RemoteStorageError) -> None:
        """A consumer is told so; the log says it once of each segment, until it goes well there again."""
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
                text = "%s-%d is read from the remote tier again, at offset %d"
                log.warning(text, topic, index, offset)

    def _fetched(self, size_bytes: int, seconds: float) -> None:
        self._quota.record(size_bytes, self._clock.monotonic())
        self._fetch_timer.update(seconds * 1000)

    def _segment_changed(self, segment: RemoteLogSegmentMetadata) -> None:
        """What is kept of one that is deleted goes."""
        if segment.state >= SegmentState.DELETE_SEGMENT_STARTED and self._nursery is not None:
            where = segment.partition.topic, segment.partition.partition
            self._failing.get(where, {}).pop(segment.id.id, None)
            self.pieces.forget([segment.id.id])
            if self.indexes.has(segment.id.id):
                self._nursery.start_soon(self.indexes.forget, [segment.id.id])

    def gone(self, topic: str, index: int) -> None:
        """The replica is not here any more: so is what is kept for its readers."""
        self._failing.pop((topic, index), None)
        self.pieces.forget(self.pieces.segments_of(topic, index))
        indexed = self.indexes.segments_of(topic, index)
        if indexed and self._nursery is not None:
            self._nursery.start_soon(self.indexes.forget, indexed)

    async def find_timestamp(
        self, partition_log: PartitionLog, timestamp: int | None
    ) -> TimestampAndOffset | None:
        """The first record at or after `timestamp`, or with the largest there is (None), in both tiers
        (T-39). It waits where the metadata is not read to the end. Raises RemoteStorageError, and what
        the log's own search does."""
        while True:
            try:
                if timestamp is None:
                    return await self._timestamps.find_max(partition_log)
                return await self._timestamps.find(partition_log, timestamp)
            except RemoteNotReady:
                await self._clock.sleep(NOT_READY_SECONDS)


def _cache_bytes(config: ServerConfig) -> int:
    """By KIP-405's name of it, too (T-10), which gives way."""
    mebibytes = config.optional_int("remote.log.index.file.cache.total.size.mb")
    if mebibytes is None or config.is_set(CACHE_BYTES):
        return config.get_int(CACHE_BYTES)
    return mebibytes << 20


def _reader_limits(config: ServerConfig) -> ReaderLimits:
    return ReaderLimits(
        config.get_int("remote.log.reader.threads"),
        config.get_int("remote.log.reader.max.pending.tasks"),
    )
