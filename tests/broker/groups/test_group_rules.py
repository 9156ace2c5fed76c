"""What a classic group lets happen to its offsets and to itself, in each of its states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek.broker.groups.classic_group import ClassicGroup
from odradek.broker.groups.classic_group_states import ClassicGroupState
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.messages import (
    ClassicGroupMetadata,
    ClassicMemberMetadata,
    LeavingMember,
)
from odradek.broker.groups.offset_store import OffsetExpirationRule
from odradek.protocol.errors import ErrorCode, KafkaError
from tests.broker.groups.stage import START_MS, WALL_MS, Stage, metadata
from tests.broker.groups.test_state_table import SCENES, group

NONE = ErrorCode.none
UNKNOWN, FENCED = ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id
OLD, BUSY = ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress
GONE = ErrorCode.coordinator_not_available
EMPTY, PREPARING, COMPLETING, STABLE, DEAD = ClassicGroupState

MEMBER, OUTSIDER, STRANGER, OLDER, FENCED_ONE, NAMELESS = (
    "a member of this generation",
    "nobody in particular",
    "somebody unknown",
    "a member of an older generation",
    "a member whose static name another has",
    "a member id without a generation",
)
END_WITH_COMMIT: dict[str, dict[ClassicGroupState, ErrorCode]] = {
    MEMBER: {EMPTY: UNKNOWN, PREPARING: NONE, COMPLETING: BUSY, STABLE: NONE},
    OUTSIDER: {EMPTY: NONE, PREPARING: UNKNOWN, COMPLETING: UNKNOWN, STABLE: UNKNOWN},
    STRANGER: {EMPTY: UNKNOWN, PREPARING: UNKNOWN, COMPLETING: UNKNOWN, STABLE: UNKNOWN},
    OLDER: {EMPTY: UNKNOWN, PREPARING: OLD, COMPLETING: OLD, STABLE: OLD},
    FENCED_ONE: {EMPTY: UNKNOWN, PREPARING: FENCED, COMPLETING: FENCED, STABLE: FENCED},
    NAMELESS: {EMPTY: NONE, PREPARING: OLD, COMPLETING: OLD, STABLE: OLD},
}


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
@pytest.mark.parametrize("state", ClassicGroupState, ids=lambda each: each.name.lower())
@pytest.mark.parametrize("who", END_WITH_COMMIT)
def test_who_may_commit(who: str, state: ClassicGroupState, transactional: bool) -> None:
    stage = SCENES[state]()
    found = group(stage)
    member_id = stage.client("follower").member_id
    said: tuple[str, str | None, int] = {
        MEMBER: (member_id, None, found.generation),
        OUTSIDER: ("", None, -1),
        STRANGER: ("stranger", None, found.generation),
        OLDER: (member_id, None, found.generation - 1),
        FENCED_ONE: (member_id, "s", found.generation),
        NAMELESS: (member_id, None, -1),
    }[who]
    error = found.check_commit(*said, stage.now, transactional=transactional)
    if state is DEAD:
        assert error is GONE
    elif transactional and (who is OUTSIDER or END_WITH_COMMIT[who][state] is BUSY):
        assert error is NONE  # whoever commits in a transaction need not be a member (KIP-447)
    else:
        assert error is END_WITH_COMMIT[who][state]


def test_a_commit_extends_the_session() -> None:
    stage = SCENES[STABLE]()
    stage.advance(5000)
    member = group(stage).roster.members[stage.client("follower").member_id]
    group(stage).check_commit(member.member_id, None, group(stage).generation, stage.now)
    assert member.deadline_ms == stage.now_ms + 10_000


@pytest.mark.parametrize(
    ("state", "offsets", "itself"),
    [
        (EMPTY, NONE, NONE),
        (PREPARING, NONE, ErrorCode.non_empty_group),
        (COMPLETING, NONE, ErrorCode.non_empty_group),
        (STABLE, NONE, ErrorCode.non_empty_group),
        (DEAD, ErrorCode.group_id_not_found, ErrorCode.group_id_not_found),
    ],
    ids=lambda each: each.name.lower(),
)
def test_what_may_be_deleted(
    state: ClassicGroupState, offsets: ErrorCode, itself: ErrorCode
) -> None:
    found = group(SCENES[state]())
    assert found.check_offset_delete() is offsets
    assert found.check_delete() is itself


def test_offsets_of_members_that_are_not_consumers_stay() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=0))
    stage.joins("A", protocol_type="connect")
    assert group(stage).check_offset_delete() is ErrorCode.non_empty_group


@pytest.mark.parametrize("state", ClassicGroupState, ids=lambda each: each.name.lower())
def test_when_offsets_expire(state: ClassicGroupState) -> None:
    """KIP-211: since the group is empty, or since each commit where we know who reads what."""
    found = group(SCENES[state]())
    rules = {
        EMPTY: OffsetExpirationRule(since_ms=WALL_MS),
        STABLE: OffsetExpirationRule(since_ms=None),
    }
    assert found.expiry_rule() == rules.get(state)


def test_offsets_of_members_that_are_not_understood_do_not_expire() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=0))
    stage.joins("A", protocol_type="connect")
    stage.sync("A")
    assert group(stage).state is STABLE
    assert group(stage).expiry_rule() is None


def test_a_simple_groups_offsets_expire_since_their_commits() -> None:
    stage = Stage()
    stage.commit("admin", {("t", 0): 1}, member_id="", generation=-1)
    assert group(stage).is_simple
    assert group(stage).expiry_rule() == OffsetExpirationRule(since_ms=None)


def test_a_first_join_waits_for_who_was_given_an_id() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=5))
    stage.join("A", instance_id="a")
    stage.advance(4)
    stage.join("B")
    assert len(group(stage).roster.pending) == 1
    stage.advance(2)
    assert group(stage).state is PREPARING
    stage.join("B")
    stage.advance(10)
    assert (group(stage).generation, len(group(stage).roster)) == (1, 2)


def test_a_first_join_waits_once_for_who_then_does_not_come() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=5))
    stage.join("A", instance_id="a")
    stage.join("B")
    stage.advance(10)
    assert (group(stage).generation, len(group(stage).roster)) == (1, 1)


def test_subscriptions_follow_the_generations() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=0))
    stage.joins("A", topics=("t", "u"))
    assert group(stage).is_subscribed_to("u")
    assert not group(stage).is_subscribed_to("v")
    stage.joins("A", topics=("v",))
    assert [group(stage).is_subscribed_to(each) for each in "tuv"] == [False, False, True]
    stage.leaves("A")
    assert group(stage).is_empty
    assert not group(stage).is_subscribed_to("v")


STORED = ClassicGroupMetadata(
    "consumer",
    4,
    "range",
    "m1",
    WALL_MS,
    tuple(
        ClassicMemberMetadata(f"m{number}", None, "c", "/h", -1, 7000, metadata("t"), b"x")
        for number in (1, 2, 3)
    ),
)


def loaded(stored: ClassicGroupMetadata, **config: int) -> ClassicGroup:
    return ClassicGroup.from_stored("g", stored, GroupConfig(**config))


def test_a_loaded_group_is_stable_and_its_sessions_begin() -> None:
    stage = Stage()
    found = loaded(STORED)
    assert found.state is STABLE
    assert found.next_deadline_ms is None
    assert not found.on_group_loaded(stage.now).notes
    assert found.next_deadline_ms == START_MS + 7000
    assert found.stored(found._assignments()) == replace(
        STORED, members=tuple(replace(each, rebalance_timeout_ms=7000) for each in STORED.members)
    ), "what was written before there were rebalance timeouts gets its session's"


@pytest.mark.parametrize(
    "impossible",
    [
        replace(STORED, members=(STORED.members[0], STORED.members[0])),
        replace(STORED, members=tuple(replace(m, instance_id="i") for m in STORED.members)),
        replace(STORED, protocol=None),
        replace(STORED, protocol_type=""),
    ],
)
def test_a_group_that_contradicts_itself_is_not_loaded(impossible: ClassicGroupMetadata) -> None:
    with pytest.raises(KafkaError):
        loaded(impossible)


def test_a_group_without_its_leader_is_led_by_the_first() -> None:
    assert loaded(replace(STORED, leader="gone")).roster.leader_id == "m1"


def test_a_group_that_was_loaded_empty() -> None:
    found = loaded(ClassicGroupMetadata("consumer", 4, None, None, -1))
    assert (found.state, found.generation, found.state_timestamp_ms) == (EMPTY, 4, None)
    assert found.expiry_rule() == OffsetExpirationRule(since_ms=None), (
        "since when it is empty is not known"
    )
    assert not found.is_simple
    assert loaded(ClassicGroupMetadata("", 0, None, None, 5)).is_simple


def test_a_group_larger_than_the_limit_that_was_lowered_joins_again() -> None:
    found = loaded(STORED, max_size=2)
    found.on_group_loaded(Stage().now)
    assert found.state is PREPARING


def test_nobody_is_removed_by_a_name_that_was_not_given() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=0))
    stage.joins("A", instance_id="")  # an instance id, if a strange one
    left = stage.leave(LeavingMember("", None)).respond
    assert left.members[0].error is UNKNOWN
    assert stage.leave(LeavingMember("", "")).respond.members[0].error is NONE


def test_an_admin_removes_a_member_that_waits() -> None:
    stage = SCENES[COMPLETING]()
    waiting = stage.sync("static")
    assert waiting.is_waiting
    stage.leave(LeavingMember("", "s"))
    assert waiting.respond.error is UNKNOWN


def test_one_who_asks_twice_is_answered_twice() -> None:
    stage = SCENES[PREPARING]()
    first = stage.join("leader")
    second = stage.join("leader")
    assert first.respond.error is BUSY
    assert second.is_waiting
    stage = SCENES[COMPLETING]()
    first = stage.sync("static")
    second = stage.sync("static")
    assert first.respond.error is BUSY
    assert second.is_waiting


@pytest.mark.parametrize("code", [None, ErrorCode.coordinator_not_available])
def test_a_static_member_that_waited_long_for_its_place_has_a_session(
    code: ErrorCode | None,
) -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=0))
    stage.joins("A", instance_id="a")
    stage.sync("A")
    stage.holding = True
    stage.client("A").member_id = ""
    back = stage.join("A")
    stage.advance(20_000)  # longer than a session: offsets.commit.timeout.ms may be
    assert back.is_waiting
    stage.release(code=code)
    assert not back.is_waiting
    stage.holding = False
    stage.advance(10_000)
    assert stage.group is not None
    assert not len(stage.group.roster)
