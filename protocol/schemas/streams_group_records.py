"""Records of streams groups (KIP-1071) in `__consumer_offsets`."""

from __future__ import annotations

from typing import ClassVar

from odradek.protocol.schemas.definition import StoredRecord, record, struct, structs, wire
from odradek.protocol.schemas.group_records import (
    GroupIdKey,
    GroupMemberKey,
    TargetAssignmentMetadata,
)


@record
class StreamsGroupMetadataKey(GroupIdKey):
    """Key of the metadata of a streams group (type 17)."""

    __api_key__: ClassVar[int] = 17


@record
class KeyValue:
    key: str = wire("string")
    value: str = wire("string")


@record
class StreamsGroupMetadataValue(StoredRecord):
    """Metadata of a streams group: its epoch, metadata hash and validated topology epoch."""

    __api_key__: ClassVar[int] = 17
    epoch: int = wire("int32")
    metadata_hash: int = wire("int64")
    validated_topology_epoch: int = wire("int32", -1, tag=0)
    last_assignment_configs: tuple[KeyValue, ...] | None = structs(KeyValue, tag=1, nullable=True)


@record
class StreamsGroupMemberMetadataKey(GroupMemberKey):
    """Key of the metadata of a member of a streams group (type 19)."""

    __api_key__: ClassVar[int] = 19


@record
class Endpoint:
    host: str = wire("string")
    port: int = wire("uint16")


@record
class StreamsGroupMemberMetadataValue(StoredRecord):
    """Metadata of a member of a streams group, from its heartbeats."""

    __api_key__: ClassVar[int] = 19
    instance_id: str | None = wire("string", nullable=True)
    rack_id: str | None = wire("string", nullable=True)
    client_id: str = wire("string")
    client_host: str = wire("string")
    rebalance_timeout_ms: int = wire("int32", -1)
    topology_epoch: int = wire("int32")
    process_id: str = wire("string")
    user_endpoint: Endpoint | None = struct(Endpoint, None, nullable=True)
    client_tags: tuple[KeyValue, ...] = structs(KeyValue)


@record
class StreamsGroupTargetAssignmentMetadataKey(GroupIdKey):
    """Key of the metadata of a streams group's target assignment (type 20)."""

    __api_key__: ClassVar[int] = 20


@record
class StreamsGroupTargetAssignmentMetadataValue(TargetAssignmentMetadata):
    """Metadata of the target assignment of a group."""

    __api_key__: ClassVar[int] = 20


@record
class StreamsGroupTargetAssignmentMemberKey(GroupMemberKey):
    """Key of the target assignment of a member (type 21)."""

    __api_key__: ClassVar[int] = 21


@record
class TargetTasks:
    subtopology_id: str = wire("string")
    partitions: tuple[int, ...] = wire("[]int32")


@record
class StreamsGroupTargetAssignmentMemberValue(StoredRecord):
    """Target assignment of a member: its tasks."""

    __api_key__: ClassVar[int] = 21
    active_tasks: tuple[TargetTasks, ...] = structs(TargetTasks)
    standby_tasks: tuple[TargetTasks, ...] = structs(TargetTasks)
    warmup_tasks: tuple[TargetTasks, ...] = structs(TargetTasks)


@record
class StreamsGroupCurrentMemberAssignmentKey(GroupMemberKey):
    """Key of the current assignment of a member (type 22)."""

    __api_key__: ClassVar[int] = 22


@record
class CurrentTasks:
    subtopology_id: str = wire("string")
    partitions: tuple[int, ...] = wire("[]int32")
    assignment_epochs: tuple[int, ...] | None = wire("[]int32", tag=0, nullable=True)


@record
class StreamsGroupCurrentMemberAssignmentValue(StoredRecord):
    """Current tasks of a member, and the tasks that it must still revoke."""

    __api_key__: ClassVar[int] = 22
    member_epoch: int = wire("int32")
    previous_member_epoch: int = wire("int32")
    state: int = wire("int8")
    active_tasks: tuple[CurrentTasks, ...] = structs(CurrentTasks)
    standby_tasks: tuple[CurrentTasks, ...] = structs(CurrentTasks)
    warmup_tasks: tuple[CurrentTasks, ...] = structs(CurrentTasks)
    active_tasks_pending_revocation: tuple[CurrentTasks, ...] = structs(CurrentTasks)
    standby_tasks_pending_revocation: tuple[CurrentTasks, ...] = structs(CurrentTasks)
    warmup_tasks_pending_revocation: tuple[CurrentTasks, ...] = structs(CurrentTasks)


@record
class StreamsGroupTopologyKey(GroupIdKey):
    """Key of the topology of a streams group (type 23)."""

    __api_key__: ClassVar[int] = 23


@record
class TopicInfo:
    name: str = wire("string")
    partitions: int = wire("int32")
    replication_factor: int = wire("int16")
    topic_configs: tuple[KeyValue, ...] = structs(KeyValue)


@record
class CopartitionGroup:
    source_topics: tuple[int, ...] = wire("[]int16")
    source_topic_regex: tuple[int, ...] = wire("[]int16")
    repartition_source_topics: tuple[int, ...] = wire("[]int16")


@record
class Subtopology:
    subtopology_id: str = wire("string")
    source_topics: tuple[str, ...] = wire("[]string")
    source_topic_regex: tuple[str, ...] = wire("[]string")
    state_changelog_topics: tuple[TopicInfo, ...] = structs(TopicInfo)
    repartition_sink_topics: tuple[str, ...] = wire("[]string")
    repartition_source_topics: tuple[TopicInfo, ...] = structs(TopicInfo)
    copartition_groups: tuple[CopartitionGroup, ...] = structs(CopartitionGroup)


@record
class StreamsGroupTopologyValue(StoredRecord):
    """Topology of a streams group: its subtopologies."""

    __api_key__: ClassVar[int] = 23
    epoch: int = wire("int32")
    subtopologies: tuple[Subtopology, ...] = structs(Subtopology)
