"""Every event in every state does what the table says: all 95 cells, no more, no fewer."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from odradek.broker.groups.actions import Assigned
from odradek.broker.groups.classic import ClassicGroup
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.states import FOLLOWS, TABLE, Event, State, Step
from odradek.protocol.errors import ErrorCode
from tests.broker.groups.stage import Request, Stage

CONFIG = GroupConfig(initial_rebalance_delay_ms=0)


def stable() -> Stage:
    """A leader, a follower and a static member, in one generation."""
    stage = Stage(CONFIG)
    for name in ("leader", "follower"):
        stage.joins(name)
    stage.joins("static", instance_id="s")
    stage.joins("leader")
    stage.joins("follower")
    for name in ("follower", "static"):
        stage.sync(name)
    stage.sync("leader", leader=b"a", follower=b"b", static=b"c")
    assert group(stage).state is State.STABLE
    return stage


def empty() -> Stage:
    stage = stable()
    for name in ("leader", "follower", "static"):
        stage.leaves(name)
    return stage


def preparing() -> Stage:
    stage = stable()
    stage.joins("newcomer")
    return stage


def completing() -> Stage:
    stage = preparing()
    for name in ("leader", "follower", "static"):
        stage.joins(name)
    stage.sync("follower")
    return stage


def dead() -> Stage:
    stage = stable()
    stage.do(group(stage).end(ErrorCode.not_coordinator, stage.now))
    return stage


SCENES: dict[State, Callable[[], Stage]] = {
    State.EMPTY: empty,
    State.PREPARING: preparing,
    State.COMPLETING: completing,
    State.STABLE: stable,
    State.DEAD: dead,
}


def group(stage: Stage) -> ClassicGroup:
    found = stage.group
    assert found is not None
    return found


@dataclass
class Seen:
    """What there was before the event, and what came of it."""

    stage: Stage
    state_before: State
    generation_before: int
    respond: Any
    waits: bool

    @property
    def group(self) -> ClassicGroup:
        return group(self.stage)

    @property
    def error(self) -> ErrorCode | None:
        return getattr(self.respond, "error", None)

    @property
    def state(self) -> State:
        return self.group.state


# How to make each event happen


def newcomer_asks(stage: Stage) -> Request:
    return stage.join("another")


def newcomer_joins(stage: Stage) -> Request:
    return stage.join("another", version=3)


def pending_joins(stage: Stage) -> Request:
    given = stage.join("another")
    if stage.client("another").member_id == "":  # a dead group gives no ids
        assert given.respond.error is ErrorCode.coordinator_not_available
        stage.client("another").member_id = "given-before"
    return stage.join("another")


def static_returns(stage: Stage) -> Request:
    stage.client("static").member_id = ""
    if group(stage).is_empty:  # nobody has the name: the cell can't be reached from outside
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
    group(stage).arrival_ends_ms = stage.now_ms + 100
    return member_heartbeats(stage)


def arrival_ends(stage: Stage) -> Request:
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
    expiring = of.roster.members.get(stage.client("static").member_id)
    if expiring is not None:
        expiring.deadline_ms = stage.now_ms


def pending_expires(stage: Stage, of: ClassicGroup) -> None:
    of.roster.pending["given-out"] = stage.now_ms


def join_time_is_up(stage: Stage, of: ClassicGroup) -> None:
    of._join_deadline_ms = stage.now_ms


def sync_time_is_up(stage: Stage, of: ClassicGroup) -> None:
    if of.roster.members:
        of.roster.unsynced = {stage.client("static").member_id: None}
    of._sync_deadline_ms = stage.now_ms


def settle(stage: Stage, *, lost: bool) -> None:
    then = Assigned("g", group(stage).generation, {stage.client("follower").member_id: b"B"})
    if lost:
        code = ErrorCode.coordinator_not_available
        stage.do(group(stage).append_failed(then, code, stage.now, written=False))
    else:
        stage.do(group(stage).appended(then, stage.now))


HAPPEN: dict[Event, Callable[[Stage], Request | None]] = {
    Event.NEWCOMER_ASKS_FOR_ID: newcomer_asks,
    Event.NEWCOMER_JOINS: newcomer_joins,
    Event.PENDING_MEMBER_JOINS: pending_joins,
    Event.STATIC_MEMBER_RETURNS: static_returns,
    Event.LEADER_REJOINS: leader_rejoins,
    Event.FOLLOWER_REJOINS: follower_rejoins,
    Event.MEMBER_CHANGES: member_changes,
    Event.LEADER_SYNCS: leader_syncs,
    Event.FOLLOWER_SYNCS: follower_syncs,
    Event.MEMBER_HEARTBEATS: member_heartbeats,
    Event.EARLY_HEARTBEAT: early_heartbeat,
    Event.ARRIVAL_ENDS: arrival_ends,
    Event.MEMBERS_LEAVE: members_leave,
    Event.MEMBER_EXPIRES: tick_with(member_expires),
    Event.PENDING_EXPIRES: tick_with(pending_expires),
    Event.JOIN_TIME_IS_UP: tick_with(join_time_is_up),
    Event.SYNC_TIME_IS_UP: tick_with(sync_time_is_up),
    Event.ASSIGNMENT_STORED: lambda stage: settle(stage, lost=False),
    Event.ASSIGNMENT_LOST: lambda stage: settle(stage, lost=True),
}


# What each step looks like from outside


def gives_id(seen: Seen) -> None:
    assert seen.error is ErrorCode.member_id_required
    assert seen.respond.member_id in seen.group.roster.pending
    assert seen.state is seen.state_before


def admits(seen: Seen) -> None:
    assert seen.stage.client("another").name in "".join(seen.group.roster.members)
    assert seen.state in (State.PREPARING, State.COMPLETING)
    assert seen.waits == (seen.state is State.PREPARING)


def updates(seen: Seen) -> None:
    assert seen.waits
    assert seen.state is State.PREPARING


def repeats(seen: Seen) -> None:
    assert seen.error is ErrorCode.none
    assert seen.respond.generation == seen.generation_before == seen.group.generation
    assert seen.state is seen.state_before


def replaces(seen: Seen) -> None:
    assert seen.waits
    assert seen.state is State.PREPARING
    assert seen.group.roster.static["s"] != "s-3"
    assert "s-3" not in seen.group.roster.members


def replaces_and_stores(seen: Seen) -> None:
    assert seen.error is ErrorCode.none
    assert seen.state is State.STABLE
    assert seen.group.generation == seen.generation_before
    assert "s-3" not in seen.group.roster.members


def awaits_assignment(seen: Seen) -> None:
    assert seen.waits
    assert seen.state is State.COMPLETING


def stores_assignment(seen: Seen) -> None:
    assert seen.respond.assignment == b"A"
    assert seen.state is State.STABLE
    value = seen.stage.log[-1].value
    assert value.generation == seen.generation_before  # type: ignore[union-attr]


def settles(seen: Seen) -> None:
    assert seen.state is State.STABLE
    follower = seen.stage.client("follower").member_id
    assert seen.group.roster.members[follower].assignment == b"B"
    assert all(not each.is_waiting for each in seen.stage.requests if each.what == "sync")


def responses_assignment(seen: Seen) -> None:
    assert seen.error is ErrorCode.none
    assert seen.respond.assignment in (b"a", b"c")
    assert seen.state is State.STABLE


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
    member = seen.group.roster.members[seen.stage.client("follower").member_id]
    assert member.deadline_ms == seen.stage.now_ms + member.session_timeout_ms
    assert seen.state is seen.state_before


def told_to_rejoin(seen: Seen) -> None:
    assert seen.error is ErrorCode.rebalance_in_progress
    assert seen.state is seen.state_before


def rebalances(seen: Seen) -> None:
    assert seen.state is State.PREPARING
    assert not seen.group.roster.unsynced
    assert all(not each.is_waiting for each in seen.stage.requests if each.what == "sync")


def rebalances_with_error(seen: Seen) -> None:
    rebalances(seen)
    follower = [each for each in seen.stage.requests if each.what == "sync"][-1]
    assert follower.respond.error is ErrorCode.coordinator_not_available


def goes_on_waiting(seen: Seen) -> None:
    """Not everyone is there in this scene, so the join goes on."""
    assert seen.state is State.PREPARING
    assert seen.group.generation == seen.generation_before


def completes_join(seen: Seen) -> None:
    assert seen.state is State.COMPLETING
    assert seen.group.generation == seen.generation_before + 1
    assert all(not each.is_waiting for each in seen.stage.requests if each.what == "join")


def drops_unsynced(seen: Seen) -> None:
    assert seen.state is State.PREPARING
    assert seen.stage.client("static").member_id not in seen.group.roster.members


def refuses(seen: Seen) -> None:
    assert (
        seen.error is ErrorCode.unknown_member_id
        or seen.respond.members[0].error is ErrorCode.unknown_member_id
    )
    assert seen.state is seen.state_before


def is_unavailable(seen: Seen) -> None:
    assert seen.error is ErrorCode.coordinator_not_available
    assert seen.state is State.DEAD


def does_nothing(seen: Seen) -> None:
    assert seen.state is seen.state_before
    assert seen.group.generation == seen.generation_before


LOOKS: dict[Step, Callable[[Seen], None]] = {
    Step.GIVE_ID: gives_id,
    Step.ADMIT: admits,
    Step.UPDATE: updates,
    Step.REPEAT: repeats,
    Step.REPLACE: replaces,
    Step.REPLACE_AND_REBALANCE: replaces,
    Step.REPLACE_AND_STORE: replaces_and_stores,
    Step.AWAIT_ASSIGNMENT: awaits_assignment,
    Step.STORE_ASSIGNMENT: stores_assignment,
    Step.SETTLE: settles,
    Step.RESPONSE_ASSIGNMENT: responses_assignment,
    Step.STAY_ALIVE: stays_alive,
    Step.AWAIT_OTHERS: awaits_others,
    Step.RESPONSE_HEARTBEATS: responses_heartbeats,
    Step.STAY_ALIVE_AND_REJOIN: stays_alive_and_rejoins,
    Step.REJOIN: told_to_rejoin,
    Step.REBALANCE: rebalances,
    Step.REBALANCE_WITH_ERROR: rebalances_with_error,
    Step.COMPLETE_IF_READY: goes_on_waiting,
    Step.COMPLETE_IF_ALL_JOINED: goes_on_waiting,
    Step.COMPLETE_JOIN: completes_join,
    Step.DROP_UNSYNCED: drops_unsynced,
    Step.REFUSE: refuses,
    Step.UNAVAILABLE: is_unavailable,
    Step.NOTHING: does_nothing,
}


@pytest.mark.parametrize(
    ("event", "state"),
    list(product(Event, State)),
    ids=lambda each: each.name.lower(),
)
def test_every_cell(event: Event, state: State) -> None:
    stage = SCENES[state]()
    before = group(stage)
    assert before.state is state
    generation = before.generation
    request = HAPPEN[event](stage)
    respond = None if request is None else request.respond
    waits = request is not None and request.is_waiting
    LOOKS[TABLE[event][state]](Seen(stage, state, generation, respond, waits))


def test_the_table_is_whole() -> None:
    assert {event: set(row) for event, row in TABLE.items()} == {e: set(State) for e in Event}
    used = {step for row in TABLE.values() for step in row.values()}
    assert used == set(Step), "a step that no cell uses"
    assert set(FOLLOWS) == set(State)


@pytest.mark.parametrize(("state", "to"), list(product(State, State)))
def test_a_state_changes_only_into_those_that_follow(state: State, to: State) -> None:
    stage = SCENES[state]()
    if to in FOLLOWS[state]:
        group(stage)._become(to, stage.now)
        assert group(stage).state is to
        assert group(stage).state_timestamp_ms == stage.now.wall_ms
    else:
        with pytest.raises(AssertionError):
            group(stage)._become(to, stage.now)


def test_a_join_that_everyone_is_at_is_over_when_the_last_absent_one_leaves() -> None:
    """The other half of COMPLETE_IF_READY and COMPLETE_IF_ALL_JOINED."""
    for end in (
        lambda stage: stage.leaves("static"),
        lambda stage: stage.advance(10_000),
    ):
        stage = preparing()
        for name in ("leader", "follower"):
            stage.joins(name)
        assert group(stage).state is State.PREPARING
        end(stage)
        assert group(stage).state is State.COMPLETING


PAGE = Path(__file__).parents[3] / "docs" / "groups.md"


def table_as_markdown() -> str:
    lines = [f"| | {' | '.join(state.value for state in State)} |", "|---|" + "---|" * len(State)]
    for event, row in TABLE.items():
        cells = ("" if row[state] is Step.NOTHING else row[state].value for state in State)
        lines.append(f"| **{event.value}** | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_the_page_shows_the_table() -> None:
    text = PAGE.read_text()
    before, start, rest = text.partition("ODRADEK_REWRITE=1 -->\n")
    _, end, after = rest.partition("<!-- the end of the table -->")
    wanted = f"{before}{start}{table_as_markdown()}{end}{after}"
    if os.environ.get("ODRADEK_REWRITE"):
        PAGE.write_text(wanted)
    assert text == wanted
