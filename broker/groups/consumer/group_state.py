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
"""Epoch of a group without a record. Epoch 0 is that of a member that joins."""


class ConsumerGroupState(enum.Enum):
    """Kafka's states of a consumer group, derived from its members and epochs."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ReplayedConsumerGroup:
    """State of one consumer group, changed by `replay` only."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.has_partition_metadata = False
        """Whether the log has a partition metadata record, which Kafka wrote before 4.1."""
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
        """Cached `subscribed_topics`."""
        self._regex_counts: Counter[str] | None = None

    def copy(self) -> ReplayedConsumerGroup:
        copied = ReplayedConsumerGroup(self.group_id)
        copied.epoch, copied.metadata_hash = self.epoch, self.metadata_hash
        copied.has_partition_metadata = self.has_partition_metadata
        copied.target_epoch, copied.target_timestamp_ms = (
            self.target_epoch,
            self.target_timestamp_ms,
        )
        copied.members, copied.static = dict(self.members), dict(self.static)
        copied.targets, copied.regexes = dict(self.targets), dict(self.regexes)
        copied._owners = {topic: dict(owners) for topic, owners in self._owners.items()}
        copied._subscribed, copied._regex_counts = self._subscribed, self._regex_counts
        return copied

    # Replaying

    def replay(self, key: ConsumerGroupKey, value: Any) -> None:
        """Replay a record of this group; a value of None is a tombstone."""
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
                    self.targets[key.member_id] = records.read_target_assignment(value)
            case ConsumerGroupCurrentMemberAssignmentKey():
                self._replay_current(key.member_id, value)
            case ConsumerGroupRegularExpressionKey():
                if value is None:
                    self.regexes.pop(key.regular_expression, None)
                else:
                    self.regexes[key.regular_expression] = records.read_regular_expression(value)

    def _replay_member(self, member_id: str, value: Any) -> None:
        before = self.members.get(member_id)
        if value is not None:
            self._put_member(
                replace(
                    before or ConsumerGroupMember(member_id),
                    **records.read_member_subscription(value),
                )
            )
        elif before is not None:
            self._remove_member(before)
            del self.members[member_id]

    def _replay_current(self, member_id: str, value: Any) -> None:
        before = self.members.get(member_id)
        if value is not None:
            self._put_member(
                replace(
                    before or ConsumerGroupMember(member_id),
                    **records.read_current_assignment(value),
                )
            )
        elif before is not None:
            self._put_member(replace(before, **records.no_current_assignment()))

    def _put_member(self, member: ConsumerGroupMember) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self._remove_member(before)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        for owned in (member.assigned, member.revoking):
            for topic, partitions in owned.items():
                owners = self._owners.setdefault(topic, {})
                owners.update(dict.fromkeys(partitions, member.member_id))

    def _remove_member(self, member: ConsumerGroupMember) -> None:
        if (
            member.instance_id is not None
            and self.static.get(member.instance_id) == member.member_id
        ):
            del self.static[member.instance_id]
        for owned in (member.assigned, member.revoking):
            for topic, partitions in owned.items():
                owners = self._owners.get(topic, {})
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self._owners.pop(topic, None)

    # Queries

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
        """Partitions of the topic that members own, including those to revoke."""
        return self._owners.get(topic, {}).keys()

    def owner(self, topic: UUID, partition: int) -> str | None:
        return self._owners.get(topic, {}).get(partition)

    def static_member(self, instance_id: str) -> ConsumerGroupMember | None:
        member_id = self.static.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target_of(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """Topics that a member subscribes to by name or regular expression, existing or not."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def subscribed_topics(self) -> frozenset[str]:
        if self._subscribed is None:
            every = (self.topics_of(each) for each in self.members.values())
            self._subscribed = frozenset[str]().union(*every)
        return self._subscribed

    def regex_counts(self) -> Counter[str]:
        """Number of members per regular expression. The result must not be modified."""
        if self._regex_counts is None:
            every = (each.regex for each in self.members.values() if each.regex)
            self._regex_counts = Counter(every)
        return self._regex_counts

    @property
    def classic_count(self) -> int:
        return sum(each.is_classic for each in self.members.values())

    def classic_protocols(self) -> Counter[str]:
        """Number of members of the classic protocol that support each embedded protocol."""
        return Counter(
            name
            for each in self.members.values()
            if each.classic is not None
            for name, _ in each.classic.protocols
        )

    def preferred_assignor(self) -> str | None:
        """The assignor with the most votes; of equal counts the earliest vote wins."""
        votes = Counter(each.assignor for each in self.members.values() if each.assignor)
        return max(votes, key=votes.__getitem__, default=None)


class ConsumerGroupUpdate:
    """Records to append, and the state of the group after them."""

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
        """Add records; the copy is copied with the first one."""
        if not written:
            return
        if self._after is None:
            self._after = self._before.copy()
        for record in written:
            self._after.replay(record.key, record.value)  # type: ignore[arg-type]
            self.records.append(record)

    def write_all(self, written: Iterable[Record]) -> None:
        self.write(*written)
