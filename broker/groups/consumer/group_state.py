"""State of a consumer group as replayed from its records.

`replay` is the only way to change it. A request works on a `ConsumerGroupUpdate`, a copy on which
new records are replayed as they are written.

Invariants, in any order that compaction left: an instance id maps to the member that took it last;
a partition is owned by the member that got it last.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any
from uuid import UUID

from odradek.broker.groups.consumer import record_helpers as records
from odradek.broker.groups.consumer.member import (
    LEAVE_EPOCH,
    NO_PARTITIONS,
    ConsumerGroupMember,
    Partitions,
)
from odradek.broker.groups.consumer.record_helpers import ResolvedRegularExpression
from odradek.broker.groups.messages import Record
from odradek.protocol.schemas.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)

FIRST_EPOCH = 1
"""Of a group without a record; no member is ever in epoch 0, which says that it joins."""


class ConsumerGroupState(enum.Enum):
    """Kafka's names; they follow from the epochs, nobody sets them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ReplayedConsumerGroup:
    """See the module."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.has_partition_metadata = False
        """Whether the log has a record of a kind that Kafka wrote before 4.1."""
        self.target_epoch = 0
        self.target_timestamp_ms = 0
        self.members: dict[str, ConsumerGroupMember] = {}
        self.static: dict[str, str] = {}
        """Instance id to member id."""
        self.targets: dict[str, Partitions] = {}
        self.regexes: dict[str, ResolvedRegularExpression] = {}
        self._owners: dict[UUID, dict[int, str]] = {}
        """Topic to partition to member id."""
        self._subscribed: frozenset[str] | None = None
        """What all members subscribe to, once somebody asked for it."""
        self._regex_counts: Counter[str] | None = None

    def copy(self) -> ReplayedConsumerGroup:
        made = ReplayedConsumerGroup(self.group_id)
        made.epoch, made.metadata_hash = self.epoch, self.metadata_hash
        made.has_partition_metadata = self.has_partition_metadata
        made.target_epoch, made.target_timestamp_ms = self.target_epoch, self.target_timestamp_ms
        made.members, made.static = dict(self.members), dict(self.static)
        made.targets, made.regexes = dict(self.targets), dict(self.regexes)
        made._owners = {topic: dict(owners) for topic, owners in self._owners.items()}
        made._subscribed, made._regex_counts = self._subscribed, self._regex_counts
        return made

    # Replaying

    def replay(self, key: ConsumerGroupKey, value: Any) -> None:
        """Take over a record of this group's; None is a tombstone."""
        if isinstance(key, ConsumerGroupMemberMetadataKey | ConsumerGroupRegularExpressionKey):
            self._subscribed = self._regex_counts = None
        match key:
            case ConsumerGroupMetadataKey():
                if value is not None:
                    self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case ConsumerGroupPartitionMetadataKey():
                self.has_partition_metadata = value is not None
            case ConsumerGroupMemberMetadataKey():
                self._replay_member(key.member_id, value)
            case ConsumerGroupTargetAssignmentMetadataKey():
                self.target_epoch = LEAVE_EPOCH if value is None else value.assignment_epoch
                self.target_timestamp_ms = 0 if value is None else value.assignment_timestamp
            case ConsumerGroupTargetAssignmentMemberKey():
                if value is None:
                    self.targets.pop(key.member_id, None)
                else:
                    self.targets[key.member_id] = records.read_target(value)
            case ConsumerGroupCurrentMemberAssignmentKey():
                self._replay_current(key.member_id, value)
            case ConsumerGroupRegularExpressionKey():
                if value is None:
                    self.regexes.pop(key.regular_expression, None)
                else:
                    self.regexes[key.regular_expression] = records.read_regex(value)

    def _replay_member(self, member_id: str, value: Any) -> None:
        before = self.members.get(member_id)
        if value is not None:
            self._hold(
                replace(
                    before or ConsumerGroupMember(member_id), **records.read_subscription(value)
                )
            )
        elif before is not None:
            self._release(before)
            del self.members[member_id]

    def _replay_current(self, member_id: str, value: Any) -> None:
        before = self.members.get(member_id)
        if value is not None:
            self._hold(
                replace(before or ConsumerGroupMember(member_id), **records.read_current(value))
            )
        elif before is not None:
            self._hold(replace(before, **records.no_current()))

    def _hold(self, member: ConsumerGroupMember) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self._release(before)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        for held in (member.assigned, member.revoking):
            for topic, partitions in held.items():
                owners = self._owners.setdefault(topic, {})
                owners.update(dict.fromkeys(partitions, member.member_id))

    def _release(self, member: ConsumerGroupMember) -> None:
        if (
            member.instance_id is not None
            and self.static.get(member.instance_id) == member.member_id
        ):
            del self.static[member.instance_id]
        for held in (member.assigned, member.revoking):
            for topic, partitions in held.items():
                owners = self._owners.get(topic, {})
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self._owners.pop(topic, None)

    # Asking

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(each.is_reconciled_to(self.target_epoch) for each in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def owned_partitions(self, topic: UUID) -> Set[int]:
        """The topic's partitions that a member has, or has yet to give up."""
        return self._owners.get(topic, {}).keys()

    def owner(self, topic: UUID, partition: int) -> str | None:
        return self._owners.get(topic, {}).get(partition)

    def static_member(self, instance_id: str) -> ConsumerGroupMember | None:
        member_id = self.static.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target_of(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """What a member subscribes to, by name or by expression, whether it exists or not."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def subscribed_topics(self) -> frozenset[str]:
        if self._subscribed is None:
            every = (self.topics_of(each) for each in self.members.values())
            self._subscribed = frozenset[str]().union(*every)
        return self._subscribed

    def regex_counts(self) -> Counter[str]:
        """How many members subscribe with each expression; not to be changed."""
        if self._regex_counts is None:
            every = (each.regex for each in self.members.values() if each.regex)
            self._regex_counts = Counter(every)
        return self._regex_counts

    @property
    def classic_count(self) -> int:
        return sum(each.is_classic for each in self.members.values())

    def classic_protocols(self) -> Counter[str]:
        """How many of the members that speak the classic protocol support each of its protocols."""
        return Counter(
            name
            for each in self.members.values()
            if each.classic is not None
            for name, _ in each.classic.protocols
        )

    def preferred_assignor(self) -> str | None:
        """What most members ask for; of several the one that was asked for first."""
        votes = Counter(each.assignor for each in self.members.values() if each.assignor)
        return max(votes, key=votes.__getitem__, default=None)


class ConsumerGroupUpdate:
    """A group as it will be once `records` are in the log."""

    def __init__(self, state: ReplayedConsumerGroup) -> None:
        self._before = state
        self._after: ReplayedConsumerGroup | None = None
        self.records: list[Record] = []

    @property
    def state(self) -> ReplayedConsumerGroup:
        return self._before if self._after is None else self._after

    @property
    def members(self) -> Mapping[str, ConsumerGroupMember]:
        return self.state.members

    def write(self, *written: Record) -> None:
        """Add records; the copy is made with the first one."""
        if not written:
            return
        if self._after is None:
            self._after = self._before.copy()
        for record in written:
            self._after.replay(record.key, record.value)  # type: ignore[arg-type]
            self.records.append(record)

    def write_all(self, written: Iterable[Record]) -> None:
        self.write(*written)
