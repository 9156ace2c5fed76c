"""Tests of the check that the remote storage has the copied segments: effects, log messages and recovery."""

from __future__ import annotations

import random
from dataclasses import replace
from uuid import UUID

import pytest
import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.tiered.remote_storage_check import RemoteStorageCheck
from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.seams.entropy import SeededEntropy
from odradek.storage.tiered.errors import RemoteAccessDenied, RemoteStorageUnavailable
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)
from odradek.testing.in_memory_remote_log_metadata import InMemoryRemoteLogMetadataManager
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_world import VirtualWorld
from tests.broker.tiered.tiered_world import (
    DELETED,
    DELETING,
    FINISHED,
    ID,
    ME,
    OTHER,
    STARTED,
    MemoryRemoteStorage,
    TieredWorld,
    tiered_world,
)
from tests.support.finished_segments import segment
from tests.support.log_managers import ONE

LOST, KEPT = (TopicIdPartition(ONE, "orders", number) for number in range(2))
AGAIN = "the object store is available again"


class _UnavailableStore(MemoryRemoteStorage):
    """Remote storage that is unavailable until `failing` is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.failing["look"] = RemoteStorageUnavailable("503")

    def has_any_of(self, partition: TopicIdPartition) -> bool:
        return super().has_any_of(partition) and partition == KEPT


async def lead_with_one_copy(world: TieredWorld) -> None:
    """Lead a partition with three inactive segments, of which the previous leader copied the first."""
    world.follow(1)
    world.fill(3)
    await world.publish_copy(0, 2, broker=OTHER)
    await world.pass_time(0.1)
    world.lead(2)


def logged(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in each for each in caplog.messages)


async def test_storage_without_copied_segments_gets_no_copies(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The storage is not mounted, was emptied, or is another one. It is logged, and nothing is deleted."""
    async with tiered_world(clock) as world:
        world.storage.has_some = False
        await lead_with_one_copy(world)
        await world.pass_time(2)
        assert logged(caplog, "the object store has no object of") == 1
        await world.pass_time(150)
        assert 2 <= logged(caplog, "the object store has no object of") <= 3
        assert await world.gauge("RemoteStoreUnavailable") == 1
        assert world.log.highest_copied_offset == -1  # nothing expires locally
        assert world.storage.calls == []
        assert world.states() == [(0, FINISHED)]
        world.storage.failing["look"] = RemoteStorageUnavailable("503")
        await world.pass_time(60)
        assert world.storage.calls == []
        world.storage.failing.clear()
        world.storage.has_some = True
        await world.pass_time(60)
        assert world.storage.calls == ["copy 3", "copy 6"]
        assert await world.gauge("RemoteStoreUnavailable") == 0
        assert logged(caplog, AGAIN) == 1


