"""Requests and responses between brokers and the coordinators of diskless topics (KIP-1164, D-01 to D-11).

The APIs 93 to 100 are byte for byte those of the KIP. Those from 21640 on are private: the KIP has no message for
the hand-over of a file, for the oldest file of a coordinator, and for its snapshots.
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.definition import StoredRecord, record, structs, wire


@record
class DisklessCreatablePartitions:
    """A topic and the number of its partitions that the coordinator is to have."""

    topic_id: UUID = wire("uuid")
    name: str = wire("string")
    num_partitions: int = wire("int32")


@record
class DisklessCreatePartitionsRequest(StoredRecord):
    """Request to create the partitions of topics at their coordinator (D-03): of new topics, or more of existing ones."""

    __api_key__: ClassVar[int] = 93
    topics: tuple[DisklessCreatablePartitions, ...] = structs(DisklessCreatablePartitions)
    timeout_ms: int = wire("int32", 60_000)


@record
class DisklessCreatablePartitionsResult:
    """Result of one topic."""

    topic_id: UUID = wire("uuid")
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)


@record
class DisklessCreatePartitionsResponse(StoredRecord):
    """Result of each topic."""

    __api_key__: ClassVar[int] = 93
    throttle_time_ms: int = wire("int32")
    topics: tuple[DisklessCreatablePartitionsResult, ...] = structs(
        DisklessCreatablePartitionsResult
    )


@record
class DisklessDeletableTopicState:
    """A topic to delete."""

    topic_id: UUID = wire("uuid")


@record
class DisklessDeleteTopicsRequest(StoredRecord):
    """Request to delete topics with their partitions at a coordinator (D-04)."""

    __api_key__: ClassVar[int] = 94
    topics: tuple[DisklessDeletableTopicState, ...] = structs(DisklessDeletableTopicState)
    timeout_ms: int = wire("int32", 60_000)


@record
class DisklessDeletableTopicResult:
    """Result of one topic."""

    topic_id: UUID = wire("uuid")
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)


@record
class DisklessDeleteTopicsResponse(StoredRecord):
    """Result of each topic."""

    __api_key__: ClassVar[int] = 94
    throttle_time_ms: int = wire("int32")
    responses: tuple[DisklessDeletableTopicResult, ...] = structs(DisklessDeletableTopicResult)


@record
class DisklessCommitBatch:
    """A batch in a WAL file. Producer fields of -1 are unset. `timestamp_type`: 0 CreateTime, 1 LogAppendTime."""

    magic: int = wire("int8")
    request_id: int = wire("int32")
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    byte_offset: int = wire("int32")
    size: int = wire("int32")
    base_offset: int = wire("int64")
    last_offset: int = wire("int64")
    batch_max_timestamp: int = wire("int64")
    timestamp_type: int = wire("int8")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    base_sequence: int = wire("int32")
    last_sequence: int = wire("int32")


@record
class DisklessCommitFileRequest(StoredRecord):
    """Request to commit the batches of a WAL file (D-05).

    `owner_ids` are partitions of `__diskless_metadata`: the coordinators of the batches, in random order (D-21).
    """

    __api_key__: ClassVar[int] = 95
    object_key: str = wire("string")
    object_format: int = wire("int8")
    file_size: int = wire("int64")
    owner_ids: tuple[int, ...] = wire("[]int32")
    batches: tuple[DisklessCommitBatch, ...] = structs(DisklessCommitBatch)
    timeout_ms: int = wire("int32", 60_000)


@record
class DisklessCommitBatchResult:
    """Result of one batch. A duplicate has the offset that its first commit assigned."""

    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)
    assigned_base_offset: int = wire("int64")
    log_append_time: int = wire("int64")
    log_start_offset: int = wire("int64")
    is_duplicate: bool = wire("bool")


@record
class DisklessCommitFileResponse(StoredRecord):
    """Result of each batch, in the order of the request (D-06)."""

    __api_key__: ClassVar[int] = 95
    throttle_time_ms: int = wire("int32")
    batches: tuple[DisklessCommitBatchResult, ...] = structs(DisklessCommitBatchResult)


@record
class DisklessDeleteRecordsPartition:
    """Records with lower offsets than `offset` are deleted; -1 is the high watermark."""

    partition_index: int = wire("int32")
    offset: int = wire("int64")


@record
class DisklessDeleteRecordsTopic:
    """Partitions of one topic."""

    topic_id: UUID = wire("uuid")
    partitions: tuple[DisklessDeleteRecordsPartition, ...] = structs(DisklessDeleteRecordsPartition)


@record
class DisklessDeleteRecordsRequest(StoredRecord):
    """Request to delete records below offsets (D-08)."""

    __api_key__: ClassVar[int] = 96
    topics: tuple[DisklessDeleteRecordsTopic, ...] = structs(DisklessDeleteRecordsTopic)
    timeout_ms: int = wire("int32", 60_000)


@record
class DisklessDeleteRecordsPartitionResult:
    """Log start offset after the deletion, or an error."""

    partition_index: int = wire("int32")
    low_watermark: int = wire("int64")
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)


@record
class DisklessDeleteRecordsTopicResult:
    """Results of one topic."""

    topic_id: UUID = wire("uuid")
    partitions: tuple[DisklessDeleteRecordsPartitionResult, ...] = structs(
        DisklessDeleteRecordsPartitionResult
    )


@record
class DisklessDeleteRecordsResponse(StoredRecord):
    """Result of each partition."""

    __api_key__: ClassVar[int] = 96
    throttle_time_ms: int = wire("int32")
    topics: tuple[DisklessDeleteRecordsTopicResult, ...] = structs(DisklessDeleteRecordsTopicResult)


@record
class DisklessListOffsetsPartition:
    """A partition, and a timestamp in ms."""

    partition_index: int = wire("int32")
    timestamp: int = wire("int64")


@record
class DisklessListOffsetsTopic:
    """Partitions of one topic."""

    topic_id: UUID = wire("uuid")
    partitions: tuple[DisklessListOffsetsPartition, ...] = structs(DisklessListOffsetsPartition)


@record
class DisklessListOffsetsRequest(StoredRecord):
    """Request for offsets by timestamp, or by a special timestamp from -1 to -5 (D-09)."""

    __api_key__: ClassVar[int] = 97
    topics: tuple[DisklessListOffsetsTopic, ...] = structs(DisklessListOffsetsTopic)
    timeout_ms: int = wire("int32", 60_000)


@record
class DisklessListOffsetsPartitionResponse:
    """The offset that was found, with its timestamp; -1 if there is none."""

    partition_index: int = wire("int32")
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)
    timestamp: int = wire("int64", -1)
    offset: int = wire("int64", -1)


@record
class DisklessListOffsetsTopicResponse:
    """Results of one topic."""

    topic_id: UUID = wire("uuid")
    partitions: tuple[DisklessListOffsetsPartitionResponse, ...] = structs(
        DisklessListOffsetsPartitionResponse
    )


@record
class DisklessListOffsetsResponse(StoredRecord):
    """Result of each partition, which includes all operations before the request."""

    __api_key__: ClassVar[int] = 97
    throttle_time_ms: int = wire("int32")
    topics: tuple[DisklessListOffsetsTopicResponse, ...] = structs(DisklessListOffsetsTopicResponse)


@record
class DisklessFindBatchesPartition:
    """A partition, an offset, and the size limit in bytes."""

    partition_index: int = wire("int32")
    offset: int = wire("int64")
    max_partition_fetch_bytes: int = wire("int32")


@record
class DisklessFindBatchesTopic:
    """Partitions of one topic."""

    topic_id: UUID = wire("uuid")
    partitions: tuple[DisklessFindBatchesPartition, ...] = structs(DisklessFindBatchesPartition)


@record
class DisklessFindBatchesRequest(StoredRecord):
    """Request for the batches from an offset of each partition (D-10). The response may be stale."""

    __api_key__: ClassVar[int] = 98
    fetch_max_bytes: int = wire("int32")
    max_batches_per_partition: int = wire("int32")
    topics: tuple[DisklessFindBatchesTopic, ...] = structs(DisklessFindBatchesTopic)
    timeout_ms: int = wire("int32", 60_000)


@record
class DisklessFindBatchesBatchInfo:
    """A committed batch, and where its bytes are."""

    batch_id: int = wire("int64")
    object_key: str = wire("string")
    magic: int = wire("int8")
    byte_offset: int = wire("int64")
    byte_size: int = wire("int64")
    base_offset: int = wire("int64")
    last_offset: int = wire("int64")
    log_append_timestamp: int = wire("int64")
    batch_max_timestamp: int = wire("int64")
    timestamp_type: int = wire("int8")


@record
class DisklessFindBatchesPartitionResponse:
    """Batches of a partition in the order of their offsets."""

    partition_index: int = wire("int32")
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    log_start_offset: int = wire("int64", -1)
    high_watermark: int = wire("int64", -1)
    batches: tuple[DisklessFindBatchesBatchInfo, ...] = structs(DisklessFindBatchesBatchInfo)


@record
class DisklessFindBatchesTopicResponse:
    """Results of one topic."""

    topic_id: UUID = wire("uuid")
    partitions: tuple[DisklessFindBatchesPartitionResponse, ...] = structs(
        DisklessFindBatchesPartitionResponse
    )


@record
class DisklessFindBatchesResponse(StoredRecord):
    """Batches of each partition."""

    __api_key__: ClassVar[int] = 98
    throttle_time_ms: int = wire("int32")
    topics: tuple[DisklessFindBatchesTopicResponse, ...] = structs(DisklessFindBatchesTopicResponse)


@record
class DisklessDescribeFileEntry:
    """A file, by its object key."""

    object_key: str = wire("string")


@record
class DisklessDescribeFilesRequest(StoredRecord):
    """Request whether a coordinator knows files, and whether they have live batches (D-11)."""

    __api_key__: ClassVar[int] = 100
    files: tuple[DisklessDescribeFileEntry, ...] = structs(DisklessDescribeFileEntry)
    timeout_ms: int = wire("int32", 60_000)


@record
class DisklessDescribeFileResult:
    """Whether one file has live batches at this coordinator, or an error."""

    object_key: str = wire("string")
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)
    has_live_batches: bool = wire("bool")


@record
class DisklessDescribeFilesResponse(StoredRecord):
    """Result of each file."""

    __api_key__: ClassVar[int] = 100
    throttle_time_ms: int = wire("int32")
    files: tuple[DisklessDescribeFileResult, ...] = structs(DisklessDescribeFileResult)


@record
class DisklessHandOverFileRequest(StoredRecord):
    """Request that the next coordinator in `owner_ids` takes the ownership of a file (D-21, private)."""

    __api_key__: ClassVar[int] = 21_640
    coordinator_id: int = wire("int32")
    """Partition of `__diskless_metadata` that becomes the owner."""
    object_key: str = wire("string")
    object_format: int = wire("int8")
    file_size: int = wire("int64")
    owner_ids: tuple[int, ...] = wire("[]int32")
    timeout_ms: int = wire("int32", 60_000)


@record
class DisklessHandOverFileResponse(StoredRecord):
    """NONE if the coordinator is the owner of the file, or has already removed it."""

    __api_key__: ClassVar[int] = 21_640
    throttle_time_ms: int = wire("int32")
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)


@record
class DisklessDescribeCoordinatorsRequest(StoredRecord):
    """Request for the state of the coordinators on a broker (private). None is all that the broker hosts."""

    __api_key__: ClassVar[int] = 21_641
    coordinator_ids: tuple[int, ...] | None = wire("[]int32", None, nullable=True)
    timeout_ms: int = wire("int32", 60_000)


@record
class DisklessDescribedCoordinator:
    """State of one coordinator.

    `oldest_file_ms` is the upload time of the oldest file that the coordinator tracks, or the current time if
    there is none (D-23).
    """

    coordinator_id: int = wire("int32")
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)
    is_leader: bool = wire("bool")
    leader_epoch: int = wire("int32", -1)
    log_start_offset: int = wire("int64", -1)
    applied_offset: int = wire("int64", -1)
    log_end_offset: int = wire("int64", -1)
    snapshot_offset: int = wire("int64", -1)
    state_bytes: int = wire("int64", -1)
    partitions: int = wire("int64")
    batches: int = wire("int64")
    live_bytes: int = wire("int64")
    files: int = wire("int64")
    files_to_hand_over: int = wire("int64")
    files_to_delete: int = wire("int64")
    oldest_file_ms: int = wire("int64", -1)


@record
class DisklessDescribeCoordinatorsResponse(StoredRecord):
    """State of each coordinator of the request."""

    __api_key__: ClassVar[int] = 21_641
    throttle_time_ms: int = wire("int32")
    coordinators: tuple[DisklessDescribedCoordinator, ...] = structs(DisklessDescribedCoordinator)


@record
class DisklessFetchSnapshotRequest(StoredRecord):
    """Request of a replica for a part of the newest snapshot of a coordinator's state (D-20, private).

    `snapshot_offset` is -1 in the first request, and that of the response afterwards.
    """

    __api_key__: ClassVar[int] = 21_642
    coordinator_id: int = wire("int32")
    snapshot_offset: int = wire("int64", -1)
    position: int = wire("int64")
    max_bytes: int = wire("int32")


@record
class DisklessFetchSnapshotResponse(StoredRecord):
    """Bytes of the snapshot from `position`. The snapshot has `size` bytes."""

    __api_key__: ClassVar[int] = 21_642
    throttle_time_ms: int = wire("int32")
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)
    snapshot_offset: int = wire("int64", -1)
    size: int = wire("int64", -1)
    position: int = wire("int64", -1)
    data: bytes = wire("bytes")


@record
class DisklessListFilesRequest(StoredRecord):
    """Request for the files that a coordinator tracks, with keys after `after`, sorted (private)."""

    __api_key__: ClassVar[int] = 21_643
    coordinator_id: int = wire("int32")
    after: str = wire("string")
    max_files: int = wire("int32", 1000)


@record
class DisklessListedFile:
    """A file as a coordinator tracks it. `status` is a value of `FileStatus`."""

    object_key: str = wire("string")
    object_format: int = wire("int8")
    file_size: int = wire("int64")
    uploader_broker_id: int = wire("int32")
    owner_ids: tuple[int, ...] = wire("[]int32")
    status: int = wire("int8")
    live_batches: int = wire("int64")
    live_bytes: int = wire("int64")
    uploaded_ms: int = wire("int64", -1)


@record
class DisklessListFilesResponse(StoredRecord):
    """Files of one coordinator. Fewer than `max_files` are the last ones."""

    __api_key__: ClassVar[int] = 21_643
    throttle_time_ms: int = wire("int32")
    error_code: ErrorCode = wire("error_code", ErrorCode.none)
    error_message: str | None = wire("string", None, nullable=True)
    files: tuple[DisklessListedFile, ...] = structs(DisklessListedFile)
