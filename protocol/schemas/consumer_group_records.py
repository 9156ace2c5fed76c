"""Records of consumer groups (KIP-848) in `__consumer_offsets`."""

from __future__ import annotations

from typing import ClassVar, TypeAlias
from uuid import UUID

from odradek.protocol.schemas.definition import NEVER, record, struct, structs, wire


@record
class ConsumerGroupMetadataKey:
    """Key of the metadata of a consumer group (type 3)."""

    __api_key__: ClassVar[int] = 3
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")


@record
class ConsumerGroupMetadataValue:
    """Metadata of a consumer group: its epoch and metadata hash."""

    __api_key__: ClassVar[int] = 3
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    epoch: int = wire("int32")
    metadata_hash: int = wire("int64", tag=0)


@record
class ConsumerGroupPartitionMetadataKey:
    """Key of the partition metadata of a consumer group (type 4), which is no longer written."""

    __api_key__: ClassVar[int] = 4
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")


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
class ConsumerGroupPartitionMetadataValue:
    """Partition metadata of a consumer group: its topics with their partitions."""

    __api_key__: ClassVar[int] = 4
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    topics: tuple[TopicMetadata, ...] = structs(TopicMetadata)


@record
class ConsumerGroupMemberMetadataKey:
    """Key of the metadata of a member of a consumer group (type 5)."""

    __api_key__: ClassVar[int] = 5
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")
    member_id: str = wire("string")


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
class ConsumerGroupMemberMetadataValue:
    """Metadata of a member of a consumer group, from its heartbeats.

    `classic_member_metadata` is None for a member that uses the consumer protocol.
    """

    __api_key__: ClassVar[int] = 5
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
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
class ConsumerGroupTargetAssignmentMetadataKey:
    """Key of the metadata of a consumer group's target assignment (type 6)."""

    __api_key__: ClassVar[int] = 6
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")


@record
class ConsumerGroupTargetAssignmentMetadataValue:
    """Metadata of a target assignment: its epoch, and the time of its computation in ms."""

    __api_key__: ClassVar[int] = 6
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    assignment_epoch: int = wire("int32")
    assignment_timestamp: int = wire("int64", tag=0)


@record
class ConsumerGroupTargetAssignmentMemberKey:
    """Key of the target assignment of a member (type 7)."""

    __api_key__: ClassVar[int] = 7
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")
    member_id: str = wire("string")


@record
class TargetTopicPartitions:
    topic_id: UUID = wire("uuid")
    partitions: tuple[int, ...] = wire("[]int32")


@record
class ConsumerGroupTargetAssignmentMemberValue:
    """Target assignment of a member."""

    __api_key__: ClassVar[int] = 7
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    topic_partitions: tuple[TargetTopicPartitions, ...] = structs(TargetTopicPartitions)


@record
class ConsumerGroupCurrentMemberAssignmentKey:
    """Key of the current assignment of a member (type 8)."""

    __api_key__: ClassVar[int] = 8
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")
    member_id: str = wire("string")


@record
class CurrentTopicPartitions:
    topic_id: UUID = wire("uuid")
    partitions: tuple[int, ...] = wire("[]int32")
    assignment_epochs: tuple[int, ...] | None = wire("[]int32", tag=0, nullable=True)


@record
class ConsumerGroupCurrentMemberAssignmentValue:
    """Current assignment of a member, and the partitions that it must still revoke."""

    __api_key__: ClassVar[int] = 8
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    member_epoch: int = wire("int32")
    previous_member_epoch: int = wire("int32")
    state: int = wire("int8")
    assigned_partitions: tuple[CurrentTopicPartitions, ...] = structs(CurrentTopicPartitions)
    partitions_pending_revocation: tuple[CurrentTopicPartitions, ...] = structs(
        CurrentTopicPartitions
    )


@record
class ConsumerGroupRegularExpressionKey:
    """Key of a regular expression that members subscribe to (type 16)."""

    __api_key__: ClassVar[int] = 16
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")
    regular_expression: str = wire("string")


@record
class ConsumerGroupRegularExpressionValue:
    """Topics that match a regular expression at a version of the metadata image."""

    __api_key__: ClassVar[int] = 16
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
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
