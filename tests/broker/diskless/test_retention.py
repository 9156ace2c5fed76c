"""Retention of diskless topics by time and size (KIP-1164, D-25)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.broker.diskless.retention import Retention
from odradek.protocol.errors import KafkaError
from odradek.protocol.schemas.diskless_records import DisklessRecordsDeletedRecord
from odradek.replication.controller.image import TOPIC
from odradek.storage.log.config import LogConfig
from odradek.testing.virtual_clock import VirtualClock
from tests.support.diskless_coordinators import (
    TOPIC_ID,
    MemoryReplicaLog,
    Replica,
    commit_batch,
    commit_request,
    image_of,
    new_replica,
    settle,
)

OTHER_ID = UUID(int=2)
MINUTE_MS = 60_000


class RetentionWorld:
    """One coordinator with the topics `t` and `u`, whose batches have 100 bytes."""

    def __init__(self, clock: VirtualClock) -> None:
        log = MemoryReplicaLog()
        log.commits_at_once = True
        image = image_of({TOPIC_ID: ("t", [0, 0]), OTHER_ID: ("u", [0])})
        self.replica: Replica = new_replica(log, image=image, clock=clock)
        self.clock = clock
        self.retention = Retention(
            led=lambda: [self.replica.coordinator],
            image=lambda: self.replica.image,
            log_config=LogConfig.from_topic_configs,
            clock=clock,
            interval_ms=lambda: 5 * MINUTE_MS,
        )
        self.commits = 0

    def configure(self, topic: str, **configs: Any) -> None:
        named = {name.replace("_", "."): str(value) for name, value in configs.items()}
        image = self.replica.image
        self.replica.image = replace(image, configs={**image.configs, (TOPIC, topic): named})

    async def commit(self, *ages_ms: int, topic_id: UUID = TOPIC_ID, index: int = 0) -> None:
        """Commit batches of two records with these ages."""
        for age_ms in ages_ms:
            batch = replace(
                commit_batch(2, topic_id=topic_id, index=index),
                batch_max_timestamp=self.clock.wall_ms() - age_ms,
            )
            self.commits += 1
            request = commit_request(self.clock.wall_ms(), batch, number=self.commits)
            response = await self.replica.coordinator.commit_file(request)
            assert not response.batches[0].error_code

    async def check(self) -> int:
        return await self.retention.check(self.replica.coordinator)

    def start(self, topic_id: UUID = TOPIC_ID, index: int = 0) -> int:
        partition = self.replica.state.partition(topic_id, index)
        assert partition is not None
        return partition.log_start_offset


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def world(clock: VirtualClock) -> AsyncIterator[RetentionWorld]:
    made = RetentionWorld(clock)
    async with trio.open_nursery() as nursery:
        made.replica.coordinator.lead_since(0)
        nursery.start_soon(made.replica.coordinator.run)
        await settle()
        yield made
        nursery.cancel_scope.cancel()


TIMES = [
    # ages of the batches in minutes, retention in minutes, log start offset
    ([90, 70, 50], 60, 4),
    ([90, 70, 50], 100, 0),
    ([90, 70, 50], 10, 6),
    ([90, 50, 70], 60, 2),
    ([60, 50], 60, 0),
    ([60 + 1 / MINUTE_MS, 50], 60, 2),
    ([90, 70, 50], -1, 0),
    ([90], 0, 2),
]


@pytest.mark.parametrize(("ages", "retention", "start"), TIMES)
async def test_retention_by_time(
    world: RetentionWorld, ages: list[float], retention: int, start: int
) -> None:
    """D-25: from the oldest batch on, those whose largest timestamp is older than retention.ms."""
    world.configure("t", retention_ms=retention * MINUTE_MS if retention >= 0 else -1)
    await world.commit(*(round(each * MINUTE_MS) for each in ages))
    assert await world.check() == (start > 0)
    assert world.start() == start
    assert await world.check() == 0


SIZES = [(3, 300, 0), (3, 250, 0), (3, 200, 2), (3, 100, 4), (3, 0, 6), (3, -1, 0), (0, 0, 0)]


@pytest.mark.parametrize(("batches", "retention", "start"), SIZES)
async def test_retention_by_size(
    world: RetentionWorld, batches: int, retention: int, start: int
) -> None:
    """D-25: the oldest batches, as long as the others have retention.bytes."""
    world.configure("t", retention_ms=-1, retention_bytes=retention)
    await world.commit(*[0] * batches)
    await world.check()
    assert world.start() == start


async def test_the_stricter_limit_decides(world: RetentionWorld) -> None:
    world.configure("t", retention_ms=60 * MINUTE_MS, retention_bytes=100)
    await world.commit(90 * MINUTE_MS, 0, 0)
    await world.check()
    assert world.start() == 4
    await world.commit(90 * MINUTE_MS, 90 * MINUTE_MS, 0)
    world.configure("t", retention_ms=60 * MINUTE_MS, retention_bytes=300)
    await world.check()
    assert world.start() == 6
    await world.commit(0, 0, 0)
    world.configure("t", retention_ms=60 * MINUTE_MS, retention_bytes=500)
    await world.check()
    assert world.start() == 10


async def test_each_topic_has_its_own_limits(world: RetentionWorld) -> None:
    """One operation deletes in all partitions."""
    world.configure("t", retention_ms=60 * MINUTE_MS)
    world.configure("u", retention_ms=10 * MINUTE_MS)
    for topic_id, index in ((TOPIC_ID, 0), (TOPIC_ID, 1), (OTHER_ID, 0)):
        await world.commit(90 * MINUTE_MS, 20 * MINUTE_MS, topic_id=topic_id, index=index)
    appends = len(world.replica.log.appended)
    assert await world.check() == 3
    assert len(world.replica.log.appended) == appends + 1
    assert [world.start(TOPIC_ID, 0), world.start(TOPIC_ID, 1), world.start(OTHER_ID)] == [2, 2, 4]


async def test_many_partitions_are_checked_in_parts(
    world: RetentionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.broker.diskless.retention.CHECKED_PARTITIONS", 2)
    for topic_id, index in ((TOPIC_ID, 0), (TOPIC_ID, 1), (OTHER_ID, 0)):
        await world.commit(8 * 24 * 60 * MINUTE_MS, topic_id=topic_id, index=index)
    appends = len(world.replica.log.appended)
    assert await world.check() == 3
    assert len(world.replica.log.appended) == appends + 2


async def test_topic_that_the_image_lacks_is_skipped(world: RetentionWorld) -> None:
    await world.commit(8 * 24 * 60 * MINUTE_MS)
    world.replica.image = image_of({})
    assert await world.check() == 0


async def test_retention_is_checked_periodically_by_the_leader(
    world: RetentionWorld, clock: VirtualClock
) -> None:
    """D-25: log.retention.check.interval.ms"""
    world.configure("t", retention_ms=60 * MINUTE_MS)
    await world.commit(58 * MINUTE_MS, 40 * MINUTE_MS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.retention.run)
        await clock.run_for(31)
        assert world.start() == 0
        await clock.run_for(300)
        assert world.start() == 2
        world.replica.coordinator.lead_since(-1)
        await clock.run_for(3600)
        assert world.start() == 2
        with pytest.raises(KafkaError):
            await world.check()
        nursery.cancel_scope.cancel()


async def test_deletion_that_is_not_committed_does_not_delay_other_coordinators(
    world: RetentionWorld, clock: VirtualClock
) -> None:
    world.configure("t", retention_ms=60 * MINUTE_MS)
    await world.commit(90 * MINUTE_MS)
    world.replica.log.commits_at_once = False
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.check)
            await clock.run_for(61)
            assert not nursery.child_tasks
        assert world.start() == 0
    appended = world.replica.log.end_offset
    world.replica.commit_through(appended - 1)
    await settle()
    assert world.start() == 2
    assert await world.check() == 0
    assert world.replica.log.end_offset == appended


async def test_files_become_unused_with_the_record_of_the_deletion(
    world: RetentionWorld, clock: VirtualClock
) -> None:
    """D-25: expired batches free their files; every replica gets that from the record."""
    await world.commit(8 * 24 * 60 * MINUTE_MS)
    await clock.run_for(10)
    await world.check()
    (file,) = world.replica.state.unused_files()
    assert file.unused_since_ms == clock.wall_ms()
    record = world.replica.state.transactions[-1]
    assert record == (1, world.replica.log.end_offset - 1)
    assert DisklessRecordsDeletedRecord.__api_key__ == 103
