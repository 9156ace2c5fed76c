"""Every event in every state has the action of the table: all 95 cells."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from odradek.broker.groups.classic_group import ClassicGroup
from odradek.broker.groups.classic_group_states import (
    ACTIONS,
    VALID_TRANSITIONS,
    ClassicGroupAction,
    ClassicGroupEvent,
    ClassicGroupState,
)
from odradek.broker.groups.messages import AssignmentWritten
from odradek.protocol.errors import ErrorCode
from tests.broker.groups.group_shard_driver import Request, Stage
from tests.broker.groups.groups_in_each_state import SCENES, group, preparing


@dataclass
class Seen:
    """State before the event, and its result."""

    stage: Stage
    state_before: ClassicGroupState
    generation_before: int
    response: Any
    waits: bool

    @property
    def group(self) -> ClassicGroup:
        return group(self.stage)

    @property
    def error(self) -> ErrorCode | None:
        return getattr(self.response, "error", None)

    @property
    def state(self) -> ClassicGroupState:
        return self.group.state


# Events


def newcomer_asks(stage: Stage) -> Request:
    return stage.join("another")


def newcomer_joins(stage: Stage) -> Request:
    return stage.join("another", version=3)


def pending_joins(stage: Stage) -> Request:
    given = stage.join("another")
    if stage.client("another").member_id == "":  # a dead group returns no member ids
        assert given.response.error is ErrorCode.coordinator_not_available
        stage.client("another").member_id = "given-before"
    return stage.join("another")


def static_returns(stage: Stage) -> Request:
    stage.client("static").member_id = ""
    if group(
        stage
    ).is_empty:  # no member has the instance id: the cell is not reachable by a request
        stage.client("static").member_id = "static-of-old"
    return stage.join("static")


def leader_rejoins(stage: Stage) -> Request:
    return stage.join("leader")


def follower_rejoins(stage: Stage) -> Request:
    return stage.join("follower")


def member_changes(stage: Stage) -> Request:
    return stage.join("follower", topics=("other",))


def leader_syncs(stage: Stage) -> Request:
    return stage.sync("leader", leader=b"A", follower=b"B")


def follower_syncs(stage: Stage) -> Request:
    return stage.sync("static")


def member_heartbeats(stage: Stage) -> Request:
    stage.advance(1)
    stage.client("follower").generation = group(stage).generation
    return stage.heartbeat("follower")


def early_heartbeat(stage: Stage) -> Request:
    group(stage).rebalance.heartbeat_delay_until_ms = stage.now_ms + 100
    return member_heartbeats(stage)


def heartbeat_delay_ends(stage: Stage) -> Request:
    request = early_heartbeat(stage)
    stage.advance(99)
    return request


def members_leave(stage: Stage) -> Request:
    return stage.leaves("follower")


def tick_with(change: Callable[[Stage, ClassicGroup], None]) -> Callable[[Stage], None]:
    def happen(stage: Stage) -> None:
        change(stage, group(stage))
        stage.do(group(stage).tick(stage.now))

    return happen


def member_expires(stage: Stage, of: ClassicGroup) -> None:
    expiring = of.members.by_id.get(stage.client("static").member_id)
    if expiring is not None:
        expiring.deadline_ms = stage.now_ms


def pending_expires(stage: Stage, of: ClassicGroup) -> None:
    of.members.pending_join_members["given-out"] = stage.now_ms


def join_time_is_up(stage: Stage, of: ClassicGroup) -> None:
    of.rebalance.join_deadline_ms = stage.now_ms


def sync_time_is_up(stage: Stage, of: ClassicGroup) -> None:
    if of.members.by_id:
        of.members.pending_sync_members = {stage.client("static").member_id: None}
    of.rebalance.sync_deadline_ms = stage.now_ms


def settle(stage: Stage, *, lost: bool) -> None:
    completion = AssignmentWritten(
        "g", group(stage).generation, {stage.client("follower").member_id: b"B"}
    )
    if lost:
        code = ErrorCode.coordinator_not_available
        stage.do(group(stage).append_failed(completion, code, stage.now, written=False))
    else:
        stage.do(group(stage).appended(completion, stage.now))


HAPPEN: dict[ClassicGroupEvent, Callable[[Stage], Request | None]] = {
    ClassicGroupEvent.MEMBER_ID_REQUIRED: newcomer_asks,
    ClassicGroupEvent.NEW_MEMBER_JOINS: newcomer_joins,
    ClassicGroupEvent.PENDING_MEMBER_JOINS: pending_joins,
    ClassicGroupEvent.STATIC_MEMBER_REJOINS: static_returns,
    ClassicGroupEvent.LEADER_REJOINS: leader_rejoins,
    ClassicGroupEvent.FOLLOWER_REJOINS: follower_rejoins,
    ClassicGroupEvent.MEMBER_REJOINS_WITH_NEW_METADATA: member_changes,
    ClassicGroupEvent.LEADER_SYNCS: leader_syncs,
    ClassicGroupEvent.FOLLOWER_SYNCS: follower_syncs,
    ClassicGroupEvent.MEMBER_HEARTBEATS: member_heartbeats,
    ClassicGroupEvent.HEARTBEAT_AFTER_INITIAL_REBALANCE: early_heartbeat,
    ClassicGroupEvent.DELAYED_HEARTBEAT_TIMEOUT: heartbeat_delay_ends,
    ClassicGroupEvent.MEMBERS_LEAVE: members_leave,
    ClassicGroupEvent.SESSION_TIMEOUT: tick_with(member_expires),
    ClassicGroupEvent.PENDING_MEMBER_TIMEOUT: tick_with(pending_expires),
    ClassicGroupEvent.JOIN_TIMEOUT: tick_with(join_time_is_up),
    ClassicGroupEvent.SYNC_TIMEOUT: tick_with(sync_time_is_up),
    ClassicGroupEvent.ASSIGNMENT_WRITE_COMMITTED: lambda stage: settle(stage, lost=False),
    ClassicGroupEvent.ASSIGNMENT_WRITE_FAILED: lambda stage: settle(stage, lost=True),
}


# Observable effects of each action


def gives_id(seen: Seen) -> None:
    assert seen.error is ErrorCode.member_id_required
    assert seen.response.member_id in seen.group.members.pending_join_members
    assert seen.state is seen.state_before


def admits(seen: Seen) -> None:
    assert seen.stage.client("another").name in "".join(seen.group.members.by_id)
    assert seen.state in (ClassicGroupState.PREPARING, ClassicGroupState.COMPLETING)
    assert seen.waits == (seen.state is ClassicGroupState.PREPARING)


def updates(seen: Seen) -> None:
    assert seen.waits
    assert seen.state is ClassicGroupState.PREPARING


def repeats(seen: Seen) -> None:
    assert seen.error is ErrorCode.none
    assert seen.response.generation == seen.generation_before == seen.group.generation
    assert seen.state is seen.state_before


def replaces(seen: Seen) -> None:
    assert seen.waits
    assert seen.state is ClassicGroupState.PREPARING
    assert seen.group.members.static_members["s"] != "s-3"
    assert "s-3" not in seen.group.members.by_id


def replaces_and_stores(seen: Seen) -> None:
    assert seen.error is ErrorCode.none
    assert seen.state is ClassicGroupState.STABLE
    assert seen.group.generation == seen.generation_before
    assert "s-3" not in seen.group.members.by_id


def awaits_assignment(seen: Seen) -> None:
    assert seen.waits
    assert seen.state is ClassicGroupState.COMPLETING


def stores_assignment(seen: Seen) -> None:
    assert seen.response.assignment == b"A"
    assert seen.state is ClassicGroupState.STABLE
    value = seen.stage.log[-1].value
    assert value.generation == seen.generation_before  # type: ignore[union-attr]


def settles(seen: Seen) -> None:
    assert seen.state is ClassicGroupState.STABLE
    follower = seen.stage.client("follower").member_id
    assert seen.group.members.by_id[follower].assignment == b"B"
    assert all(not each.is_waiting for each in seen.stage.requests if each.what == "sync")


def responses_assignment(seen: Seen) -> None:
    assert seen.error is ErrorCode.none
    assert seen.response.assignment in (b"a", b"c")
    assert seen.state is ClassicGroupState.STABLE


def stays_alive(seen: Seen) -> None:
    assert seen.error is ErrorCode.none
    extended(seen)


def awaits_others(seen: Seen) -> None:
    assert seen.waits
    extended(seen)


def responses_heartbeats(seen: Seen) -> None:
    assert seen.error is ErrorCode.none
    assert seen.state is seen.state_before


def stays_alive_and_rejoins(seen: Seen) -> None:
    assert seen.error is ErrorCode.rebalance_in_progress
    extended(seen)


def extended(seen: Seen) -> None:
    member = seen.group.members.by_id[seen.stage.client("follower").member_id]
    assert member.deadline_ms == seen.stage.now_ms + member.session_timeout_ms
    assert seen.state is seen.state_before


def must_rejoin(seen: Seen) -> None:
    assert seen.error is ErrorCode.rebalance_in_progress
    assert seen.state is seen.state_before


def rebalances(seen: Seen) -> None:
    assert seen.state is ClassicGroupState.PREPARING
    assert not seen.group.members.pending_sync_members
    assert all(not each.is_waiting for each in seen.stage.requests if each.what == "sync")


def rebalances_with_error(seen: Seen) -> None:
    rebalances(seen)
    follower = [each for each in seen.stage.requests if each.what == "sync"][-1]
    assert follower.response.error is ErrorCode.coordinator_not_available


def stays_in_join_phase(seen: Seen) -> None:
    """Check that the join phase continues, because not all members have joined."""
    assert seen.state is ClassicGroupState.PREPARING
    assert seen.group.generation == seen.generation_before


def completes_join(seen: Seen) -> None:
    assert seen.state is ClassicGroupState.COMPLETING
    assert seen.group.generation == seen.generation_before + 1
    assert all(not each.is_waiting for each in seen.stage.requests if each.what == "join")


def drops_unsynced(seen: Seen) -> None:
    assert seen.state is ClassicGroupState.PREPARING
    assert seen.stage.client("static").member_id not in seen.group.members.by_id


def refuses(seen: Seen) -> None:
    assert (
        seen.error is ErrorCode.unknown_member_id
        or seen.response.members[0].error is ErrorCode.unknown_member_id
    )
    assert seen.state is seen.state_before


def is_unavailable(seen: Seen) -> None:
    assert seen.error is ErrorCode.coordinator_not_available
    assert seen.state is ClassicGroupState.DEAD


def does_nothing(seen: Seen) -> None:
    assert seen.state is seen.state_before
    assert seen.group.generation == seen.generation_before


LOOKS: dict[ClassicGroupAction, Callable[[Seen], None]] = {
    ClassicGroupAction.ASSIGN_MEMBER_ID: gives_id,
    ClassicGroupAction.ADD_MEMBER: admits,
    ClassicGroupAction.UPDATE: updates,
    ClassicGroupAction.RETURN_CURRENT_GENERATION: repeats,
    ClassicGroupAction.REPLACE: replaces,
    ClassicGroupAction.REPLACE_AND_REBALANCE: replaces,
    ClassicGroupAction.REPLACE_AND_STORE: replaces_and_stores,
    ClassicGroupAction.AWAIT_ASSIGNMENT: awaits_assignment,
    ClassicGroupAction.STORE_ASSIGNMENT: stores_assignment,
    ClassicGroupAction.COMPLETE_SYNC: settles,
    ClassicGroupAction.RETURN_ASSIGNMENT: responses_assignment,
    ClassicGroupAction.EXTEND_SESSION: stays_alive,
    ClassicGroupAction.DELAY_HEARTBEAT: awaits_others,
    ClassicGroupAction.COMPLETE_WAITING_HEARTBEATS: responses_heartbeats,
    ClassicGroupAction.EXTEND_SESSION_AND_REJOIN: stays_alive_and_rejoins,
    ClassicGroupAction.REJOIN: must_rejoin,
    ClassicGroupAction.REBALANCE: rebalances,
    ClassicGroupAction.REBALANCE_WITH_ERROR: rebalances_with_error,
    ClassicGroupAction.COMPLETE_IF_READY: stays_in_join_phase,
    ClassicGroupAction.COMPLETE_IF_ALL_JOINED: stays_in_join_phase,
    ClassicGroupAction.COMPLETE_JOIN: completes_join,
    ClassicGroupAction.REMOVE_PENDING_SYNC_MEMBERS: drops_unsynced,
    ClassicGroupAction.UNKNOWN_MEMBER: refuses,
    ClassicGroupAction.UNAVAILABLE: is_unavailable,
    ClassicGroupAction.NOTHING: does_nothing,
}


@pytest.mark.parametrize(
    ("event", "state"),
    list(product(ClassicGroupEvent, ClassicGroupState)),
    ids=lambda each: each.name.lower(),
)
def test_table_of_all_events_and_states(event: ClassicGroupEvent, state: ClassicGroupState) -> None:
    stage = SCENES[state]()
    before = group(stage)
    assert before.state is state
    generation = before.generation
    request = HAPPEN[event](stage)
    response = None if request is None else request.response
    waits = request is not None and request.is_waiting
    LOOKS[ACTIONS[event][state]](Seen(stage, state, generation, response, waits))


def test_table_covers_all_events_and_states() -> None:
    assert {event: set(row) for event, row in ACTIONS.items()} == {
        e: set(ClassicGroupState) for e in ClassicGroupEvent
    }
    used = {step for row in ACTIONS.values() for step in row.values()}
    assert used == set(ClassicGroupAction), "an action that no cell uses"
    assert set(VALID_TRANSITIONS) == set(ClassicGroupState)


@pytest.mark.parametrize(("state", "to"), list(product(ClassicGroupState, ClassicGroupState)))
def test_only_valid_transitions_are_accepted(
    state: ClassicGroupState, to: ClassicGroupState
) -> None:
    stage = SCENES[state]()
    if to in VALID_TRANSITIONS[state]:
        group(stage).rebalance.transition_to(to, stage.now)
        assert group(stage).state is to
        assert group(stage).state_timestamp_ms == stage.now.wall_ms
    else:
        with pytest.raises(AssertionError):
            group(stage).rebalance.transition_to(to, stage.now)


def test_join_phase_completes_when_last_absent_member_leaves() -> None:
    """COMPLETE_IF_READY and COMPLETE_IF_ALL_JOINED when all other members have joined."""
    for end in (
        lambda stage: stage.leaves("static"),
        lambda stage: stage.advance(10_000),
    ):
        stage = preparing()
        for name in ("leader", "follower"):
            stage.joins(name)
        assert group(stage).state is ClassicGroupState.PREPARING
        end(stage)
        assert group(stage).state is ClassicGroupState.COMPLETING


PAGE = Path(__file__).parents[3] / "docs" / "groups.md"


def table_as_markdown() -> str:
    lines = [
        f"| | {' | '.join(state.value for state in ClassicGroupState)} |",
        "|---|" + "---|" * len(ClassicGroupState),
    ]
    for event, row in ACTIONS.items():
        cells = (
            "" if row[state] is ClassicGroupAction.NOTHING else row[state].value
            for state in ClassicGroupState
        )
        lines.append(f"| **{event.value}** | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_docs_page_has_table() -> None:
    text = PAGE.read_text()
    before, start, rest = text.partition("ODRADEK_REWRITE=1 -->\n")
    _, end, after = rest.partition("<!-- the end of the table -->")
    wanted = f"{before}{start}{table_as_markdown()}{end}{after}"
    if os.environ.get("ODRADEK_REWRITE"):
        PAGE.write_text(wanted)
    assert text == wanted
