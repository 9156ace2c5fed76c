"""Retention of diskless topics by time and size: raises log start offsets, as Kafka's log cleanup does (D-25).

The leader of each coordinator reads the limits from the topic's configs (`retention.ms`, `retention.bytes`) every
`log.retention.check.interval.ms`. Expired batches are deleted by the operation that DeleteRecords also uses, so that all
replicas of the coordinator delete the same. A batch takes the place of a segment in Kafka: the oldest batch is deleted if
its largest timestamp is too old, or if the others have enough bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from uuid import UUID

import trio

from odradek.protocol.errors import KafkaError
from odradek.protocol.schemas.diskless_apis import (
    DisklessDeleteRecordsPartition,
    DisklessDeleteRecordsRequest,
    DisklessDeleteRecordsResponse,
    DisklessDeleteRecordsTopic,
)
from odradek.seams.values import state_class, value_class
from odradek.storage.diskless.state import DisklessState

if TYPE_CHECKING:
    from odradek.replication.controller.image import MetadataImage
    from odradek.seams.clock import Clock
    from odradek.storage.log.config import LogConfig

log = logging.getLogger("odradek.diskless")

T = TypeVar("T")
FIRST_CHECK_SECONDS: Final = 30.0
"""Pause after the start, as in Kafka."""
COMMIT_SECONDS_MAX: Final = 60.0
"""Time that one deletion waits for the in-sync replicas, before the next coordinator is checked."""
CHECKED_PARTITIONS: Final = 500
"""Partitions whose batches are examined in one call of the state, and deleted in one operation."""


class RetainingCoordinator(Protocol):
    """A coordinator on this broker. Its methods raise KafkaError if it is not the leader."""

    @property
    def name(self) -> str: ...

    @property
    def serves(self) -> bool: ...

    async def query(self, fn: Callable[[DisklessState], T]) -> T: ...

    async def delete_records(
        self, request: DisklessDeleteRecordsRequest
    ) -> DisklessDeleteRecordsResponse: ...


@value_class
class RetentionLimits:
    """Limits of a topic; -1 is no limit."""

    retention_ms: int
    retention_bytes: int


@state_class
class Retention:
    """Checks the partitions of the coordinators that this broker leads."""

    led: Callable[[], Sequence[RetainingCoordinator]]
    image: Callable[[], MetadataImage]
    log_config: Callable[[Mapping[str, str]], LogConfig]
    """Effective log config of a topic with these configs."""
    clock: Clock
    interval_ms: Callable[[], int]
    """Current `log.retention.check.interval.ms`."""

    async def run(self) -> None:
        """Check periodically until cancelled."""
        await self.clock.sleep(min(FIRST_CHECK_SECONDS, self.interval_ms() / 1000))
        while True:
            for coordinator in self.led():
                if coordinator.serves:
                    try:
                        await self.check(coordinator)
                    except KafkaError as error:
                        log.debug(
                            "The retention of %s is checked later: %s", coordinator.name, error
                        )
            await self.clock.sleep(self.interval_ms() / 1000)

    async def check(self, coordinator: RetainingCoordinator) -> int:
        """Delete the expired batches of a coordinator; returns the number of changed partitions. Ends if a deletion is not
        committed in time. Raises KafkaError if it is not the leader any more."""
        keys = await coordinator.query(_partition_keys)
        limited = [(topic_id, index) for topic_id, index in keys if self._limits(topic_id)]
        changed = 0
        for start in range(0, len(limited), CHECKED_PARTITIONS):
            part = [
                (topic_id, index, limits)
                for topic_id, index in limited[start : start + CHECKED_PARTITIONS]
                if (limits := self._limits(topic_id)) is not None
            ]
            now_ms = self.clock.wall_ms()
            expired = await coordinator.query(partial(_expired, partitions=part, now_ms=now_ms))
            if expired:
                with trio.move_on_after(COMMIT_SECONDS_MAX) as limit:
                    await coordinator.delete_records(_deletion(expired))
                if limit.cancelled_caught:
                    log.debug("The deletion of expired batches of %s is delayed", coordinator.name)
                    return changed
                changed += len(expired)
        return changed

    def _limits(self, topic_id: UUID) -> RetentionLimits | None:
        """Limits of a topic; None if it has none, or does not exist any more."""
        image = self.image()
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            return None
        config = self.log_config(image.topic_configs(topic.name))
        if config.retention_ms < 0 and config.retention_bytes < 0:
            return None
        return RetentionLimits(config.retention_ms, config.retention_bytes)


def _partition_keys(state: DisklessState) -> Sequence[tuple[UUID, int]]:
    return [(each.topic_id, each.index) for each in state.partitions() if each.batches]


def _expired(
    state: DisklessState,
    partitions: Sequence[tuple[UUID, int, RetentionLimits]],
    now_ms: int,
) -> Sequence[tuple[UUID, int, int]]:
    """New log start offsets of the partitions that have expired batches."""
    found = []
    for topic_id, index, limits in partitions:
        partition = state.partition(topic_id, index)
        if partition is None:
            continue
        offset = partition.log_start_offset
        if limits.retention_ms >= 0:
            offset = state.expired_before(topic_id, index, now_ms - limits.retention_ms)
        if 0 <= limits.retention_bytes < partition.size_bytes:
            oversized = state.oversized_before(topic_id, index, limits.retention_bytes)
            offset = max(offset, oversized)
        if offset > partition.log_start_offset:
            found.append((topic_id, index, offset))
    return found


def _deletion(offsets: Sequence[tuple[UUID, int, int]]) -> DisklessDeleteRecordsRequest:
    topics: list[Any] = []
    for topic_id, partitions in groupby(offsets, key=lambda each: each[0]):
        topics.append(
            DisklessDeleteRecordsTopic(
                topic_id=topic_id,
                partitions=tuple(
                    [
                        DisklessDeleteRecordsPartition(partition_index=index, offset=offset)
                        for _, index, offset in partitions
                    ]
                ),
            )
        )
    return DisklessDeleteRecordsRequest(topics=tuple(topics))
