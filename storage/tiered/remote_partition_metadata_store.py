"""One node's view of the remote tier's metadata: what every RemoteLogMetadataManager answers from.

A partition is announced, then read to the end (`ready`), then asked about. Whoever has it read applies
its events; what they refuse is for them to report. All on the loop, without I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import trio

from odradek.storage.tiered.errors import RemoteNotReady, RemoteResourceNotFound
from odradek.storage.tiered.metadata import (
    EpochStart,
    PartitionDeleteState,
    RemoteEvent,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache
from odradek.storage.tiered.remote_log_metadata_manager import OnSegment


class _Known:
    __slots__ = ("changed", "is_ready", "metadata")

    def __init__(self, metadata: RemoteLogMetadataCache) -> None:
        self.metadata = metadata
        self.is_ready = False
        self.changed = trio.Event()


class RemotePartitionMetadataStore:
    """See the module; the questions are RemoteLogMetadataManager's, and so are their errors."""

    def __init__(self) -> None:
        self._known: dict[TopicIdPartition, _Known] = {}
        self._listeners: list[OnSegment] = []

    def on_segment(self, listener: OnSegment) -> None:
        self._listeners.append(listener)

    # For whoever feeds it

    def announce(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Known from now on, if it was not; to be asked once it is ready."""
        if partition not in self._known:
            self._known[partition] = _Known(RemoteLogMetadataCache(partition))
        return self._known[partition].metadata

    def restart(self, metadata: RemoteLogMetadataCache) -> None:
        """Put what was read from a snapshot in the place of what an announced partition has; it is not
        ready until it is said to be."""
        known = self._known[metadata.partition]
        known.metadata, known.is_ready = metadata, False

    def ready(self, partition: TopicIdPartition) -> None:
        """Its metadata is read to the end."""
        known = self._known.get(partition)
        if known is not None and not known.is_ready:
            known.is_ready = True
            known.changed.set()

    def forget(self, partition: TopicIdPartition) -> None:
        known = self._known.pop(partition, None)
        if known is not None:
            known.changed.set()

    def partitions(self) -> list[TopicIdPartition]:
        """Those announced, in the order in which they were."""
        return list(self._known)

    def metadata_of(self, partition: TopicIdPartition) -> RemoteLogMetadataCache | None:
        """Ready or not; None if it is not announced."""
        known = self._known.get(partition)
        return None if known is None else known.metadata

    def check(self, event: RemoteEvent) -> None:
        """Raises what `apply` would, and RemoteNotReady, before anything is published."""
        self._of(event.partition).check(event)

    def apply(self, event: RemoteEvent) -> None:
        """Take in an event of an announced partition, and tell the listeners.

        Raises InvalidRemoteState and RemoteResourceNotFound; nothing has changed then.
        """
        known = self._known.get(event.partition)
        if known is None:
            raise RemoteResourceNotFound(f"{event.partition} is not announced")
        segment = known.metadata.apply(event)
        if segment is not None:
            for listener in self._listeners:
                listener(segment)

    # What is asked

    def is_ready(self, partition: TopicIdPartition) -> bool:
        known = self._known.get(partition)
        return known is not None and known.is_ready

    async def wait_ready(self, partition: TopicIdPartition) -> None:
        while True:
            known = self._known.get(partition)
            if known is None:
                raise RemoteResourceNotFound(f"{partition} is not announced here")
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
            raise RemoteResourceNotFound(f"{partition} is not announced here")
        if not known.is_ready:
            raise RemoteNotReady(f"the remote metadata of {partition} is not read to the end yet")
        return known.metadata
