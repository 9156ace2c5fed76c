"""Gauges of diskless topics: the coordinators that this broker leads, and what its writer, its reader and the background
work of its coordinators have done.

The state of a coordinator is on the disk: it is read before each collection, for all coordinators at the same time and
with a time limit. A coordinator that does not respond has no values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from odradek.broker.metrics.registry import Labels, Metrics, Numbers, Value
from odradek.protocol.errors import KafkaError
from odradek.storage.diskless.state import DisklessState, StateCounts

if TYPE_CHECKING:
    from odradek.broker.diskless.coordinator import DisklessCoordinator
    from odradek.broker.diskless.diskless import Diskless

READ_SECONDS_MAX: Final = 5.0
OF_COORDINATORS: Final[Mapping[str, Callable[[StateCounts], int]]] = {
    "DisklessPartitionCount": lambda counts: counts.partitions,
    "DisklessBatchCount": lambda counts: counts.batches,
    "DisklessLiveBytes": lambda counts: counts.live_bytes,
    "DisklessFileCount": lambda counts: counts.files,
    "DisklessFilesToHandOver": lambda counts: counts.files_to_hand_over,
    "DisklessFilesToDelete": lambda counts: counts.files_to_delete,
    "DisklessStateBytes": lambda counts: max(0, counts.state_bytes),
}
OF_BROKER: Final[Mapping[str, Callable[[Diskless], Value | None]]] = {
    "DisklessFilesWrittenPerSec": lambda diskless: diskless.writer.statistics.files,
    "DisklessBytesWrittenPerSec": lambda diskless: diskless.writer.statistics.file_bytes,
    "DisklessBatchesCommittedPerSec": lambda diskless: diskless.writer.statistics.batches,
    "DisklessDuplicateBatchesPerSec": lambda diskless: diskless.writer.statistics.duplicates,
    "DisklessFailedBatchesPerSec": lambda diskless: diskless.writer.statistics.failed_batches,
    "DisklessUploadRetriesPerSec": lambda diskless: diskless.writer.statistics.upload_retries,
    "DisklessFailedUploadsPerSec": lambda diskless: diskless.writer.statistics.failed_uploads,
    "DisklessCommitRetriesPerSec": lambda diskless: diskless.writer.statistics.commit_retries,
    "DisklessFailedCommitsPerSec": lambda diskless: diskless.writer.statistics.failed_commits,
    "DisklessCoordinatorRequestsPerSec": lambda diskless: diskless.requests.sent,
    "DisklessBufferedBytes": lambda diskless: diskless.writer.buffered_bytes,
    "upload-time-avg": lambda diskless: diskless.writer.statistics.upload_ms.average,
    "upload-time-max": lambda diskless: diskless.writer.statistics.upload_ms.maximum,
    "commit-time-avg": lambda diskless: diskless.writer.statistics.commit_ms.average,
    "commit-time-max": lambda diskless: diskless.writer.statistics.commit_ms.maximum,
    "append-time-avg": lambda diskless: diskless.writer.statistics.append_ms.average,
    "append-time-max": lambda diskless: diskless.writer.statistics.append_ms.maximum,
    "DisklessObjectReadsPerSec": lambda diskless: diskless.reader.batches.gets,
    "DisklessObjectReadBytesPerSec": lambda diskless: diskless.reader.batches.get_bytes,
    "DisklessFailedObjectReadsPerSec": lambda diskless: diskless.reader.batches.failed_gets,
    "DisklessCacheHitsPerSec": lambda diskless: diskless.cache.hits,
    "DisklessCacheMissesPerSec": lambda diskless: diskless.cache.misses,
    "DisklessCacheBytes": lambda diskless: diskless.cache.size_bytes,
    "DisklessFilesHandedOverPerSec": lambda diskless: diskless.maintenance.file_workers.counts[
        "handed-over"
    ],
    "DisklessFilesDeletedPerSec": lambda diskless: diskless.maintenance.file_workers.counts[
        "deleted"
    ],
    "DisklessFilesTakenOverPerSec": lambda diskless: diskless.maintenance.file_workers.counts[
        "taken-over"
    ],
    "DisklessOrphansDeletedPerSec": lambda diskless: diskless.maintenance.orphan_scan.deleted,
}
"""Values of the broker. Averages and maxima are None without a value in the last minute."""
OLDEST_FILE: Final = "DisklessOldestFileAgeMs"
UNAPPLIED: Final = "DisklessUnappliedRecords"


FindDiskless = Callable[[], "Diskless | None"]
"""Returns the diskless topics of this broker; None before the broker has started them."""


def register(metrics: Metrics, diskless: FindDiskless) -> None:
    """Register all gauges of diskless topics."""
    _CoordinatorGauges(diskless).register(metrics)
    for name, value in OF_BROKER.items():
        metrics.source(name, partial(_of_broker, diskless, value))


def _of_broker(diskless: FindDiskless, value: Callable[[Diskless], Value | None]) -> Numbers:
    found = diskless()
    number = None if found is None else value(found)
    if number is not None:
        yield (), number


class _CoordinatorGauges:
    """Values of the coordinators that this broker leads, by name and coordinator."""

    def __init__(self, diskless: FindDiskless) -> None:
        self._diskless = diskless
        self._values: dict[str, dict[int, Value]] = {}

    def register(self, metrics: Metrics) -> None:
        metrics.before_collection(self._work_out)
        metrics.gauge("DisklessCoordinatorCount", lambda: len(self._led()))
        for name in (*OF_COORDINATORS, OLDEST_FILE, UNAPPLIED):
            metrics.source(name, partial(self._of, name))

    def _led(self) -> Sequence[DisklessCoordinator]:
        diskless = self._diskless()
        return () if diskless is None else diskless.coordinators.led()

    def _of(self, name: str) -> Numbers:
        for coordinator_id, value in self._values.get(name, {}).items():
            labels: Labels = (("coordinator", str(coordinator_id)),)
            yield labels, value

    async def _work_out(self) -> None:
        values: dict[str, dict[int, Value]] = {}
        with trio.move_on_after(READ_SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                for coordinator in self._led():
                    nursery.start_soon(self._read, coordinator, values)
        self._values = values

    async def _read(
        self, coordinator: DisklessCoordinator, values: dict[str, dict[int, Value]]
    ) -> None:
        try:
            counts, oldest_file_ms = await coordinator.query(_counts_and_oldest_file)
        except KafkaError:
            return  # the state is not open
        coordinator_id = coordinator.coordinator_id
        for name, count in OF_COORDINATORS.items():
            values.setdefault(name, {})[coordinator_id] = count(counts)
        now_ms = coordinator.now_ms()
        age_ms = 0 if oldest_file_ms is None else max(0, now_ms - oldest_file_ms)
        values.setdefault(OLDEST_FILE, {})[coordinator_id] = age_ms
        unapplied = max(0, coordinator.log.end_offset - 1 - coordinator.applied_offset)
        values.setdefault(UNAPPLIED, {})[coordinator_id] = unapplied


def _counts_and_oldest_file(state: DisklessState) -> tuple[StateCounts, int | None]:
    return state.counts(), state.oldest_file_ms()
