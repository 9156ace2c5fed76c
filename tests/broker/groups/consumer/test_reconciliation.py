"""Reconciliation: every case in every state; members reach their target in random histories."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.broker.groups.consumer.member import (
    NO_ASSIGNED_PARTITIONS,
    ConsumerGroupMember,
    MemberState,
    as_partitions,
)
from odradek.broker.groups.consumer.reconciliation import (
    RECONCILIATION_ACTIONS,
    FencedMemberEpoch,
    ReconciliationAction,
    ReconciliationCase,
    TargetAssignment,
    reconcile,
)

T, U = UUID(int=1), UUID(int=2)
S = MemberState
HELD = {T: {0: 3, 1: 3}, U: {0: 2}}


def member(
    state: MemberState, situation: ReconciliationCase
) -> tuple[ConsumerGroupMember, TargetAssignment, bool]:
    """A member that owns T-0, T-1 and U-0, and has to revoke T-2 if its state allows it."""
    _, behind, subscription_changed = situation.value
    revoking = (
        {T: {2: 1}} if state in (S.UNREVOKED_PARTITIONS, S.UNKNOWN) else NO_ASSIGNED_PARTITIONS
    )
    made = ConsumerGroupMember(
        "m", epoch=4, previous_epoch=3, state=state, assigned=HELD, revoking=revoking
    )
    target = TargetAssignment(5 if behind else 4, {T: frozenset({0, 1, 3}), U: frozenset({0})})
    return made, target, subscription_changed


@pytest.mark.parametrize(
    ("situation", "state"),
    list(product(ReconciliationCase, MemberState)),
    ids=lambda each: each.name,
)
def test_table_of_all_cases_and_states(situation: ReconciliationCase, state: MemberState) -> None:
    before, target, subscription_changed = member(state, situation)
    holds = situation.value[0]
    owned = None if holds else {}
    subscribed = frozenset({T}) if subscription_changed else frozenset({T, U})

    def step() -> ConsumerGroupMember:
        return reconcile(
            before,
            target,
            owned=owned,
            subscribed=subscribed,
            subscription_changed=subscription_changed,
            owned_partitions=lambda topic: frozenset(),
        )

    match RECONCILIATION_ACTIONS[situation][state]:
        case ReconciliationAction.STAY:
            assert step() is before
        case ReconciliationAction.FENCE:
            with pytest.raises(FencedMemberEpoch):
                step()
        case ReconciliationAction.REVOKE_UNSUBSCRIBED:
            after = step()
            assert after.epoch == before.epoch
            assert after.assigned == {T: HELD[T]}
            if holds:
                assert after.state is S.UNREVOKED_PARTITIONS
                assert after.revoking == {**before.revoking, U: HELD[U]}
            else:
                assert (after.state, after.revoking) == (before.state, before.revoking)
        case ReconciliationAction.RECONCILE | ReconciliationAction.RESTART as kind:
            after = step()
            has_to_give = subscription_changed and holds and kind is ReconciliationAction.RECONCILE
            assert after.epoch == (before.epoch if has_to_give else target.epoch)
            assert after.previous_epoch == before.epoch
            wanted = {T: {0: 3, 1: 3}} if has_to_give else {T: {0: 3, 1: 3, 3: target.epoch}}
            assert after.assigned == (wanted if subscription_changed else {**wanted, U: {0: 2}})
            assert after.state is (S.UNREVOKED_PARTITIONS if has_to_give else S.STABLE)


def advance(
    before: ConsumerGroupMember,
    target: TargetAssignment,
    taken: set[tuple[UUID, int]] | None = None,
) -> ConsumerGroupMember:
    return reconcile(
        before,
        target,
        owned={},
        subscribed=frozenset({T, U}),
        subscription_changed=False,
        owned_partitions=lambda topic: frozenset(p for t, p in taken or () if t == topic),
    )


def test_partitions_owned_by_others_are_awaited() -> None:
    target = TargetAssignment(2, {T: frozenset({0, 1, 2})})
    waits = advance(ConsumerGroupMember("m", epoch=1), target, {(T, 1)})
    assert (waits.state, waits.epoch, waits.assigned) == (
        S.UNRELEASED_PARTITIONS,
        2,
        {T: {0: 2, 2: 2}},
    )
    done = advance(waits, target)
    assert (done.state, done.assigned) == (S.STABLE, {T: {0: 2, 1: 2, 2: 2}})
    assert done.previous_epoch == 2


def test_partitions_revoked_by_the_member_itself_are_free() -> None:
    before = ConsumerGroupMember(
        "m", epoch=1, state=S.UNREVOKED_PARTITIONS, assigned={T: {0: 1}}, revoking={T: {1: 1}}
    )
    back = advance(before, TargetAssignment(3, {T: frozenset({0, 1})}), {(T, 0), (T, 1)})
    assert (back.state, back.assigned) == (S.STABLE, {T: {0: 1, 1: 3}})


TARGETS = st.lists(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=6, max_size=6), min_size=1, max_size=5
)


@settings(max_examples=150, deadline=None)
@given(
    targets=TARGETS, steps=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60)
)
def test_partitions_have_one_owner_and_members_reach_target(
    targets: list[list[str]], steps: list[tuple[str, bool]]
) -> None:
    """Targets change during reconciliation; members report their partitions correctly, late or never."""
    members = {name: ConsumerGroupMember(name) for name in "abc"}
    epoch = 1
    has: dict[str, set[int]] = {name: set() for name in "abc"}
    """Partitions that each client owns: its last assignment without revoked partitions."""

    def heartbeat(name: str, owners: list[str], *, reported: bool) -> None:
        owned = {T: frozenset(has[name])} if reported else None
        target = TargetAssignment(
            epoch, {T: frozenset(i for i, who in enumerate(owners) if who == name)}
        )
        members[name] = reconcile(
            members[name],
            target,
            owned=owned,
            subscribed=frozenset({T}),
            subscription_changed=False,
            owned_partitions=lambda topic: frozenset(
                p for each in members.values() for t, p in each.holdings() if t == topic
            ),
        )
        has[name] = set(as_partitions(members[name].assigned).get(T, ()))
        everything = [each for m in members.values() for each in m.holdings()]
        assert len(everything) == len(set(everything)), "two owners"
        assert sum(map(len, has.values())) == len(set().union(*has.values())), "two clients own it"

    script = iter(steps)
    for number, owners in enumerate(targets):
        epoch = number + 1
        for name, reported in [each for each, _ in zip(script, range(12), strict=False)]:
            heartbeat(name, owners, reported=reported)
    for _ in range(4):
        for name in "abc":
            heartbeat(name, targets[-1], reported=True)
    for name, each in members.items():
        wanted = {i for i, who in enumerate(targets[-1]) if who == name}
        assert has[name] == wanted
        assert each.is_reconciled_to(epoch)


def test_docs_page_has_reconciliation_table() -> None:
    page = Path(__file__).parents[4] / "docs" / "groups.md"
    text = page.read_text()
    begin = text.index("\n", text.index("<!-- the steps:")) + 1
    end = text.index("<!-- the end of the steps -->")
    table = [["", *(state.name for state in MemberState)], ["---"] * (len(MemberState) + 1)]
    for situation, row in RECONCILIATION_ACTIONS.items():
        name = situation.name.lower().replace("_subscription", ", subscription").replace("_", " ")
        table.append([f"**{name}**", *(row[state].value for state in MemberState)])
    wanted = "".join(f"| {' | '.join(row)} |\n" for row in table)
    if os.environ.get("ODRADEK_REWRITE"):
        page.write_text(text[:begin] + wanted + text[end:])
    assert text[begin:end] == wanted


def test_member_state_of_later_version_is_unknown() -> None:
    assert MemberState.from_number(9) is S.UNKNOWN
    fresh = replace(ConsumerGroupMember("m", epoch=1), state=S.UNKNOWN)
    assert advance(fresh, TargetAssignment(7, {T: frozenset({0})})).epoch == 7
