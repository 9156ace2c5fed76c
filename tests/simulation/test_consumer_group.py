"""The consumer group of the simulation, and the checks of its assignments and commits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek.testing.simulation.group_history import GroupHistory, MemberAssignment, OffsetCommit
from odradek.testing.simulation.history import ReadRecord
from odradek.testing.simulation.plan import SimulationPlan, draw_plan, from_json, to_json
from odradek.testing.simulation.run import simulate

FINAL = [ReadRecord(0, offset, b"%d" % offset) for offset in range(4)]


def assignment(member: str, generation: int, at_s: float, *offsets: int) -> MemberAssignment:
    seen = [each for each in FINAL if each.offset in offsets]
    return MemberAssignment(member, generation, {0}, at_s, at_s + 0.1, seen)


def commit(
    member: str, generation: int, at_s: float, offset: int, *, acknowledged: bool = True
) -> OffsetCommit:
    return OffsetCommit(member, generation, {0: offset}, at_s, at_s + 0.1 if acknowledged else None)


def kinds(history: GroupHistory, has: int) -> set[str]:
    return {each.kind for each in history.anomalies(FINAL, {0: has})}


def test_partition_may_be_reassigned_to_another_member() -> None:
    """An unacknowledged commit may have succeeded or not."""
    history = GroupHistory(
        [assignment("a", 1, 1.0, 0, 1, 2), assignment("b", 2, 3.0, 2, 3)],
        [
            commit("a", 1, 2.0, 2),
            commit("a", 1, 2.2, 3, acknowledged=False),
            commit("b", 2, 4.0, 4),
        ],
    )
    assert kinds(history, has=4) == set()


@pytest.mark.parametrize(
    ("history", "has", "kind"),
    [
        (
            GroupHistory([assignment("a", 1, 1.0, 0, 1, 2, 3)], [commit("a", 1, 2.0, 4)]),
            3,
            "wrong committed offset",
        ),
        (
            GroupHistory([assignment("a", 1, 1.0, 0, 1, 2, 3)], [commit("a", 1, 2.0, 4)]),
            9,
            "wrong committed offset",
        ),
        (
            GroupHistory(
                [assignment("a", 1, 1.0, 0, 1), assignment("b", 2, 3.0, 1, 2, 3)],
                [commit("a", 1, 2.0, 2)],
            ),
            2,
            "read again",
        ),
        (
            GroupHistory(
                [assignment("a", 1, 1.0, 0, 1), assignment("b", 2, 3.0, 2, 3)],
                [commit("b", 2, 4.0, 4), commit("a", 1, 4.5, 2)],
            ),
            4,
            "partition of another member",
        ),
        (GroupHistory([assignment("a", 1, 1.0, 0, 1, 3)]), -1, "unread"),
    ],
    ids=["lost", "unknown member", "read again", "of a fenced member", "skipped"],
)
def test_impossible_group_histories_are_found(history: GroupHistory, has: int, kind: str) -> None:
    assert kinds(history, has) == {kind}


def test_aborted_record_read_by_a_member_is_found() -> None:
    aborted = MemberAssignment("a", 1, {0}, 1.0, 1.1, [*FINAL, ReadRecord(0, 4, b"aborted")])
    assert kinds(GroupHistory([aborted]), has=-1) == {"aborted read"}


def test_rejoining_member_starts_a_new_assignment() -> None:
    one = assignment("a", 1, 1.0, 0, 1)
    assert one.continues(1, {0}, [ReadRecord(0, 2, b"2")])
    assert not one.continues(1, {0}, [ReadRecord(0, 1, b"1")])
    assert not one.continues(2, {0}, [])
    assert not one.continues(1, {0, 1}, [])


@pytest.mark.parametrize("seed", range(4))
def test_group_consumes_all_records(seed: int) -> None:
    """The seeds cover both protocols, and static and dynamic members."""
    run = simulate(SimulationPlan(seed, (), members=2))
    assert [str(each) for each in run.anomalies] == []
    committed = [line for line in run.trace if "group-" in line and "has committed" in line]
    assert len(committed) >= 4


def test_some_plans_have_a_consumer_group() -> None:
    drawn = [draw_plan(seed) for seed in range(60)]
    with_group = [each for each in drawn if each.members]
    assert 10 < len(with_group) < 30
    [plan, *_] = with_group
    assert from_json(to_json(plan)) == plan
    assert replace(plan, members=0) in plan.smaller()
