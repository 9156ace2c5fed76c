"""Commits, deletions, expiration and loads of a classic group in each state."""

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
from tests.broker.groups.group_shard_driver import START_MS, WALL_MS, Stage, metadata
from tests.broker.groups.groups_in_each_state import SCENES, group

NONE = ErrorCode.none
UNKNOWN, FENCED = ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id
OLD, BUSY = ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress
GONE = ErrorCode.coordinator_not_available
EMPTY, PREPARING, COMPLETING, STABLE, DEAD = ClassicGroupState

MEMBER, OUTSIDER, STRANGER, OLDER, FENCED_ONE, NAMELESS = (
    "member of this generation",
    "no member",
    "unknown member",
    "member of an older generation",
    "fenced static member",
    "member id without generation",
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
def test_offset_commit_is_checked_against_member_and_state(
    who: str, state: ClassicGroupState, transactional: bool
) -> None:
    stage = SCENES[state]()
    found = group(stage)
    member_id = stage.client("follower").member_id
    fields: tuple[str, str | None, int] = {
        MEMBER: (member_id, None, found.generation),
        OUTSIDER: ("", None, -1),
        STRANGER: ("stranger", None, found.generation),
        OLDER: (member_id, None, found.generation - 1),
        FENCED_ONE: (member_id, "s", found.generation),
        NAMELESS: (member_id, None, -1),
    }[who]
    error = found.check_commit(*fields, stage.now, transactional=transactional)
    if state is DEAD:
        assert error is GONE
    elif transactional and (who is OUTSIDER or END_WITH_COMMIT[who][state] is BUSY):
        assert error is NONE  # a transactional commit does not need a member (KIP-447)
    else:
        assert error is END_WITH_COMMIT[who][state]


def test_offset_commit_extends_session() -> None:
    stage = SCENES[STABLE]()
    stage.advance(5000)
    member = group(stage).members.by_id[stage.client("follower").member_id]
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
def test_deletion_is_checked_against_group_state(
    state: ClassicGroupState, offsets: ErrorCode, itself: ErrorCode
) -> None:
    found = group(SCENES[state]())
    assert found.check_offset_delete() is offsets
    assert found.check_delete() is itself


def test_offset_delete_of_other_protocol_type_fails() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=0))
    stage.joins("A", protocol_type="connect")
    assert group(stage).check_offset_delete() is ErrorCode.non_empty_group


@pytest.mark.parametrize("state", ClassicGroupState, ids=lambda each: each.name.lower())
def test_offset_expiration_rule_by_state(state: ClassicGroupState) -> None:
    """KIP-211: from the time the group became empty, or from each commit if subscriptions are known."""
    found = group(SCENES[state]())
    rules = {
        EMPTY: OffsetExpirationRule(since_ms=WALL_MS),
        STABLE: OffsetExpirationRule(since_ms=None),
    }
    assert found.offset_expiration_rule() == rules.get(state)


def test_offsets_of_group_with_invalid_metadata_do_not_expire() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=0))
    stage.joins("A", protocol_type="connect")
    stage.sync("A")
    assert group(stage).state is STABLE
    assert group(stage).offset_expiration_rule() is None


def test_offsets_of_simple_group_expire_after_their_commit() -> None:
    stage = Stage()
    stage.commit("admin", {("t", 0): 1}, member_id="", generation=-1)
    assert group(stage).is_simple
    assert group(stage).offset_expiration_rule() == OffsetExpirationRule(since_ms=None)


def test_initial_rebalance_is_extended_for_pending_member() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=5))
    stage.join("A", instance_id="a")
    stage.advance(4)
    stage.join("B")
    assert len(group(stage).members.pending_join_members) == 1
    stage.advance(2)
    assert group(stage).state is PREPARING
    stage.join("B")
    stage.advance(10)
    assert (group(stage).generation, len(group(stage).members)) == (1, 2)


