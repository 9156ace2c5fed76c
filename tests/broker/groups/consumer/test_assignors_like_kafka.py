"""Compares the assignors with Kafka's on the same groups.

The results of `range` must be equal. Kafka's `uniform` chooses between equal assignments by the order
of hash maps, so the result must be as balanced, and for equal subscriptions must not move more
partitions.
"""

from __future__ import annotations

import json
import random
from typing import Any
from uuid import UUID

import pytest

from odradek.broker.groups.assignors import ASSIGNORS
from odradek.broker.groups.assignors.spec import GroupSpec, MemberSpec, Result
from tests.support.kafka_tools import run_tool

pytestmark = pytest.mark.interop

CASES = 120
Case = tuple[str, GroupSpec]


def cases(seed: int, *, homogeneous: bool) -> list[Case]:
    """Groups with an assignment that have changed since."""
    dice, found = random.Random(seed), []
    for _ in range(CASES):
        name = dice.choice(sorted(ASSIGNORS))
        counts = {UUID(int=n + 1): dice.randint(1, 20) for n in range(dice.randint(1, 6))}
        topics = list(counts)
        wants = {
            f"m{i}": topics if homogeneous else dice.sample(topics, dice.randint(1, len(topics)))
            for i in range(dice.randint(1, 9))
        }
        before = {m: MemberSpec(tuple(sorted(each))) for m, each in wants.items()}
        assigned = ASSIGNORS[name](GroupSpec(before, counts))
        if len(before) > 1 and dice.random() < 0.5:
            del before[dice.choice(list(before))]
        if dice.random() < 0.6:
            chosen = topics if homogeneous else dice.sample(topics, dice.randint(1, len(topics)))
            before["new"] = MemberSpec(tuple(sorted(chosen)))
        if dice.random() < 0.3:
            counts[dice.choice(topics)] += 3
        members = {m: MemberSpec(each.topics, assigned.get(m, {})) for m, each in before.items()}
        found.append((name, GroupSpec(members, counts)))
    return found


def kafkas(groups: list[Case]) -> list[Result]:
    asked = [
        {
            "assignor": name,
            "topics": {str(topic.int): count for topic, count in group.partition_counts.items()},
            "members": {
                member: {
                    "topics": [str(topic.int) for topic in each.topics],
                    "assigned": plain(each.assigned),
                }
                for member, each in group.members.items()
            },
        }
        for name, group in groups
    ]
    response = json.loads(run_tool("assignors", json.dumps(asked)).check().stdout)
    return [
        {
            member: {UUID(int=int(t)): frozenset(parts) for t, parts in topics.items() if parts}
            for member, topics in result.items()
        }
        for result in response
    ]


def plain(assigned: Any) -> dict[str, list[int]]:
    return {str(topic.int): sorted(partitions) for topic, partitions in assigned.items()}


def sizes(result: Result) -> list[int]:
    return sorted(sum(map(len, topics.values())) for topics in result.values())


def moved(group: GroupSpec, result: Result) -> int:
    """Number of partitions with a new owner."""
    return sum(
        len(partitions - result[member].get(topic, frozenset()))
        for member, each in group.members.items()
        for topic, partitions in each.assigned.items()
        if topic in each.topics
    )


def test_equal_subscriptions_like_kafka() -> None:
    groups = cases(848, homogeneous=True)
    for (name, group), theirs in zip(groups, kafkas(groups), strict=True):
        odradek = ASSIGNORS[name](group)
        if name == "range":
            assert odradek == theirs
        else:
            assert sizes(odradek) == sizes(theirs)
            assert moved(group, odradek) <= moved(group, theirs)


def test_different_subscriptions_like_kafka() -> None:
    groups = cases(849, homogeneous=False)
    odradek_moved = theirs_moved = odradek_spread = theirs_spread = 0
    for (name, group), theirs in zip(groups, kafkas(groups), strict=True):
        odradek = ASSIGNORS[name](group)
        if name == "range":
            assert odradek == theirs
            continue
        odradek_moved += moved(group, odradek)
        theirs_moved += moved(group, theirs)
        odradek_spread += sum(size**2 for size in sizes(odradek))
        theirs_spread += sum(size**2 for size in sizes(theirs))
    assert odradek_spread <= theirs_spread * 1.01
    assert odradek_moved <= theirs_moved * 1.1
