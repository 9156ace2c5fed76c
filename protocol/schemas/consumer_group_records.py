"""Records of consumer groups (KIP-848) in `__consumer_offsets`."""

from __future__ import annotations

from typing import ClassVar, TypeAlias
from uuid import UUID

from odradek.protocol.schemas.definition import StoredRecord, record, struct, structs, wire
from odradek.protocol.schemas.group_records import (
    GroupIdKey,
    GroupMemberKey,
    TargetAssignmentMetadata,
)


@record
class ConsumerGroupMetadataKey(GroupIdKey):
    """Key of the metadata of a consumer group (type 3)."""

    __api_key__: ClassVar[int] = 3


@record
class ConsumerGroupMetadataValue(StoredRecord):
    """Metadata of a consumer group: its epoch and metadata hash."""

    __api_key__: ClassVar[int] = 3
    epoch: int = wire("int32")
    metadata_hash: int = wire("int64", tag=0)


@record
class ConsumerGroupPartitionMetadataKey(GroupIdKey):
    """Key of the partition metadata of a consumer group (type 4), which is no longer written."""

    __api_key__: ClassVar[int] = 4


@record
class PartitionRacks:
    partition: int = wire("int32")
    racks: tuple[str, ...] = wire("[]string")


@record
class TopicMetadata:
    topic_id: UUID = wire("uuid")
    topic_name: str = wire("string")
    num_partitions: int = wire("int32")
    partition_metadata: tuple[PartitionRacks, ...] = structs(PartitionRacks)


@record
class ConsumerGroupPartitionMetadataValue(StoredRecord):
    """Partition metadata of a consumer group: its topics with their partitions."""

    __api_key__: ClassVar[int] = 4
    topics: tuple[TopicMetadata, ...] = structs(TopicMetadata)


@record
class ConsumerGroupMemberMetadataKey(GroupMemberKey):
    """Key of the metadata of a member of a consumer group (type 5)."""

    __api_key__: ClassVar[int] = 5


@record
class ClassicProtocol:
    name: str = wire("string")
    metadata: bytes = wire("bytes")


@record
class ClassicMemberMetadata:
    """Session timeout and protocols of a member that uses the classic protocol."""

    session_timeout_ms: int = wire("int32")
    supported_protocols: tuple[ClassicProtocol, ...] = structs(ClassicProtocol)


@record
class ConsumerGroupMemberMetadataValue(StoredRecord):
    """Metadata of a member of a consumer group, from its heartbeats.

    `classic_member_metadata` is None for a member that uses the consumer protocol.
    """

    __api_key__: ClassVar[int] = 5
    instance_id: str | None = wire("string", nullable=True)
    rack_id: str | None = wire("string", nullable=True)
    client_id: str = wire("string")
    client_host: str = wire("string")
    subscribed_topic_names: tuple[str, ...] = wire("[]string")
    subscribed_topic_regex: str | None = wire("string", nullable=True)
    rebalance_timeout_ms: int = wire("int32", -1)
    server_assignor: str | None = wire("string", nullable=True)
    classic_member_metadata: ClassicMemberMetadata | None = struct(
        ClassicMemberMetadata, tag=0, nullable=True
    )


@record
class ConsumerGroupTargetAssignmentMetadataKey(GroupIdKey):
    """Key of the metadata of a consumer group's target assignment (type 6)."""

    __api_key__: ClassVar[int] = 6


@record
class ConsumerGroupTargetAssignmentMetadataValue(TargetAssignmentMetadata):
    """Metadata of the target assignment of a group."""

    __api_key__: ClassVar[int] = 6


@record
class ConsumerGroupTargetAssignmentMemberKey(GroupMemberKey):
    """Key of the target assignment of a member (type 7)."""

    __api_key__: ClassVar[int] = 7


@record
class TargetTopicPartitions:
    topic_id: UUID = wire("uuid")
    partitions: tuple[int, ...] = wire("[]int32")


@record
class ConsumerGroupTargetAssignmentMemberValue(StoredRecord):
    """Target assignment of a member."""

    __api_key__: ClassVar[int] = 7
    topic_partitions: tuple[TargetTopicPartitions, ...] = structs(TargetTopicPartitions)


@record
class ConsumerGroupCurrentMemberAssignmentKey(GroupMemberKey):
    """Key of the current assignment of a member (type 8)."""

    __api_key__: ClassVar[int] = 8


@record
class CurrentTopicPartitions:
    topic_id: UUID = wire("uuid")
    partitions: tuple[int, ...] = wire("[]int32")
    assignment_epochs: tuple[int, ...] | None = wire("[]int32", tag=0, nullable=True)


@record
class ConsumerGroupCurrentMemberAssignmentValue(StoredRecord):
    """Current assignment of a member, and the partitions that it must still revoke."""

    __api_key__: ClassVar[int] = 8
    member_epoch: int = wire("int32")
    previous_member_epoch: int = wire("int32")
    state: int = wire("int8")
    assigned_partitions: tuple[CurrentTopicPartitions, ...] = structs(CurrentTopicPartitions)
    partitions_pending_revocation: tuple[CurrentTopicPartitions, ...] = structs(
        CurrentTopicPartitions
    )


@record
class ConsumerGroupRegularExpressionKey(GroupIdKey):
    """Key of a regular expression that members subscribe to (type 16)."""

    __api_key__: ClassVar[int] = 16
    regular_expression: str = wire("string")


@record
class ConsumerGroupRegularExpressionValue(StoredRecord):
    """Topics that match a regular expression at a version of the metadata image."""

    __api_key__: ClassVar[int] = 16
    topics: tuple[str, ...] = wire("[]string")
    version: int = wire("int64")
    timestamp: int = wire("int64")


ConsumerGroupKey: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
ConsumerGroupValue: TypeAlias = (
    ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)