async def test_unavailable_storage_does_not_block_copies(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The copied segments are known to exist, so they may expire locally."""
    async with tiered_world(clock) as world:
        world.storage.failing["look"] = RemoteStorageUnavailable("503")
        await lead_with_one_copy(world)
        await world.pass_time(0.1)
        assert logged(caplog, "the object store is unavailable (503)") == 1
        await world.pass_time()
        assert world.storage.calls == ["copy 3", "copy 6"]
        assert await world.gauge("RemoteStoreUnavailable") == 1
        world.storage.failing.clear()
        await world.pass_time(60)
        assert await world.gauge("RemoteStoreUnavailable") == 0
        assert logged(caplog, AGAIN) == 1


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RemoteAccessDenied("403"), "the object store denies access (403): check its credentials"),
        (
            RemoteStorageUnavailable("NoSuchBucket"),
            "the object store is unavailable (NoSuchBucket)",
        ),
    ],
)
async def test_unusable_storage_is_logged_before_first_copy(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture, error: Exception, line: str
) -> None:
    """For example wrong credentials or a wrong bucket. The first copy may be hours later, and the broker
    serves."""
    async with tiered_world(clock) as world:
        world.storage.failing["look"] = error
        await world.pass_time(0.1)
        assert logged(caplog, line) == 1
        assert await world.gauge("RemoteStoreUnavailable") == 1
        await world.pass_time(150)
        assert 2 <= logged(caplog, line) <= 3
        world.fill(2)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "copy 3"]
        world.storage.failing.clear()
        await world.pass_time(60)
        assert logged(caplog, AGAIN) == 1
        assert await world.gauge("RemoteStoreUnavailable") == 0
        before = list(caplog.messages)
        await world.pass_time(300)
        assert caplog.messages == before


async def test_partition_does_not_wait_for_check_of_unavailable_storage(
    clock: VirtualClock,
) -> None:
    """One request to a storage that does not respond takes long enough."""
    async with tiered_world(clock) as world:
        world.storage.failing["look"] = RemoteStorageUnavailable("timed out")
        await world.pass_time(0.1)
        checks = world.storage.looks
        await lead_with_one_copy(world)
        await world.pass_time(0.1)
        assert world.storage.looks == checks
        assert world.storage.calls == ["copy 3", "copy 6"]
        world.storage.failing.clear()
        await world.pass_time(60)
        assert await world.gauge("RemoteStoreUnavailable") == 0


async def test_segments_in_deletion_are_not_missed(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with tiered_world(clock) as world:
        world.storage.has_some = False
        await lead_with_one_copy(world)
        await world.pass_time(0.1)
        (segment,) = world.metadata.segments(ID)
        for state in (DELETING, DELETED):
            await world.metadata.update_segment(
                RemoteLogSegmentMetadataUpdate(segment.id, ME, clock.wall_ms(), state)
            )
        await world.pass_time()
        assert logged(caplog, "the object store") == 0
        assert world.storage.calls == ["copy 0", "copy 3", "copy 6"]


async def test_storage_without_any_copies_is_not_missed(clock: VirtualClock) -> None:
    async with tiered_world(clock) as world:
        world.storage.has_some = False
        world.fill(2)
        await world.pass_time()
        assert world.storage.calls == ["copy 0", "copy 3"]
        assert await world.gauge("RemoteStoreUnavailable") == 0


async def test_tasks_are_held_when_storage_returns_without_segments(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The tasks that ran while it was unavailable stop."""
    async with tiered_world(clock) as world:
        world.storage.failing |= {
            "look": RemoteStorageUnavailable("503"),
            "copy": RemoteStorageUnavailable("503"),
        }
        await lead_with_one_copy(world)
        await world.pass_time(1)
        assert world.log.highest_copied_offset == 2
        world.storage.has_some = False
        del world.storage.failing["look"]
        await world.pass_time(60)
        assert logged(caplog, "the object store has no object of") >= 1
        assert await world.gauge("RemoteStoreUnavailable") == 1
        assert world.log.highest_copied_offset == -1
        del world.storage.failing["copy"]
        tried = len(world.storage.calls)
        await world.pass_time(120)
        assert len(world.storage.calls) == tried
        world.storage.has_some = True
        await world.pass_time(60)
        assert world.storage.calls[tried:] == ["copy 3", "copy 6"]
        assert await world.gauge("RemoteStoreUnavailable") == 0


async def test_partition_without_objects_does_not_hide_others(clock: VirtualClock) -> None:
    """Each partition is checked after the storage is available again."""
    storage, metadata = _UnavailableStore(), InMemoryRemoteLogMetadataManager()
    for id in (LOST, KEPT):
        metadata.partitions_changed([id], [])
        known = replace(segment(0, 2, state=STARTED), id=RemoteLogSegmentId(id, UUID(int=5)))
        await metadata.add_segment(known)
        await metadata.update_segment(RemoteLogSegmentMetadataUpdate(known.id, ME, 1, FINISHED))
    seams = replace(
        VirtualWorld(7).node("one", VirtualDisk(), clock=clock).seams,
        entropy=SeededEntropy(random.Random(5)),
        clock=clock,
    )
    restarted: list[TopicIdPartition] = []
    settings = RemoteLogSettings(ServerConfig.from_properties({}, test_node=True))
    presence = RemoteStorageCheck(
        storage, metadata, seams, settings, restart_partition=restarted.append
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(presence.run)
        for id in (LOST, KEPT):
            nursery.start_soon(presence.check_partition, id)
            await clock.run_for(0.1)
        assert presence.is_missed
        storage.failing.clear()
        await clock.run_for(60)
        assert not presence.is_missed
        assert restarted == [LOST]
        nursery.cancel_scope.cancel()
