"""Assignors: every partition is assigned once, balanced, and sticky."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from odradek.broker.groups.assignors import ASSIGNORS, range_assignor, uniform_assignor
from odradek.broker.groups.assignors.spec import GroupSpec, MemberSpec, Result

TOPICS = [UUID(int=number) for number in range(1, 6)]
A, B, C = TOPICS[:3]


def spec(
    subscriptions: dict[str, list[UUID]],
    counts: dict[UUID, int],
    before: Result | None = None,
    instances: dict[str, str] | None = None,
) -> GroupSpec:
    return GroupSpec(
        {
            member: MemberSpec(
                tuple(topics), (before or {}).get(member, {}), (instances or {}).get(member)
            )
            for member, topics in subscriptions.items()
        },
        counts,
    )


def flat(result: Result) -> dict[tuple[UUID, int], str]:
    """Partition to owner; fails if a partition has two owners."""
    owners: dict[tuple[UUID, int], str] = {}
    for member, topics in result.items():
        for topic, partitions in topics.items():
            for partition in partitions:
                assert owners.setdefault((topic, partition), member) == member
    return owners


def sizes(result: Result) -> list[int]:
    return [sum(map(len, topics.values())) for topics in result.values()]


groups = st.builds(
    lambda counts, wants: spec(
        {f"m{i}": [t for t in TOPICS if t.int in want] for i, want in enumerate(wants)}, counts
    ),
    st.fixed_dictionaries({topic: st.integers(1, 12) for topic in TOPICS}),
    st.lists(st.frozensets(st.integers(1, 5)), min_size=1, max_size=7),
)
same_topics = st.builds(
    lambda counts, count: spec({f"m{i}": list(counts) for i in range(count)}, counts),
    st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), min_size=1),
    st.integers(1, 9),
)


def check(group: GroupSpec, result: Result) -> None:
    owners = flat(result)
    wanted = {topic for member in group.members.values() for topic in member.topics}
    assert set(owners) == {(t, p) for t in wanted for p in range(group.partition_counts[t])}
    assert all(topic in group.members[member].topics for (topic, _), member in owners.items())
    assert set(result) == set(group.members)


@given(group=groups, name=st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_is_assigned_to_one_subscriber(group: GroupSpec, name: str) -> None:
    check(group, ASSIGNORS[name](group))


@given(group=same_topics)
def test_uniform_is_balanced_for_equal_subscriptions(group: GroupSpec) -> None:
    counts = sizes(uniform_assignor.assign(group))
    assert max(counts) - min(counts) <= 1


@given(group=groups)
def test_uniform_result_can_not_be_improved_within_a_topic(group: GroupSpec) -> None:
    result = uniform_assignor.assign(group)
    counts = dict(zip(result, sizes(result), strict=True))
    for (topic, _), owner in flat(result).items():
        for other, member in group.members.items():
            if topic in member.topics:
                assert counts[owner] - counts[other] <= 1


@given(before=groups, after=groups)
def test_uniform_is_sticky(before: GroupSpec, after: GroupSpec) -> None:
    """Assigning the same group again changes nothing; after a change only needed partitions move."""
    first = uniform_assignor.assign(before)
    again = {
        member: MemberSpec(each.topics, first[member]) for member, each in before.members.items()
    }
    assert uniform_assignor.assign(GroupSpec(again, before.partition_counts)) == first
    grown = {t: max(before.partition_counts[t], after.partition_counts[t]) for t in TOPICS}
    changed = GroupSpec(
        {m: MemberSpec(each.topics, first.get(m, {})) for m, each in after.members.items()}, grown
    )
    check(changed, uniform_assignor.assign(changed))


@given(group=same_topics, joins=st.booleans())
def test_uniform_moves_minimum_of_partitions(group: GroupSpec, joins: bool) -> None:
    first = uniform_assignor.assign(group)
    members = {m: MemberSpec(each.topics, first[m]) for m, each in group.members.items()}
    if joins:
        members["new"] = MemberSpec(next(iter(members.values())).topics)
    elif len(members) > 1:
        del members["m0"]
    second = uniform_assignor.assign(GroupSpec(members, group.partition_counts))
    total = sum(group.partition_counts.values())
    before, after = flat(first), flat(second)
    moved = sum(before[each] != after[each] for each in before)
    gone = sum(owner not in members for owner in before.values())
    newcomers = sum(len(each) for each in second.get("new", {}).values()) if joins else 0
    assert moved <= max(gone, newcomers), (total, first, second)


def test_uniform_member_keeps_its_extra_partition() -> None:
    before: Result = {"a": {A: frozenset({0})}, "b": {A: frozenset({1, 2})}}
    after = uniform_assignor.assign(spec({"a": [A], "b": [A]}, {A: 3}, before))
    assert after == before


def test_uniform_does_not_assign_unsubscribed_topics() -> None:
    before: Result = {"a": {A: frozenset({0}), B: frozenset({0, 1})}}
    assert uniform_assignor.assign(spec({"a": [A]}, {A: 2, B: 2}, before)) == {
        "a": {A: frozenset({0, 1})}
    }


def test_range_assigns_a_range_of_each_topic() -> None:
    result = range_assignor.assign(spec({m: [A, B] for m in "abc"}, {A: 7, B: 2}))
    assert result == {
        "a": {A: frozenset({0, 1, 2}), B: frozenset({0})},
        "b": {A: frozenset({3, 4}), B: frozenset({1})},
        "c": {A: frozenset({5, 6})},
    }


@given(counts=st.integers(1, 20), members=st.integers(1, 7))
def test_range_co_partitions_topics(counts: int, members: int) -> None:
    wants = {f"m{i}": [A, B, C] for i in range(members)}
    result = range_assignor.assign(spec(wants, dict.fromkeys((A, B, C), counts)))
    for topics in result.values():
        assert topics.get(A) == topics.get(B) == topics.get(C)


@given(group=groups)
def test_range_is_balanced_in_each_topic(group: GroupSpec) -> None:
    result = range_assignor.assign(group)
    for topic in TOPICS:
        counts = [
            len(result[m].get(topic, ()))
            for m, each in group.members.items()
            if topic in each.topics
        ]
        assert not counts or max(counts) - min(counts) <= 1


def test_range_static_member_with_new_member_id_keeps_its_range() -> None:
    wants = {"z": [A], "a": [A], "m": [A]}
    counts = {A: 6}
    first = range_assignor.assign(spec(wants, counts, instances={"z": "one", "a": "two"}))
    renamed = {"q": [A], "a": [A], "m": [A]}
    second = range_assignor.assign(spec(renamed, counts, instances={"q": "one", "a": "two"}))
    assert first["z"] == second["q"] == {A: frozenset({0, 1})}
    assert first["a"] == second["a"] == {A: frozenset({2, 3})}
