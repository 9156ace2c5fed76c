"""Records of `__consumer_offsets` that consumer groups (KIP-848) live in."""

from __future__ import annotations

from typing import ClassVar, TypeAlias
from uuid import UUID

from odradek.protocol.schemas.definition import NEVER, record, struct, structs, wire


@record
class ConsumerGroupMetadataKey:
    """A consumer group (type 3)."""

    __api_key__: ClassVar[int] = 3
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")


@record
class ConsumerGroupMetadataValue:
    """A consumer group's epoch."""

    __api_key__: ClassVar[int] = 3
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    epoch: int = wire("int32")
    metadata_hash: int = wire("int64", tag=0)


@record
class ConsumerGroupPartitionMetadataKey:
    """What a consumer group knew of its topics (type 4); no longer written."""

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
    """What a consumer group knew of its topics."""

    __api_key__: ClassVar[int] = 4
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    topics: tuple[TopicMetadata, ...] = structs(TopicMetadata)


@record
class ConsumerGroupMemberMetadataKey:
    """A member of a consumer group (type 5)."""

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
    """What a member that speaks the classic protocol said of itself."""

    session_timeout_ms: int = wire("int32")
    supported_protocols: tuple[ClassicProtocol, ...] = structs(ClassicProtocol)


@record
class ConsumerGroupMemberMetadataValue:
    """What a member of a consumer group said of itself.

    `classic_member_metadata` is None for a member that speaks the new protocol.
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
    """A consumer group's target assignment (type 6)."""

    __api_key__: ClassVar[int] = 6
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")


@record
class ConsumerGroupTargetAssignmentMetadataValue:
    """The epoch of a target assignment, and when it was made (ms)."""

    __api_key__: ClassVar[int] = 6
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    assignment_epoch: int = wire("int32")
    assignment_timestamp: int = wire("int64", tag=0)


@record
class ConsumerGroupTargetAssignmentMemberKey:
    """A member's part of the target assignment (type 7)."""

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
    """A member's part of the target assignment."""

    __api_key__: ClassVar[int] = 7
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = 0
    topic_partitions: tuple[TargetTopicPartitions, ...] = structs(TargetTopicPartitions)


@record
class ConsumerGroupCurrentMemberAssignmentKey:
    """What a member of a consumer group owns now (type 8)."""

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
    """What a member of a consumer group owns now, and what it has yet to give up."""

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
    """A regular expression that members subscribe to (type 16)."""

    __api_key__: ClassVar[int] = 16
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group_id: str = wire("string")
    regular_expression: str = wire("string")


@record
class ConsumerGroupRegularExpressionValue:
    """The topics a regular expression matched, at a version of the metadata image."""

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
