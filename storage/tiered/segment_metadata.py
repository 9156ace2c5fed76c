"""Identity, metadata and states of remote log segments (KIP-405).

    (none) → COPY_SEGMENT_STARTED ─→ COPY_SEGMENT_FINISHED
                     └──────────┬────────────┘
                                ↓
                     DELETE_SEGMENT_STARTED → DELETE_SEGMENT_FINISHED

    (none) → DELETE_PARTITION_MARKED → DELETE_PARTITION_STARTED → DELETE_PARTITION_FINISHED

A state may also follow itself, because a broker publishes an event again when the result of the
first attempt is unknown. The numbers are those in `__remote_log_metadata`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from uuid import UUID

from odradek.protocol.uuids import uuid_to_text
from odradek.seams.values import value_class
from odradek.storage.log.leader_epoch_cache import EpochStart

__all__ = [
    "EpochStart",
    "VALID_TRANSITIONS",
    "VALID_DELETE_TRANSITIONS",
    "PartitionDeleteState",
    "RemoteEvent",
    "RemoteLogSegmentId",
    "RemoteLogSegmentMetadata",
    "RemoteLogSegmentMetadataUpdate",
    "RemotePartitionDeleteMetadata",
    "SegmentEvent",
    "SegmentState",
    "TopicIdPartition",
    "is_valid_delete_transition",
    "is_valid_transition",
]


class SegmentState(IntEnum):
    """State of one segment in the remote tier (T-25)."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class PartitionDeleteState(IntEnum):
    """State of a partition's deletion from the remote tier (T-27)."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


_S, _P = SegmentState, PartitionDeleteState

VALID_TRANSITIONS: Mapping[SegmentState | None, frozenset[SegmentState]] = {
    None: frozenset({_S.COPY_SEGMENT_STARTED}),
    _S.COPY_SEGMENT_STARTED: frozenset(
        {_S.COPY_SEGMENT_STARTED, _S.COPY_SEGMENT_FINISHED, _S.DELETE_SEGMENT_STARTED}
    ),
    _S.COPY_SEGMENT_FINISHED: frozenset({_S.COPY_SEGMENT_FINISHED, _S.DELETE_SEGMENT_STARTED}),
    _S.DELETE_SEGMENT_STARTED: frozenset({_S.DELETE_SEGMENT_STARTED, _S.DELETE_SEGMENT_FINISHED}),
    _S.DELETE_SEGMENT_FINISHED: frozenset({_S.DELETE_SEGMENT_FINISHED}),
}
"""Valid next states of a segment; None is the state of a segment that does not exist yet (T-25)."""

VALID_DELETE_TRANSITIONS: Mapping[PartitionDeleteState | None, frozenset[PartitionDeleteState]] = {
    None: frozenset({_P.DELETE_PARTITION_MARKED}),
    _P.DELETE_PARTITION_MARKED: frozenset(
        {_P.DELETE_PARTITION_MARKED, _P.DELETE_PARTITION_STARTED}
    ),
    _P.DELETE_PARTITION_STARTED: frozenset(
        {_P.DELETE_PARTITION_STARTED, _P.DELETE_PARTITION_FINISHED}
    ),
    _P.DELETE_PARTITION_FINISHED: frozenset({_P.DELETE_PARTITION_FINISHED}),
}
"""Valid next states of a partition's deletion; None if the deletion has not started (T-27)."""


def is_valid_transition(before: SegmentState | None, after: SegmentState) -> bool:
    return after in VALID_TRANSITIONS[before]


def is_valid_delete_transition(
    before: PartitionDeleteState | None, after: PartitionDeleteState
) -> bool:
    return after in VALID_DELETE_TRANSITIONS[before]


@value_class
class TopicIdPartition:
    """Partition of the topic with this id; a recreated topic of the same name has another id
    (T-52)."""

    topic_id: UUID
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{uuid_to_text(self.topic_id)}:{self.topic}-{self.partition}"


@value_class
class RemoteLogSegmentId:
    """Id of one attempt to copy a segment; every attempt has its own (T-22)."""

    partition: TopicIdPartition
    id: UUID

    def __str__(self) -> str:
        return f"{self.partition}/{uuid_to_text(self.id)}"


@value_class
class RemoteLogSegmentMetadata:
    """Metadata of a segment in the remote tier. Offsets are inclusive, times are ms since 1970.

    `epochs` are the leader epochs of its records, ascending, each with its first offset in this
    segment; the first one starts at `start_offset`. `event_timestamp_ms` is when `broker_id`
    published the state. `size_bytes` is the size of the log file.
    """

    id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    epochs: tuple[EpochStart, ...]
    size_bytes: int
    state: SegmentState = SegmentState.COPY_SEGMENT_STARTED
    custom_metadata: bytes | None = None
    txn_index_empty: bool = False
    tiered_epoch: int = 0
    """Tiered epoch of the topic when the copy started (KIP-950, X-10)."""

    @property
    def partition(self) -> TopicIdPartition:
        return self.id.partition

    def updated(self, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        """The metadata after `update`. An update without custom metadata keeps the old value,
        because deleting the segment needs it."""
        custom = update.custom_metadata
        return replace(
            self,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            state=update.state,
            custom_metadata=self.custom_metadata if custom is None else custom,
        )

    def last_offset_of(self, leader_epoch: int) -> int | None:
        """Last offset of that epoch in this segment, or None if the segment has no records of it."""
        for at, start in enumerate(self.epochs):
            if start.epoch == leader_epoch:
                following = self.epochs[at + 1 : at + 2]
                return following[0].start_offset - 1 if following else self.end_offset
        return None


@value_class
class RemoteLogSegmentMetadataUpdate:
    """Transition of a segment to its next state."""

    id: RemoteLogSegmentId
    broker_id: int
    event_timestamp_ms: int
    state: SegmentState
    custom_metadata: bytes | None = None
    unless_finished: bool = False
    """For DELETE_SEGMENT_STARTED of an incomplete copy: the update is refused if the copy was
    finished in the meantime, since other brokers may rely on it."""

    @property
    def partition(self) -> TopicIdPartition:
        return self.id.partition


@value_class
class RemotePartitionDeleteMetadata:
    """Transition of a partition's deletion from the remote tier (T-27, T-51)."""

    partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: PartitionDeleteState


SegmentEvent = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate
RemoteEvent = SegmentEvent | RemotePartitionDeleteMetadata
"""Event in a record of `__remote_log_metadata`."""
