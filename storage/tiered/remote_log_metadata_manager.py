"""KIP-405's RemoteLogMetadataManager: the interface to the metadata of remote log segments.

A change is published and complete once this node has read it back. Queries are served from memory,
without I/O. They raise RemoteNotReady until the metadata of the partition is read to its end, and
RemoteResourceNotFound for partitions that are unknown (`partitions_changed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    PartitionDeleteState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

OnSegment = Callable[[RemoteLogSegmentMetadata], None]
"""Listener for changes of a segment, called with its new metadata from COPY_SEGMENT_STARTED to
DELETE_SEGMENT_FINISHED. It runs on the event loop and must be quick and not raise."""


class RemoteLogMetadataManager(Protocol):
    """Publishes and serves remote log segment metadata. All methods run on the event loop."""

    async def add_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Publish the start of a copy (T-23). Raises InvalidRemoteState for any other state, and
        RemoteStorageUnavailable if the event cannot be published or is not read back in time."""
        ...

    async def update_segment(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Publish the next state of a segment (T-24, T-25).

        Raises InvalidRemoteState for COPY_SEGMENT_STARTED and for invalid transitions,
        RemoteResourceNotFound for an unknown segment, RemoteStorageUnavailable as `add_segment`
        does.
        """
        ...

    async def put_partition_delete(self, metadata: RemotePartitionDeleteMetadata) -> None:
        """Publish the next state of a partition's deletion (T-27). Raises like `update_segment`."""
        ...

    def refuse_earlier_copies(self, partition: TopicIdPartition, tiered_epoch: int) -> None:
        """Refuse to finish copies that started before this tiered epoch (KIP-950, X-10)."""
        ...

    def segment_for(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Finished copy that has `offset` of `leader_epoch` (T-26), or None."""
        ...

    def next_segment_with_transactions(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """First finished copy with records of `leader_epoch` that ends at or after `offset` and has
        a transaction index (T-35), or None. It does not search the next epoch."""
        ...

    def highest_offset(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """Highest offset of that epoch that was ever copied (T-26, T-31), or None. It does not
        decrease when segments are deleted."""
        ...

    def segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Segments with records of `leader_epoch`, or all, in every state but
        DELETE_SEGMENT_FINISHED, by start offset (T-26). Concurrent changes do not disturb the
        iteration: it returns the state of each segment at that time."""
        ...

    def segments_reaching(
        self, partition: TopicIdPartition, timestamp: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Like `segments`, but only segments whose largest timestamp (ms) is at least `timestamp`
        (T-39). Skipping 100,000 others takes about 2 ms."""
        ...

    def segment(self, id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """Segment with that id in any state, or None."""
        ...

    def unfinished(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """Segments that are not COPY_SEGMENT_FINISHED, by start offset; the cost depends on their
        number only."""
        ...

    def epochs(self, partition: TopicIdPartition) -> Sequence[int]:
        """Epochs that have segments in any state, ascending."""
        ...

    def segment_count(self, partition: TopicIdPartition) -> int:
        """Number of segments in any state."""
        ...

    def remote_log_size(self, partition: TopicIdPartition, leader_epoch: int) -> int:
        """Bytes of the finished copies with records of `leader_epoch` (S-01). A segment with
        several epochs counts in each of them. A copy contained in another does not count."""
        ...

    def lineage_size(
        self, partition: TopicIdPartition, epochs: Sequence[EpochStart], log_end_offset: int
    ) -> int:
        """Bytes of the segments within this lineage (the log's epoch cache), each counted once
        (S-02); constant time per epoch."""
        ...

    def partition_delete_state(self, partition: TopicIdPartition) -> PartitionDeleteState | None:
        """State of the partition's deletion, or None if it is not marked."""
        ...

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the partition is announced and its metadata is read to the end."""
        ...

    async def wait_ready(self, partition: TopicIdPartition) -> None:
        """Wait until the partition is ready. Raises RemoteResourceNotFound if it is not announced
        or is stopped meanwhile."""
        ...

    def partitions_changed(
        self, leads: Iterable[TopicIdPartition], follows: Iterable[TopicIdPartition]
    ) -> None:
        """This node now leads or follows these partitions (T-26, T-53); others are unchanged."""
        ...

    def stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """This node has no replica of these partitions any more; forget them (T-26, T-53)."""
        ...

    def on_segment(self, listener: OnSegment) -> None: ...
