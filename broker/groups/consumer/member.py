"""A member of a consumer group, as a value: what it said of itself, what it has, and in which epoch.

A partition goes with the epoch in which the member got it, so that a commit of what it read since
then can be told from one by somebody who had it before.
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
"""Topic to partition to the epoch in which it was assigned."""
Partitions: TypeAlias = Mapping[UUID, frozenset[int]]
"""Topic to partitions: a target, or what a member says that it owns."""

NO_ASSIGNED_PARTITIONS: Mapping[UUID, Mapping[int, int]] = MappingProxyType({})
NO_PARTITIONS: Mapping[UUID, frozenset[int]] = MappingProxyType({})

JOIN_EPOCH = 0
"""The epoch of a member that joins, or joins again with nothing."""
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""The epoch of a static member that is away: it may come back under its instance id."""


class MemberState(enum.Enum):
    """How far a member is on its way to its target; the numbers are those of the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def from_number(cls, number: int) -> MemberState:
        """A state that a later version wrote is UNKNOWN."""
        return cls(number) if number in _NUMBERS else cls.UNKNOWN


_NUMBERS = frozenset(each.value for each in MemberState)


@value_class
class ClassicProtocolMember:
    """What a member that speaks the classic protocol said in JoinGroup."""

    session_timeout_ms: int
    protocols: SupportedProtocols


@value_class
class ConsumerGroupMember:
    """See the module. `rebalance_timeout_ms` -1 is not said yet; no regex is the empty string."""

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
    """What it has to give up before it goes on."""
    classic: ClassicProtocolMember | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_classic(self) -> bool:
        """Whether it speaks the classic protocol (JoinGroup) in this consumer group."""
        return self.classic is not None

    @property
    def is_temporarily_away(self) -> bool:
        return self.epoch == STATIC_LEAVE_EPOCH

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def holdings(self) -> list[tuple[UUID, int]]:
        """Every partition that nobody else may have while this member is as it is."""
        return [
            (topic, partition)
            for owned in (self.assigned, self.revoking)
            for topic, partitions in owned.items()
            for partition in partitions
        ]


def as_partitions(assigned: AssignedPartitions) -> Partitions:
    """Without the epochs."""
    return {topic: frozenset(partitions) for topic, partitions in assigned.items() if partitions}


def same_partitions(one: AssignedPartitions, other: AssignedPartitions) -> bool:
    """Whether both are the same partitions, in whatever epoch they were assigned."""
    return as_partitions(one) == as_partitions(other)
