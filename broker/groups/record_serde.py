"""Encodes and decodes the records of `__consumer_offsets`.

Writes the versions that Kafka 4.3 writes: OffsetCommit values version 4 (version 1 with an expire
timestamp), group metadata version 3. Reads all versions that Kafka reads.
"""

from __future__ import annotations

from uuid import UUID

from odradek.broker.groups.messages import (
    ClassicGroupMetadata,
    ClassicMemberMetadata,
    CommittedOffset,
    GroupKey,
    OffsetKey,
    Record,
    RecordKey,
    RecordValue,
)
from odradek.protocol.schemas import serde
from odradek.protocol.schemas.consumer_group_records import ConsumerGroupKey, ConsumerGroupValue
from odradek.protocol.schemas.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from odradek.seams.files import Buffer

NO_TOPIC_ID = UUID(int=0)
WITH_EXPIRY = 1
"""The version of OffsetCommitValue that has an expire timestamp."""
GROUP_VERSION = 3


class UnsupportedGroupRecord(Exception):
    """A record of a group type that is not supported: share or streams."""


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """Encode key and value; a value of None is a tombstone."""
    key = record.key
    if isinstance(key, OffsetKey):
        encoded = serde.encode_coordinator_key(
            OffsetCommitKey(group=key.group_id, topic=key.topic, partition=key.partition)
        )
    elif isinstance(key, GroupKey):
        encoded = serde.encode_coordinator_key(GroupMetadataKey(group=key.group_id))
    else:  # keys of consumer groups are schema objects
        encoded = serde.encode_coordinator_key(key)
    return encoded, None if record.value is None else _encode_value(record.value)


def _encode_value(value: RecordValue) -> bytes:
    if isinstance(value, ClassicGroupMetadata):
        return serde.encode_coordinator_value(_encode_group_metadata(value), GROUP_VERSION)
    if not isinstance(value, CommittedOffset):
        return serde.encode_coordinator_value(value)
    has_expiry = value.expire_timestamp_ms is not None
    committed = OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp_ms,
        expire_timestamp=-1 if value.expire_timestamp_ms is None else value.expire_timestamp_ms,
        topic_id=value.topic_id or NO_TOPIC_ID,
    )
    return serde.encode_coordinator_value(committed, WITH_EXPIRY if has_expiry else None)


def _encode_group_metadata(group: ClassicGroupMetadata) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.state_timestamp_ms,
        members=tuple(
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in group.members
        ),
    )


def is_offset_key(data: Buffer) -> bool:
    """Whether this is an offset commit key."""
    return int.from_bytes(data[:2], "big") in (
        LegacyOffsetCommitKey.__api_key__,
        OffsetCommitKey.__api_key__,
    )


def decode_key(data: Buffer) -> RecordKey:
    """Raises UnsupportedGroupRecord for other group types, serde.UnknownRecord for unknown keys."""
    key = serde.decode_group_key(data)
    if isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
        return OffsetKey(key.group, key.topic, key.partition)
    if isinstance(key, GroupMetadataKey):
        return GroupKey(key.group)
    if isinstance(key, ConsumerGroupKey):
        return key
    raise UnsupportedGroupRecord(type(key).__name__)


def decode_value(key: RecordKey, data: Buffer) -> RecordValue:
    """Raises serde.InvalidRecord if the value can't be decoded."""
    if isinstance(key, OffsetKey):
        value = serde.decode_group_value(
            OffsetCommitKey(group=key.group_id, topic=key.topic, partition=key.partition), data
        )
        return _decode_offset(value)
    if not isinstance(key, GroupKey):
        decoded: ConsumerGroupValue = serde.decode_group_value(key, data)
        return decoded
    return _decode_group_metadata(
        serde.decode_group_value(GroupMetadataKey(group=key.group_id), data)
    )


def _decode_offset(value: OffsetCommitValue) -> CommittedOffset:
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        None if value.expire_timestamp == -1 else value.expire_timestamp,
        None if value.topic_id == NO_TOPIC_ID else value.topic_id,
    )


def _decode_group_metadata(value: GroupMetadataValue) -> ClassicGroupMetadata:
    return ClassicGroupMetadata(
        value.protocol_type,
        value.generation,
        value.protocol,
        value.leader,
        value.current_state_timestamp,
        tuple(
            ClassicMemberMetadata(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout,
                member.session_timeout,
                member.subscription,
                member.assignment,
            )
            for member in value.members
        ),
    )
