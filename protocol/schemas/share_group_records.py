"""Records of `__consumer_offsets` that share groups (KIP-932) live in."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.schemas.definition import NEVER, record, structs, wire


@record
class ShareGroupMemberMetadataKey:
    """A member of a share group (type 10)."""

    __api_key__: ClassVar[int] = 10
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")
    member_id: str = wire("string")


@record
class ShareGroupMemberMetadataValue:
    """What a member of a share group said of itself."""

    __api_key__: ClassVar[int] = 10
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    rack_id: str | None = wire("string", nullable=True)
    client_id: str = wire("string")
    client_host: str = wire("string")
    subscribed_topic_names: tuple[str, ...] = wire("[]string")


@record
class ShareGroupMetadataKey:
    """A share group (type 11)."""

    __api_key__: ClassVar[int] = 11
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")


@record
class ShareGroupMetadataValue:
    """A share group's epoch."""

    __api_key__: ClassVar[int] = 11
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    epoch: int = wire("int32")
    metadata_hash: int = wire("int64")


@record
class ShareGroupTargetAssignmentMetadataKey:
    """A share group's target assignment (type 12)."""

    __api_key__: ClassVar[int] = 12
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")


@record
class ShareGroupTargetAssignmentMetadataValue:
    """The epoch of a target assignment, and when it was made (ms)."""

    __api_key__: ClassVar[int] = 12
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    assignment_epoch: int = wire("int32")
    assignment_timestamp: int = wire("int64", tag=0)


@record
class ShareGroupTargetAssignmentMemberKey:
    """A member's part of the target assignment (type 13)."""

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
    """A member's part of the target assignment."""

    __api_key__: ClassVar[int] = 13
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    topic_partitions: tuple[TargetTopicPartitions, ...] = structs(TargetTopicPartitions)


@record
class ShareGroupCurrentMemberAssignmentKey:
    """What a member of a share group has now (type 14)."""

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
    """What a member of a share group has now."""

    __api_key__: ClassVar[int] = 14
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    member_epoch: int = wire("int32")
    previous_member_epoch: int = wire("int32")
    state: int = wire("int8")
    assigned_partitions: tuple[CurrentTopicPartitions, ...] = structs(CurrentTopicPartitions)


@record
class ShareGroupStatePartitionMetadataKey:
    """The state of a share group's partitions (type 15)."""

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
    """Topics whose share state is being initialized, is initialized, or is being deleted."""

    __api_key__: ClassVar[int] = 15
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    initializing_topics: tuple[TopicPartitionsInfo, ...] = structs(TopicPartitionsInfo)
    initialized_topics: tuple[TopicPartitionsInfo, ...] = structs(TopicPartitionsInfo)
    deleting_topics: tuple[TopicInfo, ...] = structs(TopicInfo)
