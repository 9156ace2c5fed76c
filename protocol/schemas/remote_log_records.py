"""Records of `__remote_log_metadata` (KIP-405), in the layout of Kafka 4.x (REQUIREMENTS C)."""

from __future__ import annotations

from typing import ClassVar, Final
from uuid import UUID

from odradek.protocol.schemas.definition import StoredRecord, record, struct, structs, wire

TIERED_EPOCH_TAG: Final = 10_950
"""Tag of the tiered epoch (KIP-950), which Kafka does not have and skips."""


@record
class TopicIdPartition:
    name: str = wire("string")
    id: UUID = wire("uuid")
    partition: int = wire("int32")


@record
class RemoteLogSegmentId:
    topic_id_partition: TopicIdPartition = struct(TopicIdPartition)
    id: UUID = wire("uuid")


@record
class SegmentLeaderEpoch:
    leader_epoch: int = wire("int32")
    offset: int = wire("int64")


@record
class RemoteLogSegmentMetadataRecord(StoredRecord):
    """Metadata of a remote log segment whose copy starts."""

    __api_key__: ClassVar[int] = 0
    remote_log_segment_id: RemoteLogSegmentId = struct(RemoteLogSegmentId)
    start_offset: int = wire("int64")
    end_offset: int = wire("int64")
    broker_id: int = wire("int32")
    max_timestamp_ms: int = wire("int64")
    event_timestamp_ms: int = wire("int64")
    segment_leader_epochs: tuple[SegmentLeaderEpoch, ...] = structs(SegmentLeaderEpoch)
    segment_size_in_bytes: int = wire("int32")
    custom_metadata: bytes | None = wire("bytes", None, nullable=True)
    remote_log_segment_state: int = wire("int8")
    txn_index_empty: bool = wire("bool", tag=0)
    tiered_epoch: int = wire("int32", tag=TIERED_EPOCH_TAG)


@record
class RemoteLogSegmentMetadataUpdateRecord(StoredRecord):
    """Change of the state of a remote log segment."""

    __api_key__: ClassVar[int] = 1
    remote_log_segment_id: RemoteLogSegmentId = struct(RemoteLogSegmentId)
    broker_id: int = wire("int32")
    event_timestamp_ms: int = wire("int64")
    custom_metadata: bytes | None = wire("bytes", None, nullable=True)
    remote_log_segment_state: int = wire("int8")


@record
class RemotePartitionDeleteMetadataRecord(StoredRecord):
    """State of the deletion of a partition from the remote tier."""

    __api_key__: ClassVar[int] = 2
    topic_id_partition: TopicIdPartition = struct(TopicIdPartition)
    broker_id: int = wire("int32")
    event_timestamp_ms: int = wire("int64")
    remote_partition_delete_state: int = wire("int8")


@record
class RemoteLogSegmentMetadataSnapshotRecord(StoredRecord):
    """Metadata of a remote log segment in a snapshot of a partition."""

    __api_key__: ClassVar[int] = 3
    segment_id: UUID = wire("uuid")
    start_offset: int = wire("int64")
    end_offset: int = wire("int64")
    broker_id: int = wire("int32")
    max_timestamp_ms: int = wire("int64")
    event_timestamp_ms: int = wire("int64")
    segment_leader_epochs: tuple[SegmentLeaderEpoch, ...] = structs(SegmentLeaderEpoch)
    segment_size_in_bytes: int = wire("int32")
    custom_metadata: bytes | None = wire("bytes", None, nullable=True)
    remote_log_segment_state: int = wire("int8")
    txn_index_empty: bool = wire("bool", tag=0)
    tiered_epoch: int = wire("int32", tag=TIERED_EPOCH_TAG)
