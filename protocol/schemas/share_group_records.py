"""Records of share groups (KIP-932) in `__consumer_offsets`."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.schemas.definition import StoredRecord, record, structs, wire
from odradek.protocol.schemas.group_records import (
    GroupIdKey,
    GroupMemberKey,
    TargetAssignmentMetadata,
)


@record
class ShareGroupMemberMetadataKey(GroupMemberKey):
    """Key of the metadata of a member of a share group (type 10)."""

    __api_key__: ClassVar[int] = 10


@record
class ShareGroupMemberMetadataValue(StoredRecord):
    """Metadata of a member of a share group, from its heartbeats."""

    __api_key__: ClassVar[int] = 10
    rack_id: str | None = wire("string", nullable=True)
    client_id: str = wire("string")
    client_host: str = wire("string")
    subscribed_topic_names: tuple[str, ...] = wire("[]string")


@record
class ShareGroupMetadataKey(GroupIdKey):
    """Key of the metadata of a share group (type 11)."""

    __api_key__: ClassVar[int] = 11


@record
class ShareGroupMetadataValue(StoredRecord):
    """Metadata of a share group: its epoch and metadata hash."""

    __api_key__: ClassVar[int] = 11
    epoch: int = wire("int32")
    metadata_hash: int = wire("int64")


@record
class ShareGroupTargetAssignmentMetadataKey(GroupIdKey):
    """Key of the metadata of a share group's target assignment (type 12)."""

    __api_key__: ClassVar[int] = 12


@record
class ShareGroupTargetAssignmentMetadataValue(TargetAssignmentMetadata):
    """Metadata of the target assignment of a group."""

    __api_key__: ClassVar[int] = 12


@record
class ShareGroupTargetAssignmentMemberKey(GroupMemberKey):
    """Key of the target assignment of a member (type 13)."""

    __api_key__: ClassVar[int] = 13


@record
class TopicPartitions:
    topic_id: UUID = wire("uuid")
    partitions: tuple[int, ...] = wire("[]int32")


@record
class ShareGroupTargetAssignmentMemberValue(StoredRecord):
    """Target assignment of a member."""

    __api_key__: ClassVar[int] = 13
    topic_partitions: tuple[TopicPartitions, ...] = structs(TopicPartitions)


@record
class ShareGroupCurrentMemberAssignmentKey(GroupMemberKey):
    """Key of the current assignment of a member (type 14)."""

    __api_key__: ClassVar[int] = 14


@record
class ShareGroupCurrentMemberAssignmentValue(StoredRecord):
    """Current assignment of a member of a share group."""

    __api_key__: ClassVar[int] = 14
    member_epoch: int = wire("int32")
    previous_member_epoch: int = wire("int32")
    state: int = wire("int8")
    assigned_partitions: tuple[TopicPartitions, ...] = structs(TopicPartitions)


@record
class ShareGroupStatePartitionMetadataKey(GroupIdKey):
    """Key of the share-partition metadata of a share group (type 15)."""

    __api_key__: ClassVar[int] = 15


@record
class TopicPartitionsInfo:
    topic_id: UUID = wire("uuid")
    topic_name: str = wire("string")
    partitions: tuple[int, ...] = wire("[]int32")


@record
class TopicInfo:
    topic_id: UUID = wire("uuid")
    topic_name: str = wire("string")


@record
class ShareGroupStatePartitionMetadataValue(StoredRecord):
    """Topics whose share state is being initialized, has been initialized, or is being deleted."""

    __api_key__: ClassVar[int] = 15
    initializing_topics: tuple[TopicPartitionsInfo, ...] = structs(TopicPartitionsInfo)
    initialized_topics: tuple[TopicPartitionsInfo, ...] = structs(TopicPartitionsInfo)
    deleting_topics: tuple[TopicInfo, ...] = structs(TopicInfo)
