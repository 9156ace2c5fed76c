"""Input and output of an assignor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Protocol, TypeAlias
from uuid import UUID

from odradek.seams.values import value_class

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""A member's partitions by topic."""


@value_class
class MemberSpec:
    """A member: the existing topics that it subscribes to, and what it was assigned last.

    `topics` are in a fixed order, `assigned` is disjoint from every other member's.
    """

    topics: tuple[UUID, ...]
    assigned: Assignment = field(default_factory=dict)
    instance_id: str | None = None
    rack_id: str | None = None


@value_class
class GroupSpec:
    """The members by id, and how many partitions their topics have."""

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
"""Member to partitions; every partition of a topic that someone subscribes to is in it once."""


class Assignor(Protocol):
    name: str

    def __call__(self, group: GroupSpec) -> Result: ...


Assign: TypeAlias = Callable[[GroupSpec], Result]
