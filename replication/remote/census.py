"""Which partitions have anything in the remote tier, by one partition of the metadata topic.

Whoever leads the metadata partition reads all of it for that (T-51), and keeps of each partition that
occurs only when it was first heard of, until its deletion is finished. So what was missed is found
whoever missed it: a topic deleted while nobody led, or by a broker that knows no remover, and segments
that were announced after the deletion was over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from odradek.storage.tiered.metadata import (
    PartitionDeleteState,
    RemoteEvent,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)


class Census:
    """See the module. `apply` is told every record of the metadata partition, in order."""

    def __init__(self) -> None:
        self._first_ms: dict[TopicIdPartition, int] = {}
        self._of_topic: dict[UUID, dict[TopicIdPartition, None]] = {}

    def __contains__(self, partition: TopicIdPartition) -> bool:
        return partition in self._first_ms

    def __iter__(self) -> Iterator[tuple[TopicIdPartition, int]]:
        """Each partition, with the time (ms) of the first record about it that was read."""
        return iter(tuple(self._first_ms.items()))

    def __len__(self) -> int:
        return len(self._first_ms)

    def of_topics(self, topic_ids: Mapping[UUID, object]) -> list[TopicIdPartition]:
        """Their partitions that are in here; soon found where there are few of either."""
        known = self._of_topic
        few = known if len(known) < len(topic_ids) else topic_ids
        return [
            partition
            for topic_id in few
            if topic_id in topic_ids
            for partition in known.get(topic_id, ())
        ]

    def apply(self, event: RemoteEvent) -> bool:
        """Whether a partition was heard of for the first time."""
        partition = event.partition
        if isinstance(event, RemotePartitionDeleteMetadata):
            if event.state is PartitionDeleteState.DELETE_PARTITION_FINISHED:
                self._remove(partition)
                return False
        elif event.state is SegmentState.DELETE_SEGMENT_FINISHED:
            return False  # of a partition whose earlier records are cut away: nothing is left of it
        if partition in self._first_ms:
            return False
        self._first_ms[partition] = event.event_timestamp_ms
        self._of_topic.setdefault(partition.topic_id, {})[partition] = None
        return True

    def _remove(self, partition: TopicIdPartition) -> None:
        if self._first_ms.pop(partition, None) is not None:
            of_topic = self._of_topic[partition.topic_id]
            del of_topic[partition]
            if not of_topic:
                del self._of_topic[partition.topic_id]
