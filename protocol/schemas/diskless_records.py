"""Records of `__diskless_metadata`, the log of the coordinators of diskless topics (KIP-1164, D-12).

Records 100 to 103 are those of the KIP. Those from 21640 on are private: the KIP has no
record for a coordinator that receives the ownership of a file, or that does not track a file any more.
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.schemas.definition import StoredRecord, record, structs, wire


@record
class DisklessPartitionCreatedRecord(StoredRecord):
    """Creation of a partition."""

    __api_key__: ClassVar[int] = 100
    topic_id: UUID = wire("uuid")
    name: str = wire("string")
    partition_index: int = wire("int32")


@record
class DisklessTopicDeletedRecord(StoredRecord):
    """Deletion of a topic with all its partitions and batches."""

    __api_key__: ClassVar[int] = 101
    topic_id: UUID = wire("uuid")


@record
class DisklessCommittedBatch:
    """An accepted batch with its assigned offsets. `byte_offset` and `byte_size` are bytes within the file."""

    magic: int = wire("int8")
    byte_offset: int = wire("int32")
    byte_size: int = wire("int32")
    assigned_base_offset: int = wire("int64")
    assigned_last_offset: int = wire("int64")
    log_append_timestamp: int = wire("int64")
    batch_max_timestamp: int = wire("int64")
    timestamp_type: int = wire("int8")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    base_sequence: int = wire("int32")
    last_sequence: int = wire("int32")


@record
class DisklessCommittedPartition:
    """Accepted batches of one partition."""

    partition_index: int = wire("int32")
    batches: tuple[DisklessCommittedBatch, ...] = structs(DisklessCommittedBatch)


@record
class DisklessCommittedTopic:
    """Accepted batches of one topic."""

    topic_id: UUID = wire("uuid")
    partitions: tuple[DisklessCommittedPartition, ...] = structs(DisklessCommittedPartition)


@record
class DisklessFileCommittedRecord(StoredRecord):
    """Commit of a WAL file with the batches that the coordinator accepted.

    `owner_ids` are partitions of `__diskless_metadata` (D-21).
    """

    __api_key__: ClassVar[int] = 102
    object_key: str = wire("string")
    object_format: int = wire("int8")
    file_size: int = wire("int64")
    uploader_broker_id: int = wire("int32")
    owner_ids: tuple[int, ...] = wire("[]int32")
    topics: tuple[DisklessCommittedTopic, ...] = structs(DisklessCommittedTopic)


@record
class DisklessRecordsDeletedRecord(StoredRecord):
    """New log start offset of a partition. Batches whose last offset is lower are removed."""

    __api_key__: ClassVar[int] = 103
    topic_id: UUID = wire("uuid")
    partition_index: int = wire("int32")
    new_log_start_offset: int = wire("int64")


@record
class DisklessFileOwnershipRecord(StoredRecord):
    """This coordinator has become the owner of a file, which it may not have known before (D-21, private)."""

    __api_key__: ClassVar[int] = 21_640
    object_key: str = wire("string")
    object_format: int = wire("int8")
    file_size: int = wire("int64")
    owner_ids: tuple[int, ...] = wire("[]int32")


@record
class DisklessFileRemovedRecord(StoredRecord):
    """This coordinator has handed the file over, or has deleted its object, and does not track it any more (D-22)."""

    __api_key__: ClassVar[int] = 21_641
    object_key: str = wire("string")
