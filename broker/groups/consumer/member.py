"""A member of a consumer group: subscription, assignment and epochs.

Each partition has the epoch in which it was assigned to the member, so that offset commits of a
previous owner of the partition can be rejected (KIP-1251).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

from odradek.broker.groups.messages import SupportedProtocols
from odradek.seams.values import value_class

AssignedPartitions: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Topic id to partition to the epoch in which it was assigned."""
Partitions: TypeAlias = Mapping[UUID, frozenset[int]]
"""Topic id to partitions: a target assignment, or the owned partitions of a heartbeat."""

NO_ASSIGNED_PARTITIONS: Mapping[UUID, Mapping[int, int]] = MappingProxyType({})
NO_PARTITIONS: Mapping[UUID, frozenset[int]] = MappingProxyType({})

JOIN_EPOCH = 0
"""Epoch of a member that joins, or rejoins without partitions."""
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""Epoch of a static member that left temporarily and may rejoin with its instance id."""


class MemberState(enum.Enum):
    """Reconciliation state of a member, as in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def from_number(cls, number: int) -> MemberState:
        """The state of a record; UNKNOWN for a value that a later version wrote."""
        return cls(number) if number in _NUMBERS else cls.UNKNOWN


_NUMBERS = frozenset(each.value for each in MemberState)


@value_class
class ClassicProtocolMember:
    """JoinGroup fields of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: SupportedProtocols


@value_class
class ConsumerGroupMember:
    """A member. `rebalance_timeout_ms` is -1 until it is known; `regex` is "" for none."""

    member_id: str
    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] = field(default_factory=frozenset)
    regex: str = ""
    assignor: str | None = None
    assigned: AssignedPartitions = field(default_factory=dict)
    revoking: AssignedPartitions = field(default_factory=dict)
    """Partitions that the member has to revoke first."""
    classic: ClassicProtocolMember | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_classic(self) -> bool:
        """Whether the member uses the classic protocol (JoinGroup) in this consumer group."""
        return self.classic is not None

    @property
    def is_temporarily_away(self) -> bool:
        return self.epoch == STATIC_LEAVE_EPOCH

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def holdings(self) -> list[tuple[UUID, int]]:
        """Partitions that the member owns, including those that it has to revoke."""
        return [
            (topic, partition)
            for owned in (self.assigned, self.revoking)
            for topic, partitions in owned.items()
            for partition in partitions
        ]


def as_partitions(assigned: AssignedPartitions) -> Partitions:
    """The partitions without their epochs."""
    return {topic: frozenset(partitions) for topic, partitions in assigned.items() if partitions}
