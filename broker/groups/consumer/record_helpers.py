"""Creates and reads the records of consumer groups (Kafka's GroupCoordinatorRecordHelpers).

Values are filled in as Kafka 4.3 does. `group_state.ReplayedConsumerGroup.replay` applies them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from odradek.broker.groups.consumer.member import (
    NO_ASSIGNED_PARTITIONS,
    AssignedPartitions,
    ClassicProtocolMember,
    ConsumerGroupMember,
    MemberState,
    Partitions,
)
from odradek.broker.groups.messages import Record
from odradek.protocol.schemas.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    TargetTopicPartitions,
)
from odradek.seams.values import value_class


@value_class
class ResolvedRegularExpression:
    """Topics that an expression matched. `version` is the offset of the metadata log at that time."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


# Member subscription


def member_subscription(group_id: str, member: ConsumerGroupMember) -> Record:
    classic = member.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.topics)),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=tuple(
                ClassicProtocol(name=name, metadata=metadata)
                for name, metadata in classic.protocols
            ),
        ),
    )
    return Record(_member_key(group_id, member.member_id), value)


def member_subscription_tombstone(group_id: str, member_id: str) -> Record:
    return Record(_member_key(group_id, member_id), None)


def _member_key(group_id: str, member_id: str) -> ConsumerGroupMemberMetadataKey:
    return ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)


def read_member_subscription(value: ConsumerGroupMemberMetadataValue) -> dict[str, Any]:
    """The attributes of a `ConsumerGroupMember` that the record holds."""
    classic = value.classic_member_metadata
    return {
        "instance_id": value.instance_id,
        "rack_id": value.rack_id,
        "client_id": value.client_id,
        "client_host": value.client_host,
        "topics": frozenset(value.subscribed_topic_names),
        "regex": value.subscribed_topic_regex or "",
        "rebalance_timeout_ms": value.rebalance_timeout_ms,
        "assignor": value.server_assignor,
        "classic": None
        if classic is None
        else ClassicProtocolMember(
            classic.session_timeout_ms,
            tuple((each.name, bytes(each.metadata)) for each in classic.supported_protocols),
        ),
    }


# Group epoch


def group_epoch(group_id: str, group_epoch: int, metadata_hash: int) -> Record:
    key = ConsumerGroupMetadataKey(group_id=group_id)
    value = ConsumerGroupMetadataValue(epoch=group_epoch, metadata_hash=metadata_hash)
    return Record(key, value)


def group_epoch_tombstone(group_id: str) -> Record:
    return Record(ConsumerGroupMetadataKey(group_id=group_id), None)


def partition_metadata_tombstone(group_id: str) -> Record:
    """Tombstone of a record that Kafka wrote before version 4.1."""
    return Record(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


# Target assignment


def target_assignment_epoch(group_id: str, assignment_epoch: int, timestamp_ms: int) -> Record:
    key = ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=assignment_epoch, assignment_timestamp=timestamp_ms
    )
    return Record(key, value)


def target_assignment_epoch_tombstone(group_id: str) -> Record:
    return Record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None)


def target_assignment(group_id: str, member_id: str, partitions: Partitions) -> Record:
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=tuple(
            TargetTopicPartitions(topic_id=topic, partitions=tuple(sorted(each)))
            for topic, each in partitions.items()
        )
    )
    return Record(_target_key(group_id, member_id), value)


def target_assignment_tombstone(group_id: str, member_id: str) -> Record:
    return Record(_target_key(group_id, member_id), None)


def _target_key(group_id: str, member_id: str) -> ConsumerGroupTargetAssignmentMemberKey:
    return ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)


def read_target_assignment(value: ConsumerGroupTargetAssignmentMemberValue) -> Partitions:
    return {each.topic_id: frozenset(each.partitions) for each in value.topic_partitions}


# Current assignment


def current_assignment(group_id: str, member: ConsumerGroupMember) -> Record:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state.value,
        assigned_partitions=_current(member.assigned),
        partitions_pending_revocation=_current(member.revoking),
    )
    return Record(_current_key(group_id, member.member_id), value)


def current_assignment_tombstone(group_id: str, member_id: str) -> Record:
    return Record(_current_key(group_id, member_id), None)


def _current_key(group_id: str, member_id: str) -> ConsumerGroupCurrentMemberAssignmentKey:
    return ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)


def _current(assigned: AssignedPartitions) -> tuple[CurrentTopicPartitions, ...]:
    encoded = []
    for topic, partitions in assigned.items():
        ordered = sorted(partitions.items())
        encoded.append(
            CurrentTopicPartitions(
                topic_id=topic,
                partitions=tuple(partition for partition, _ in ordered),
                assignment_epochs=tuple(each for _, each in ordered),
            )
        )
    return tuple(encoded)


def read_current_assignment(value: ConsumerGroupCurrentMemberAssignmentValue) -> dict[str, Any]:
    """The attributes of a `ConsumerGroupMember` that the record holds."""
    return {
        "epoch": value.member_epoch,
        "previous_epoch": value.previous_member_epoch,
        "state": MemberState.from_number(value.state),
        "assigned": _read_assigned(value.assigned_partitions, value.member_epoch),
        "revoking": _read_assigned(value.partitions_pending_revocation, value.member_epoch),
    }


def no_current_assignment() -> dict[str, Any]:
    """The attributes of a member without a current assignment record."""
    return {
        "epoch": -1,
        "previous_epoch": -1,
        "state": MemberState.STABLE,
        "assigned": NO_ASSIGNED_PARTITIONS,
        "revoking": NO_ASSIGNED_PARTITIONS,
    }


def _read_assigned(topics: Iterable[CurrentTopicPartitions], epoch: int) -> AssignedPartitions:
    """Records of Kafka before 4.3 have no assignment epochs; the member epoch is used."""
    assigned: dict[UUID, dict[int, int]] = {}
    for each in topics:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = (max(epoch, 0),) * len(each.partitions)
        assigned[each.topic_id] = dict(zip(each.partitions, epochs, strict=True))
    return assigned


# Regular expressions


def regular_expression(
    group_id: str, expression: str, resolved: ResolvedRegularExpression
) -> Record:
    value = ConsumerGroupRegularExpressionValue(
        topics=tuple(sorted(resolved.topics)),
        version=resolved.version,
        timestamp=resolved.timestamp_ms,
    )
    return Record(_regex_key(group_id, expression), value)


def regular_expression_tombstone(group_id: str, expression: str) -> Record:
    return Record(_regex_key(group_id, expression), None)


def _regex_key(group_id: str, expression: str) -> ConsumerGroupRegularExpressionKey:
    return ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression)


def read_regular_expression(
    value: ConsumerGroupRegularExpressionValue,
) -> ResolvedRegularExpression:
    return ResolvedRegularExpression(frozenset(value.topics), value.version, value.timestamp)
