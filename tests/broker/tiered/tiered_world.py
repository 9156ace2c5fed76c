"""Remote log manager of one partition, with a log on a virtual disk, a virtual clock, and a remote storage and
metadata that can be made to fail."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.metrics.registry import Metrics
from odradek.broker.tiered.remote_log_manager import RemoteLogManager
from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.replication.controller.image import NEVER_DISABLED, PartitionImage, TopicTiering
from odradek.replication.partition.partition import Partition
from odradek.seams.entropy import SeededEntropy
from odradek.seams.files import Buffer, FileSlice, Path
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.tiered.errors import RemoteMetadataUnavailable, RemoteResourceNotFound
from odradek.storage.tiered.remote_storage_manager import LogSegmentData
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.in_memory_remote_log_metadata import (
    InMemoryMetadataTopic,
    InMemoryRemoteLogMetadataManager,
)
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_world import VirtualWorld
from tests.support.finished_segments import segment
from tests.support.log_managers import ONE, LogManagerWorld, append

TIERED = LogConfig(
    internal_segment_bytes=300,
    file_delete_delay_ms=0,
    remote_storage_enable=True,
    retention_ms=-1,
    retention_bytes=-1,
)
ME, OTHER = 1, 2
ID = TopicIdPartition(ONE, "orders", 0)
STARTED = SegmentState.COPY_SEGMENT_STARTED
FINISHED = SegmentState.COPY_SEGMENT_FINISHED
DELETING = SegmentState.DELETE_SEGMENT_STARTED
DELETED = SegmentState.DELETE_SEGMENT_FINISHED


class MemoryRemoteStorage:
    """RemoteStorageManager in memory, with a list of its calls in order."""

    def __init__(self) -> None:
        self.kept: dict[RemoteLogSegmentId, bytes] = {}
        self.calls: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.custom: bytes | None = None
        self.indexes: dict[object, Buffer] = {}
        """Content of the indexes of all segments, by kind."""
        self.has_some = True
        self.looks = 0
        """Number of availability checks."""
        self.before_copy: Callable[[], None] = lambda: None
        self.summaries: dict[int, bytes] = {}
        """Summaries by leader epoch."""

    def copy_segment(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        self.calls.append(f"copy {metadata.start_offset}")
        self.before_copy()
        assert isinstance(data.log, FileSlice)
        self.kept[metadata.id] = data.log.read()
        self._fail("copy")
        return self.custom

    def fetch_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int | None = None
    ) -> Buffer:
        raise NotImplementedError

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: object) -> Buffer:
        self._fail("index")
        if kind not in self.indexes:
            raise RemoteResourceNotFound(f"{metadata.id} has no {kind}")
        return self.indexes[kind]

    def delete_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.calls.append(f"delete {metadata.start_offset}")
        self._fail("delete")
        self.kept.pop(metadata.id, None)

    def has_any_of(self, partition: TopicIdPartition) -> bool:
        self.looks += 1
        self._fail("look")
        return self.has_some

    def check_access(self) -> None:
        self.looks += 1
        self._fail("look")

    def put_summary(self, partition: TopicIdPartition, leader_epoch: int, data: bytes) -> None:
        self._fail("summary")
        self.summaries = {leader_epoch: data}

    def remove_summaries(self, partition: TopicIdPartition) -> None:
        self.summaries.clear()

    def close(self) -> None:
        self.calls.append("close")

    def _fail(self, call: str) -> None:
        error = self.failing.get(call)
        if error is not None:
            raise error


def image(leader: int = ME, epoch: int = 0) -> PartitionImage:
    return PartitionImage((ME, OTHER), (ONE, ONE), (ME, OTHER), leader, epoch, 1)


def alone(epoch: int = 0) -> PartitionImage:
    return PartitionImage((ME,), (ONE,), (ME,), ME, epoch, 1)


@dataclass
class TieredWorld:
    """`manager`, its partition and log; `pass_time` lets it work."""

    clock: VirtualClock
    log: PartitionLog
    partition: Partition
    manager: RemoteLogManager
    storage: MemoryRemoteStorage
    metadata: InMemoryRemoteLogMetadataManager
    metrics: Metrics
    tiering: TopicTiering = NEVER_DISABLED

    def fill(self, segments: int = 3) -> None:
        """Append inactive segments of three records each, and an active segment."""
        for _ in range(3 * segments + 1):
            append(self.log, "x" * 20, now_ms=self.clock.wall_ms())

    def fail_metadata_after_copy(self, error: str = "no leader") -> None:
        """The next copy succeeds, but no metadata can be published until `metadata.failing` is None."""

        def lose() -> None:
            self.storage.before_copy = lambda: None
            self.metadata.failing = RemoteMetadataUnavailable(error)

        self.storage.before_copy = lose

    async def pass_time(self, seconds: float = 31.0) -> None:
        await self.clock.run_for(seconds)

    def change(self, **config: object) -> None:
        """Change configs of the topic."""
        self.log.update_config(replace(self.log.config, **config))  # type: ignore[arg-type]
        self.manager.role_changed(self.partition)

    def lead(self, epoch: int) -> None:
        self.partition.update(alone(epoch))
        self.manager.role_changed(self.partition)

    def follow(self, epoch: int) -> None:
        self.partition.update(image(OTHER, epoch))
        self.manager.role_changed(self.partition)

    async def publish_copy(
        self,
        start: int,
        end: int,
        *of: tuple[int, int],
        size: int = 100,
        state: SegmentState = FINISHED,
        broker: int = ME,
        tiered_epoch: int = 0,
    ) -> None:
        """Publish the metadata of a segment [start, end] with these epochs (by default 0)."""
        now_ms = self.clock.wall_ms()
        known = segment(start, end, *of, state=STARTED, size=size, newest_ms=now_ms)
        known = replace(
            known,
            id=RemoteLogSegmentId(ID, known.id.id),
            broker_id=broker,
            tiered_epoch=tiered_epoch,
        )
        await self.metadata.add_segment(known)
        if state is not STARTED:
            await self.metadata.update_segment(
                RemoteLogSegmentMetadataUpdate(known.id, broker, now_ms, state)
            )

    async def gauge(self, name: str, *labels: tuple[str, str]) -> Any:
        """Value of a gauge; without labels the total. Raises KeyError without values."""
        await self.metrics.prepare()
        metrics = filter(None, self.metrics.collect())
        values = {metric.name: dict(found) for metric, found in metrics}[name]
        if values and not labels and labels not in values:
            return sum(values.values())
        return values[labels]

    def states(self) -> list[tuple[int, SegmentState]]:
        """(start offset, state) of the segments in the metadata."""
        return [(each.start_offset, each.state) for each in self.metadata.segments(ID)]

    def published(self) -> list[tuple[int, SegmentState]]:
        """(start offset, state) of every published event, in order."""
        starts: dict[RemoteLogSegmentId, int] = {}
        found = []
        for event in self.metadata.topic.events:
            assert not isinstance(event, RemotePartitionDeleteMetadata)
            if isinstance(event, RemoteLogSegmentMetadata):
                starts[event.id] = event.start_offset
            found.append((starts[event.id], event.state))
        return found


@asynccontextmanager
async def tiered_world(
    clock: VirtualClock,
    *,
    config: LogConfig = TIERED,
    topic: InMemoryMetadataTopic | None = None,
    settings: dict[str, str] | None = None,
) -> AsyncIterator[TieredWorld]:
    """Run the remote log manager of a partition that this node leads as the only in-sync replica."""
    world = LogManagerWorld(clock=clock, default=config, paths=(Path("/a"),))
    node = VirtualWorld(7).node("one", world.disk, clock=clock)
    seams = replace(
        node.seams, entropy=SeededEntropy(random.Random(5)), files=world.files, clock=clock
    )
    async with world.running() as logs:
        log = await logs.create("orders", 0, ONE)
        storage, metadata, metrics = (
            MemoryRemoteStorage(),
            InMemoryRemoteLogMetadataManager(topic),
            Metrics(),
        )
        server = ServerConfig.from_properties(settings or {}, test_node=True)
        manager = RemoteLogManager(
            ME,
            storage,
            metadata,
            logs,
            seams,
            metrics,
            RemoteLogSettings(server),
            tiering_of=lambda topic_id: made.tiering,
        )
        partition = Partition(log, topic_id=ONE, node_id=ME, image=alone())
        made = TieredWorld(clock, log, partition, manager, storage, metadata, metrics)
        async with trio.open_nursery() as nursery:
            await nursery.start(manager.run)
            manager.role_changed(partition)
            yield made
            nursery.cancel_scope.cancel()
