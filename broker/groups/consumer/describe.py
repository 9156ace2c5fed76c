"""Description of a consumer group for ConsumerGroupDescribe."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from odradek.broker.groups.consumer.consumer_group import ConsumerGroup
from odradek.broker.groups.consumer.member import (
    AssignedPartitions,
    ConsumerGroupMember,
    Partitions,
)
from odradek.broker.groups.consumer.topic_metadata import TopicMetadata
from odradek.seams.values import value_class

NamedPartitions: TypeAlias = tuple[tuple[UUID, str, tuple[int, ...]], ...]
"""Topics that exist, by id and name, with partitions."""


@value_class
class DescribedConsumerGroupMember:
    member: ConsumerGroupMember
    assigned: NamedPartitions
    """What it has, with what it has yet to give up."""
    target: NamedPartitions


@value_class
class DescribedConsumerGroup:
    group_id: str
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumerGroupMember, ...]


def describe(group: ConsumerGroup) -> DescribedConsumerGroup:
    state, topics = group.state, group.environment.topics
    default = group.environment.config.consumer_assignors[0]
    return DescribedConsumerGroup(
        group.group_id,
        group.state_name,
        state.epoch,
        state.target_epoch,
        state.preferred_assignor() or default,
        tuple(
            DescribedConsumerGroupMember(
                member,
                _named(topics, member.assigned, member.revoking),
                _named(topics, state.target_of(member.member_id)),
            )
            for member in state.members.values()
        ),
    )


def _named(topics: TopicMetadata, *parts: AssignedPartitions | Partitions) -> NamedPartitions:
    found: dict[UUID, list[int]] = {}
    for part in parts:
        for topic, partitions in part.items():
            found.setdefault(topic, []).extend(partitions)
    return tuple(
        (topic, name, tuple(sorted(partitions)))
        for topic, partitions in found.items()
        if (name := topics.name_of(topic)) is not None
    )
