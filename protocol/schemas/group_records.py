"""Records of classic groups and of offset commits in `__consumer_offsets`, and what all kinds of groups share.

A key is a type (int16) and a body, and a value is a version (int16) and a body. A null value is a tombstone.
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.schemas.definition import (
    NEVER,
    RecordKey,
    StoredRecord,
    record,
    structs,
    wire,
)


@record
class GroupIdKey(RecordKey):
    """Base of keys of a group of another kind than classic."""

    group_id: str = wire("string")


@record
class GroupMemberKey(GroupIdKey):
    """Base of keys of a member of such a group."""

    member_id: str = wire("string")


@record
class TargetAssignmentMetadata(StoredRecord):
    """Base of the metadata of target assignments: the epoch, and the time of the computation in ms."""

    assignment_epoch: int = wire("int32")
    assignment_timestamp: int = wire("int64", tag=0)


@record
class OffsetCommitKey(RecordKey):
    """Key of a committed offset: group, topic and partition (type 1)."""

    __api_key__: ClassVar[int] = 1
    group: str = wire("string")
    topic: str = wire("string")
    partition: int = wire("int32")


@record
class OffsetCommitValue(StoredRecord):
    """A committed offset; timestamps in ms.

    Only version 1 has `expire_timestamp`. It is written if the commit has one, otherwise version 4.
    """

    __api_key__: ClassVar[int] = 1
    __versions__: ClassVar[range] = range(5)
    __flexible_from__: ClassVar[int] = 4
    offset: int = wire("int64")
    leader_epoch: int = wire("int32", -1, since=3)
    metadata: str = wire("string")
    commit_timestamp: int = wire("int64")
    expire_timestamp: int = wire("int64", -1, since=1, until=1)
    topic_id: UUID = wire("uuid", since=4, tag=0)


@record
class LegacyOffsetCommitKey(RecordKey):
    """Key of a committed offset in the format before Kafka 0.9 (type 0), which is only read."""

    __api_key__: ClassVar[int] = 0
    group: str = wire("string")
    topic: str = wire("string")
    partition: int = wire("int32")


@record
class LegacyOffsetCommitValue(StoredRecord):
    """A committed offset in the format before Kafka 0.9, which is only read."""

    __api_key__: ClassVar[int] = 0
    __flexible_from__: ClassVar[int] = NEVER
    offset: int = wire("int64")
    metadata: str = wire("string")
    commit_timestamp: int = wire("int64")


@record
class GroupMetadataKey(RecordKey):
    """Key of the metadata of a classic group (type 2)."""

    __api_key__: ClassVar[int] = 2
    group: str = wire("string")


@record
class MemberMetadata:
    """A member of a classic group, with timeouts in ms."""

    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", None, since=3, nullable=True)
    client_id: str = wire("string")
    client_host: str = wire("string")
    rebalance_timeout: int = wire("int32", -1, since=1)
    session_timeout: int = wire("int32")
    subscription: bytes = wire("bytes")
    assignment: bytes = wire("bytes")


@record
class GroupMetadataValue(StoredRecord):
    """Metadata of a classic group after a rebalance. Kafka 4.3 writes version 3."""

    __api_key__: ClassVar[int] = 2
    __versions__: ClassVar[range] = range(5)
    __flexible_from__: ClassVar[int] = 4
    protocol_type: str = wire("string")
    generation: int = wire("int32")
    protocol: str | None = wire("string", nullable=True)
    leader: str | None = wire("string", nullable=True)
    current_state_timestamp: int = wire("int64", -1, since=2)
    members: tuple[MemberMetadata, ...] = structs(MemberMetadata)
