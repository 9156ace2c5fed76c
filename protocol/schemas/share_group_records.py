"""Records of share groups (KIP-932) in `__consumer_offsets`."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.schemas.definition import NEVER, record, structs, wire


@record
class ShareGroupMemberMetadataKey:
    """Key of the metadata of a member of a share group (type 10)."""

    __api_key__: ClassVar[int] = 10
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")
    member_id: str = wire("string")


@record
class ShareGroupMemberMetadataValue:
    """Metadata of a member of a share group, from its heartbeats."""

    __api_key__: ClassVar[int] = 10
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    rack_id: str | None = wire("string", nullable=True)
    client_id: str = wire("string")
    client_host: str = wire("string")
    subscribed_topic_names: tuple[str, ...] = wire("[]string")


@record
class ShareGroupMetadataKey:
    """Key of the metadata of a share group (type 11)."""

    __api_key__: ClassVar[int] = 11
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")


@record
class ShareGroupMetadataValue:
    """Metadata of a share group: its epoch and metadata hash."""

    __api_key__: ClassVar[int] = 11
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    epoch: int = wire("int32")
    metadata_hash: int = wire("int64")


@record
class ShareGroupTargetAssignmentMetadataKey:
    """Key of the metadata of a share group's target assignment (type 12)."""

    __api_key__: ClassVar[int] = 12
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")


@record
class ShareGroupTargetAssignmentMetadataValue:
    """Metadata of a target assignment: its epoch, and the time of its computation in ms."""

    __api_key__: ClassVar[int] = 12
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    assignment_epoch: int = wire("int32")
    assignment_timestamp: int = wire("int64", tag=0)


@record
class ShareGroupTargetAssignmentMemberKey:
    """Key of the target assignment of a member (type 13)."""

    __api_key__: ClassVar[int] = 13
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")
    member_id: str = wire("string")


@record
class TargetTopicPartitions:
    topic_id: UUID = wire("uuid")
    partitions: tuple[int, ...] = wire("[]int32")


@record
class ShareGroupTargetAssignmentMemberValue:
    """Target assignment of a member."""

    __api_key__: ClassVar[int] = 13
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    topic_partitions: tuple[TargetTopicPartitions, ...] = structs(TargetTopicPartitions)


@record
class ShareGroupCurrentMemberAssignmentKey:
    """Key of the current assignment of a member (type 14)."""

    __api_key__: ClassVar[int] = 14
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")
    member_id: str = wire("string")


@record
class CurrentTopicPartitions:
    topic_id: UUID = wire("uuid")
    partitions: tuple[int, ...] = wire("[]int32")


@record
class ShareGroupCurrentMemberAssignmentValue:
    """Current assignment of a member of a share group."""

    __api_key__: ClassVar[int] = 14
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    member_epoch: int = wire("int32")
    previous_member_epoch: int = wire("int32")
    state: int = wire("int8")
    assigned_partitions: tuple[CurrentTopicPartitions, ...] = structs(CurrentTopicPartitions)


@record
class ShareGroupStatePartitionMetadataKey:
    """Key of the share-partition metadata of a share group (type 15)."""

    __api_key__: ClassVar[int] = 15
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")


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
class ShareGroupStatePartitionMetadataValue:
    """Topics whose share state is being initialized, has been initialized, or is being deleted."""

    __api_key__: ClassVar[int] = 15
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    initializing_topics: tuple[TopicPartitionsInfo, ...] = structs(TopicPartitionsInfo)
    initialized_topics: tuple[TopicPartitionsInfo, ...] = structs(TopicPartitionsInfo)
    deleting_topics: tuple[TopicInfo, ...] = structs(TopicInfo)
