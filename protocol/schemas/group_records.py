"""Records of `__consumer_offsets` that classic groups and offset commits live in.

A key is its type (int16) and body, a value its version (int16) and body; no value is a tombstone.
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from odradek.protocol.schemas.definition import NEVER, record, structs, wire


@record
class OffsetCommitKey:
    """Whose offset of which partition (type 1)."""

    __api_key__: ClassVar[int] = 1
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group: str = wire("string")
    topic: str = wire("string")
    partition: int = wire("int32")


@record
class OffsetCommitValue:
    """A committed offset; timestamps in ms.

    Version 1 alone has `expire_timestamp`, and is written when a commit sets it; else version 4.
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
class LegacyOffsetCommitKey:
    """Whose offset of which partition, as written before Kafka 0.9 (type 0); read only."""

    __api_key__: ClassVar[int] = 0
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group: str = wire("string")
    topic: str = wire("string")
    partition: int = wire("int32")


@record
class LegacyOffsetCommitValue:
    """A committed offset as written before Kafka 0.9; read only."""

    __api_key__: ClassVar[int] = 0
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    offset: int = wire("int64")
    metadata: str = wire("string")
    commit_timestamp: int = wire("int64")


@record
class GroupMetadataKey:
    """A classic group (type 2)."""

    __api_key__: ClassVar[int] = 2
    __versions__: ClassVar[range] = range(1)
    __flexible_from__: ClassVar[int] = NEVER
    group: str = wire("string")


@record
class MemberMetadata:
    """A member of a classic group; time-outs in ms."""

    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", None, since=3, nullable=True)
    client_id: str = wire("string")
    client_host: str = wire("string")
    rebalance_timeout: int = wire("int32", -1, since=1)
    session_timeout: int = wire("int32")
    subscription: bytes = wire("bytes")
    assignment: bytes = wire("bytes")


@record
class GroupMetadataValue:
    """A classic group at the end of a rebalance; Kafka 4.3 writes version 3."""

    __api_key__: ClassVar[int] = 2
    __versions__: ClassVar[range] = range(5)
    __flexible_from__: ClassVar[int] = 4
    protocol_type: str = wire("string")
    generation: int = wire("int32")
    protocol: str | None = wire("string", nullable=True)
    leader: str | None = wire("string", nullable=True)
    current_state_timestamp: int = wire("int64", -1, since=2)
    members: tuple[MemberMetadata, ...] = structs(MemberMetadata)
