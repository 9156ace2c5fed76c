"""Input and output of an assignor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TypeAlias
from uuid import UUID

from odradek.seams.values import value_class

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partitions of a member by topic id."""


@value_class
class MemberSpec:
    """A member: existing topics that it subscribes to, and its current target assignment.

    `topics` has a fixed order. `assigned` is disjoint from that of other members.
    """

    topics: tuple[UUID, ...]
    assigned: Assignment = field(default_factory=dict)
    instance_id: str | None = None
    rack_id: str | None = None


@value_class
class GroupSpec:
    """Members by id, and the number of partitions of their topics."""

    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[UUID, int]

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members subscribe to the same topics."""
        everyone = iter(self.members.values())
        first = next(everyone, None)
        if first is None:
            return True
        topics = frozenset(first.topics)
        return all(
            each.topics is first.topics or topics == frozenset(each.topics) for each in everyone
        )


Result: TypeAlias = dict[str, dict[UUID, frozenset[int]]]
"""Member id to partitions. Every partition of a subscribed topic is assigned once."""


Assign: TypeAlias = Callable[[GroupSpec], Result]