def test_initial_rebalance_is_extended_once_for_absent_pending_member() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=5))
    stage.join("A", instance_id="a")
    stage.join("B")
    stage.advance(10)
    assert (group(stage).generation, len(group(stage).members)) == (1, 1)


def test_subscriptions_are_updated_with_generation() -> None:
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
    return ClassicGroup.from_metadata("g", stored, GroupConfig(**config))


def test_loaded_group_is_stable_and_starts_sessions() -> None:
    stage = Stage()
    found = loaded(STORED)
    assert found.state is STABLE
    assert found.next_deadline_ms is None
    assert not found.on_group_loaded(stage.now).notes
    assert found.next_deadline_ms == START_MS + 7000
    assert found.to_metadata(found.current_assignments()) == replace(
        STORED, members=tuple(replace(each, rebalance_timeout_ms=7000) for each in STORED.members)
    ), "without a rebalance timeout in the record it is the session timeout"


@pytest.mark.parametrize(
    "impossible",
    [
        replace(STORED, members=(STORED.members[0], STORED.members[0])),
        replace(STORED, members=tuple(replace(m, instance_id="i") for m in STORED.members)),
        replace(STORED, protocol=None),
        replace(STORED, protocol_type=""),
    ],
)
def test_invalid_group_record_fails_load(impossible: ClassicGroupMetadata) -> None:
    with pytest.raises(KafkaError):
        loaded(impossible)


def test_loaded_group_without_leader_elects_first_member() -> None:
    assert loaded(replace(STORED, leader="gone")).members.leader_id == "m1"


def test_loaded_group_without_members_is_empty() -> None:
    found = loaded(ClassicGroupMetadata("consumer", 4, None, None, -1))
    assert (found.state, found.generation, found.state_timestamp_ms) == (EMPTY, 4, None)
    assert found.offset_expiration_rule() == OffsetExpirationRule(since_ms=None), (
        "the time at which it became empty is unknown"
    )
    assert not found.is_simple
    assert loaded(ClassicGroupMetadata("", 0, None, None, 5)).is_simple


def test_loaded_group_over_capacity_rebalances() -> None:
    found = loaded(STORED, max_size=2)
    found.on_group_loaded(Stage().now)
    assert found.state is PREPARING


def test_leave_group_without_member_and_instance_id_removes_no_member() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=0))
    stage.joins("A", instance_id="")  # an empty instance id
    left = stage.leave(LeavingMember("", None)).response
    assert left.members[0].error is UNKNOWN
    assert stage.leave(LeavingMember("", "")).response.members[0].error is NONE


def test_leave_group_of_waiting_member_completes_its_request() -> None:
    stage = SCENES[COMPLETING]()
    waiting = stage.sync("static")
    assert waiting.is_waiting
    stage.leave(LeavingMember("", "s"))
    assert waiting.response.error is UNKNOWN


def test_repeated_request_completes_first_one() -> None:
    stage = SCENES[PREPARING]()
    first = stage.join("leader")
    second = stage.join("leader")
    assert first.response.error is BUSY
    assert second.is_waiting
    stage = SCENES[COMPLETING]()
    first = stage.sync("static")
    second = stage.sync("static")
    assert first.response.error is BUSY
    assert second.is_waiting


@pytest.mark.parametrize("code", [None, ErrorCode.coordinator_not_available])
def test_static_member_replacement_extends_session_when_committed(
    code: ErrorCode | None,
) -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=0))
    stage.joins("A", instance_id="a")
    stage.sync("A")
    stage.holding = True
    stage.client("A").member_id = ""
    back = stage.join("A")
    stage.advance(20_000)  # longer than a session, as offsets.commit.timeout.ms may be
    assert back.is_waiting
    stage.release(code=code)
    assert not back.is_waiting
    stage.holding = False
    stage.advance(10_000)
    assert stage.group is not None
    assert not len(stage.group.members)
