"""A RemoteLogMetadataManager that keeps everything in memory, for tests.

Several nodes of a test may share one `InMemoryMetadataTopic`: each receives every event that one of
them publishes. It passes the same contract suite as the manager that uses `__remote_log_metadata`.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio.lowlevel

from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.remote_partition_metadata_store import RemotePartitionMetadataStore
from odradek.storage.tiered.segment_metadata import (
    RemoteEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)


class InMemoryMetadataTopic:
    """All published events, in order, and the managers that receive new ones."""

    def __init__(self) -> None:
        self.events: list[RemoteEvent] = []
        self.readers: list[InMemoryRemoteLogMetadataManager] = []

    def publish(self, event: RemoteEvent) -> None:
        self.events.append(event)
        for reader in self.readers:
            reader.take(event)


class InMemoryRemoteLogMetadataManager(RemotePartitionMetadataStore):
    """A metadata manager over a `InMemoryMetadataTopic`.

    After `hold`, announced partitions become ready only with `release`. If `failing` is set,
    publishing raises it.
    """

    def __init__(self, topic: InMemoryMetadataTopic | None = None) -> None:
        super().__init__()
        self.topic = InMemoryMetadataTopic() if topic is None else topic
        self.topic.readers.append(self)
        self.failing: RemoteStorageError | None = None
        self._held = False

    async def add_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        await self._publish(metadata)

    async def update_segment(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        await self._publish(update)

    async def put_partition_delete(self, metadata: RemotePartitionDeleteMetadata) -> None:
        await self._publish(metadata)

    def partitions_changed(
        self, leads: Iterable[TopicIdPartition], follows: Iterable[TopicIdPartition]
    ) -> None:
        for partition in (*leads, *follows):
            if self.metadata_of(partition) is None:
                self.announce(partition)
                for event in self.topic.events:
                    if event.partition == partition:
                        self.take(event)
            if not self._held:
                self.ready(partition)

    def stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        for partition in partitions:
            self.forget(partition)

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
        for partition in self.partitions():
            self.ready(partition)

    def take(self, event: RemoteEvent) -> None:
        """Apply a published event of a known partition; ignore it if its state transition is
        invalid."""
        if self.metadata_of(event.partition) is not None:
            try:
                self.apply(event)
            except RemoteStorageError:
                return

    async def _publish(self, event: RemoteEvent) -> None:
        await trio.lowlevel.checkpoint()
        if self.failing is not None:
            raise self.failing
        self.check(event)
        self.topic.publish(event)
