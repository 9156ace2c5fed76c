"""Who knows which segments are in the remote tier: KIP-405's RemoteLogMetadataManager.

What changes it is published, and is done once this node's own view has it. What is asked is answered
from that view, at once, without I/O; of a partition whose metadata is not read to the end yet, with
RemoteNotReady. Only partitions that were announced (`partitions_changed`) are known; all others
raise RemoteResourceNotFound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from odradek.storage.tiered.metadata import (
    EpochStart,
    PartitionDeleteState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

OnSegment = Callable[[RemoteLogSegmentMetadata], None]
"""Told of every change of a segment, with the segment as it then is: COPY_SEGMENT_STARTED to
DELETE_SEGMENT_FINISHED. Called on the loop; it must not raise, nor take long."""


class RemoteLogMetadataManager(Protocol):
    """See the module. Everything is called on the loop."""

    async def add_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Publish that a copy starts (T-23). Raises InvalidRemoteState for any other state, and
        RemoteStorageUnavailable if it cannot be published or is not seen in time."""
        ...

    async def update_segment(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Publish a segment's next state (T-24, T-25).

        Raises InvalidRemoteState for COPY_SEGMENT_STARTED and for what cannot follow,
        RemoteResourceNotFound if no such segment is known, RemoteStorageUnavailable as above.
        """
        ...

    async def put_partition_delete(self, metadata: RemotePartitionDeleteMetadata) -> None:
        """Publish a step in a partition's deletion (T-27). Raises as `update_segment`."""
        ...

    def segment_for(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The finished copy that has `offset` of `leader_epoch` (T-26); None if there is none."""
        ...

    def next_segment_with_transactions(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first finished copy with records of `leader_epoch` that ends at `offset` or behind it and
        has a transaction index (T-35). None if there is none: the next epoch is asked for itself."""
        ...

    def highest_offset(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """The last offset of that epoch that was ever copied (T-26, T-31); it does not go down when
        segments are deleted. None if none was."""
        ...

    def segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Those that have records of `leader_epoch`, or all, in every state but
        DELETE_SEGMENT_FINISHED, by ascending start offset (T-26). Changes meanwhile do not disturb it:
        a segment is shown as it is when its turn comes, or no longer."""
        ...

    def segments_reaching(
        self, partition: TopicIdPartition, timestamp: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """As `segments`, those alone whose largest timestamp (ms) is `timestamp` or later (T-39). The
        others cost next to nothing: 100,000 of them some 2 ms."""
        ...

    def segment(self, id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """The segment with that id, in whichever state; None if it is not known (any more)."""
        ...

    def unfinished(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """Those whose copy or deletion is under way, or was given up, by ascending start offset: all
        that `segments` has but those in COPY_SEGMENT_FINISHED, at the cost of these alone."""
        ...

    def epochs(self, partition: TopicIdPartition) -> Sequence[int]:
        """The epochs of which there are segments, in whichever state; ascending."""
        ...

    def segment_count(self, partition: TopicIdPartition) -> int:
        """How many segments there are, in whichever state."""
        ...

    def remote_log_size(self, partition: TopicIdPartition, leader_epoch: int) -> int:
        """The bytes of the finished copies with records of `leader_epoch` (S-01); 0 if there is none.
        A segment with records of several epochs counts in each. What was copied twice counts once: a
        copy that lies within another is left out."""
        ...

    def lineage_size(
        self, partition: TopicIdPartition, epochs: Sequence[EpochStart], log_end_offset: int
    ) -> int:
        """The bytes of those that are within this lineage (the log's epoch cache), each counted once
        (S-02); in constant time an epoch."""
        ...

    def partition_delete_state(self, partition: TopicIdPartition) -> PartitionDeleteState | None:
        """How far the partition's deletion is; None if it was not marked."""
        ...

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Its metadata is read to the end: all of the above may be asked. False if not announced."""
        ...

    async def wait_ready(self, partition: TopicIdPartition) -> None:
        """Raises RemoteResourceNotFound if the partition is not announced, or stopped meanwhile."""
        ...

    def partitions_changed(
        self, leads: Iterable[TopicIdPartition], follows: Iterable[TopicIdPartition]
    ) -> None:
        """These partitions are led or followed by this node now (T-26, T-53); others stay as they are."""
        ...

    def stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """This node is no replica of these any more: forget them (T-26, T-53)."""
        ...

    def on_segment(self, listener: OnSegment) -> None: ...
