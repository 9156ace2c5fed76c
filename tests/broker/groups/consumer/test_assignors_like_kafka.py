"""The same groups to Kafka's own assignors and to ours.

`range` has to give the very same; `uniform` chooses among equals by the order of hash maps, so it has
to be as balanced, and to move no more where all subscribe to the same topics.
"""

from __future__ import annotations

import json
import random
from typing import Any
from uuid import UUID

import pytest

from odradek.broker.groups.assignors import ASSIGNORS
from odradek.broker.groups.assignors.spec import GroupSpec, MemberSpec, Result
from tests.interop.kafka_tools import run_tool

pytestmark = pytest.mark.interop

CASES = 120
Case = tuple[str, GroupSpec]


def cases(seed: int, *, homogeneous: bool) -> list[Case]:
    """Groups that were assigned once, and then changed."""
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
    """Partitions that another member has now than before."""
    return sum(
        len(partitions - result[member].get(topic, frozenset()))
        for member, each in group.members.items()
        for topic, partitions in each.assigned.items()
        if topic in each.topics
    )


def test_equal_subscriptions_like_kafka() -> None:
    groups = cases(848, homogeneous=True)
    for (name, group), theirs in zip(groups, kafkas(groups), strict=True):
        ours = ASSIGNORS[name](group)
        if name == "range":
            assert ours == theirs
        else:
            assert sizes(ours) == sizes(theirs)
            assert moved(group, ours) <= moved(group, theirs)


def test_different_subscriptions_like_kafka() -> None:
    groups = cases(849, homogeneous=False)
    ours_moved = theirs_moved = ours_spread = theirs_spread = 0
    for (name, group), theirs in zip(groups, kafkas(groups), strict=True):
        ours = ASSIGNORS[name](group)
        if name == "range":
            assert ours == theirs
            continue
        ours_moved += moved(group, ours)
        theirs_moved += moved(group, theirs)
        ours_spread += sum(size**2 for size in sizes(ours))
        theirs_spread += sum(size**2 for size in sizes(theirs))
    assert ours_spread <= theirs_spread * 1.01
    assert ours_moved <= theirs_moved * 1.1
