"""Scan for orphans: WAL objects that no coordinator knows, because their commits failed (KIP-1164, D-23).

The leader of coordinator 0 scans at every multiple of `diskless.coordinator.orphan.scan.interval.ms` since 1970, so that
restarts do not delay a scan. A new leader may repeat it. A scan

1. asks every coordinator for the upload time of its oldest file,
2. lists the objects that are older than the oldest of these times by the grace period,
3. asks every coordinator which of them it knows,
4. deletes those that none knows.

If a coordinator does not respond, nothing is deleted, and the scan is repeated. KIP-1164 adds the grace period to the time;
here it is subtracted, because adding would delete objects whose commit is still under way. It is at least twice the
commit window, after which no commit of a file is accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.diskless_apis import (
    DisklessDescribedCoordinator,
    DisklessDescribeFileResult,
)
from odradek.replication.diskless.coordinator_state_machine import COMMIT_WINDOW_MS
from odradek.seams.objects import ObjectInfo, ObjectsUnavailable
from odradek.seams.offload import OBJECTS_LANE
from odradek.seams.values import state_class, value_class
from odradek.storage.diskless.object_key import PREFIX, parse_object_key

if TYPE_CHECKING:
    from odradek.seams.clock import Clock
    from odradek.seams.objects import Objects
    from odradek.seams.offload import Offload

log = logging.getLogger("odradek.diskless")

GRACE_MS_MIN: Final = 2 * COMMIT_WINDOW_MS
SCANNING_COORDINATOR: Final = 0
DESCRIBED_FILES: Final = 1000
"""Files of one request to a coordinator."""
RETRY_SECONDS: Final = 60.0
RETRY_SECONDS_MAX: Final = 3600.0
"""Pause before a scan that failed is repeated; it doubles up to the maximum."""
CHECK_SECONDS_MAX: Final = 60.0
"""Longest time until the current interval is read again."""


class CoordinatorsOfCluster(Protocol):
    """Requests to the coordinators of the cluster (`CoordinatorRequests`)."""

    def coordinator_ids(self) -> Sequence[int]: ...

    async def describe_coordinator(self, coordinator_id: int) -> DisklessDescribedCoordinator: ...

    async def describe_files(
        self, coordinator_id: int, keys: Sequence[str]
    ) -> Sequence[DisklessDescribeFileResult]:
        """Raises KafkaError."""
        ...


@value_class
class ScanResult:
    """Objects that were deleted, and the number of objects below the threshold that have a coordinator."""

    deleted: int
    deleted_bytes: int
    known: int


@state_class
class OrphanScan:
    """Scans periodically while this broker leads coordinator 0."""

    leads: Callable[[int], bool]
    """Whether this broker leads a coordinator, which serves."""
    requests: CoordinatorsOfCluster
    objects: Objects
    clock: Clock
    offload: Offload
    interval_ms: Callable[[], int]
    """Current `diskless.coordinator.orphan.scan.interval.ms`."""
    grace_ms: Callable[[], int]
    """Current `diskless.coordinator.orphan.scan.grace.period.ms`."""
    deleted: int = 0
    """Orphans deleted since the start of the broker."""

    async def run(self) -> None:
        """Scan at the beginning of each interval until cancelled."""
        scanned = self._interval_number()
        pause, retry_at = RETRY_SECONDS, 0.0
        while True:
            left_ms = self.interval_ms() - self.clock.wall_ms() % self.interval_ms()
            await self.clock.sleep(min(left_ms / 1000, CHECK_SECONDS_MAX))
            number = self._interval_number()
            if (
                number > scanned
                and self.clock.monotonic() >= retry_at
                and self.leads(SCANNING_COORDINATOR)
            ):
                try:
                    await self._scan_and_log()
                except (KafkaError, ObjectsUnavailable) as error:
                    log.warning(
                        "The scan for orphans of diskless topics is repeated in %d s: %s",
                        pause,
                        error,
                    )
                    retry_at = self.clock.monotonic() + pause
                    pause = min(2 * pause, RETRY_SECONDS_MAX)
                else:
                    scanned, pause, retry_at = number, RETRY_SECONDS, 0.0

    def _interval_number(self) -> int:
        return self.clock.wall_ms() // self.interval_ms()

    async def _scan_and_log(self) -> None:
        result = await self.scan()
        if result.deleted:
            log.info(
                "Deleted %d orphans of diskless topics with %d bytes; %d old objects are in use",
                result.deleted,
                result.deleted_bytes,
                result.known,
            )

    async def scan(self) -> ScanResult:
        """Delete the orphans that are old enough. Raises KafkaError or ObjectsUnavailable; the objects that were deleted
        before are orphans all the same."""
        threshold_ms = await self._threshold_ms()
        pages = self.objects.pages(PREFIX)
        deleted = deleted_bytes = known = 0
        is_last = False
        while not is_last:
            page = await self.offload.run(_next_page, pages, lane=OBJECTS_LANE)
            if page is None:
                break
            old, is_last = _older(page, threshold_ms)
            for start in range(0, len(old), DESCRIBED_FILES):
                part = old[start : start + DESCRIBED_FILES]
                orphans = await self._unknown(part)
                known += len(part) - len(orphans)
                if not self.leads(SCANNING_COORDINATOR):
                    return ScanResult(deleted, deleted_bytes, known)
                if orphans:
                    keys = [each.key for each in orphans]
                    await self.offload.run(self.objects.delete_all, keys, lane=OBJECTS_LANE)
                    deleted += len(keys)
                    self.deleted += len(keys)
                    deleted_bytes += sum(each.size for each in orphans)
        return ScanResult(deleted, deleted_bytes, known)

    async def _threshold_ms(self) -> int:
        """Objects that were uploaded before this time are examined. Raises KafkaError."""
        oldest_ms = self.clock.wall_ms()
        for coordinator_id in self.requests.coordinator_ids():
            described = await self.requests.describe_coordinator(coordinator_id)
            if described.error_code is not ErrorCode.none:
                raise KafkaError(described.error_code, described.error_message or "")
            if not described.is_leader or described.oldest_file_ms < 0:
                raise KafkaError(
                    ErrorCode.not_coordinator,
                    f"the leader of coordinator {coordinator_id} did not respond",
                )
            oldest_ms = min(oldest_ms, described.oldest_file_ms)
        return oldest_ms - max(self.grace_ms(), GRACE_MS_MIN)

    async def _unknown(self, objects: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
        """Those objects that no coordinator knows. Raises KafkaError if a coordinator does not respond."""
        unknown = {each.key: each for each in objects}
        coordinator_ids = self.requests.coordinator_ids()
        if not coordinator_ids:
            raise KafkaError(ErrorCode.coordinator_not_available, "there is no coordinator")
        for coordinator_id in coordinator_ids:
            if not unknown:
                break
            keys = list(unknown)
            for result in await self.requests.describe_files(coordinator_id, keys):
                if result.error_code is ErrorCode.none:
                    unknown.pop(result.object_key, None)
                elif result.error_code is not ErrorCode.resource_not_found:
                    raise KafkaError(result.error_code, result.error_message or "")
        return list(unknown.values())


def _next_page(pages: Iterator[Sequence[ObjectInfo]]) -> Sequence[ObjectInfo] | None:
    return next(pages, None)


def _older(page: Sequence[ObjectInfo], threshold_ms: int) -> tuple[list[ObjectInfo], bool]:
    """Objects of a page that were uploaded before the threshold, and whether later pages have none. Objects with other keys
    are not those of diskless topics."""
    old: list[ObjectInfo] = []
    for each in page:
        try:
            uploaded_ms, _ = parse_object_key(each.key)
        except ValueError:
            continue
        if uploaded_ms >= threshold_ms:
            return old, True  # keys are sorted by time
        old.append(each)
    return old, False
