"""In-memory remote log segment metadata of all partitions of a node (Kafka's
RemotePartitionMetadataStore).

A partition is announced, then its metadata is read to the end (`ready`), then it can be queried.
The reader applies events and reports those that are refused. Everything runs on the event loop,
without I/O. Implementations of RemoteLogMetadataManager inherit the queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import trio

from odradek.storage.tiered.errors import RemoteNotReady, RemoteResourceNotFound
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache
from odradek.storage.tiered.remote_log_metadata_manager import OnSegment
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    PartitionDeleteState,
    RemoteEvent,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)


class _PartitionMetadata:
    __slots__ = ("changed", "is_ready", "metadata")

    def __init__(self, metadata: RemoteLogMetadataCache) -> None:
        self.metadata = metadata
        self.is_ready = False
        self.changed = trio.Event()


class RemotePartitionMetadataStore:
    """Queries of RemoteLogMetadataManager, with the same errors, and the updates that feed them."""

    def __init__(self) -> None:
        self._known: dict[TopicIdPartition, _PartitionMetadata] = {}
        self._listeners: list[OnSegment] = []

    def on_segment(self, listener: OnSegment) -> None:
        self._listeners.append(listener)

    # Updates

    def announce(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Start to track a partition, if it is new. It can be queried after `ready`."""
        if partition not in self._known:
            self._known[partition] = _PartitionMetadata(RemoteLogMetadataCache(partition))
        return self._known[partition].metadata

    def restart(self, metadata: RemoteLogMetadataCache) -> None:
        """Replace the metadata of an announced partition with that of a snapshot; the partition is
        not ready until `ready` is called."""
        known = self._known[metadata.partition]
        metadata.first_tiered_epoch = known.metadata.first_tiered_epoch
        known.metadata, known.is_ready = metadata, False

    def refuse_earlier_copies(self, partition: TopicIdPartition, tiered_epoch: int) -> None:
        """Refuse to finish copies that started before this tiered epoch (KIP-950, X-10)."""
        known = self._known.get(partition)
        if known is not None:
            known.metadata.first_tiered_epoch = tiered_epoch

    def ready(self, partition: TopicIdPartition) -> None:
        """Mark the partition's metadata as read to the end."""
        known = self._known.get(partition)
        if known is not None and not known.is_ready:
            known.is_ready = True
            known.changed.set()

    def forget(self, partition: TopicIdPartition) -> None:
        known = self._known.pop(partition, None)
        if known is not None:
            known.changed.set()

    def partitions(self) -> list[TopicIdPartition]:
        """All announced partitions, in the order of their announcement."""
        return list(self._known)

    def metadata_of(self, partition: TopicIdPartition) -> RemoteLogMetadataCache | None:
        """Metadata of the partition, ready or not; None if it is not announced."""
        known = self._known.get(partition)
        return None if known is None else known.metadata

    def check(self, event: RemoteEvent) -> None:
        """Raise what `apply` would raise, and RemoteNotReady; call it before the event is
        published."""
        self._of(event.partition).check(event)

    def apply(self, event: RemoteEvent) -> None:
        """Apply an event of an announced partition and notify the listeners.

        Raises InvalidRemoteState and RemoteResourceNotFound; the metadata is unchanged then.
        """
        known = self._known.get(event.partition)
        if known is None:
            raise RemoteResourceNotFound(f"no resource found for partition {event.partition}")
        segment = known.metadata.apply(event)
        if segment is not None:
            for listener in self._listeners:
                listener(segment)

    # Queries

    def is_ready(self, partition: TopicIdPartition) -> bool:
        known = self._known.get(partition)
        return known is not None and known.is_ready

    async def wait_ready(self, partition: TopicIdPartition) -> None:
        while True:
            known = self._known.get(partition)
            if known is None:
                raise RemoteResourceNotFound(f"no resource found for partition {partition}")
            if known.is_ready:
                return
            if known.changed.is_set():
                known.changed = trio.Event()
            await known.changed.wait()

    def segment_for(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._of(partition).find(leader_epoch, offset)

    def next_segment_with_transactions(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._of(partition).find_with_transactions(leader_epoch, offset)

    def highest_offset(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        return self._of(partition).highest_offset(leader_epoch)

    def segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return self._of(partition).segments(leader_epoch)

    def segments_reaching(
        self, partition: TopicIdPartition, timestamp: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return self._of(partition).segments_reaching(timestamp)

    def segment(self, id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return self._of(id.partition).segment(id)

    def unfinished(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return self._of(partition).unfinished()

    def epochs(self, partition: TopicIdPartition) -> Sequence[int]:
        return self._of(partition).epochs()

    def segment_count(self, partition: TopicIdPartition) -> int:
        return len(self._of(partition))

    def remote_log_size(self, partition: TopicIdPartition, leader_epoch: int) -> int:
        return self._of(partition).size_bytes(leader_epoch)

    def lineage_size(
        self, partition: TopicIdPartition, epochs: Sequence[EpochStart], log_end_offset: int
    ) -> int:
        return self._of(partition).lineage_bytes(epochs, log_end_offset)

    def partition_delete_state(self, partition: TopicIdPartition) -> PartitionDeleteState | None:
        deletion = self._of(partition).deletion
        return None if deletion is None else deletion.state

    def _of(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        known = self._known.get(partition)
        if known is None:
            raise RemoteResourceNotFound(f"no resource found for partition {partition}")
        if not known.is_ready:
            raise RemoteNotReady(
                f"remote log metadata cache is not initialized for partition {partition}"
            )
        return known.metadata
