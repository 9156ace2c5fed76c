"""Every input of the two tables of moves: the state machine and the startup decisions."""

from __future__ import annotations

import itertools

import pytest

from odradek.seams.files import Path
from odradek.storage.log_manager.interrupted_moves import (
    MoveLeftover,
    StartupAction,
    decide_startup,
)
from odradek.storage.moving.move_states import (
    MOVE_TRANSITIONS,
    InvalidMoveEvent,
    MoveAction,
    MoveEvent,
    MoveState,
    next_move_action,
)

A, B, C = Path("/a"), Path("/b"), Path("/c")
ENDINGS = {
    MoveState.MOVED: {MoveAction.FINISH},
    MoveState.CANCELLED: {MoveAction.DISCARD},
    MoveState.FAILED: {MoveAction.LEAVE, MoveAction.DISCARD},
    MoveState.CONVERTED: {MoveAction.CONVERT},
}


def test_every_state_and_event_has_a_transition_or_raises() -> None:
    for state, event in itertools.product(MoveState, MoveEvent):
        if state.is_over:
            assert next_move_action(state, event) == (state, MoveAction.IGNORE)
        elif (state, event) in MOVE_TRANSITIONS:
            after, action = next_move_action(state, event)
            assert action in ENDINGS.get(after, {action})
            assert not after.is_over or action is not MoveAction.WAIT
        else:
            with pytest.raises(InvalidMoveEvent):
                next_move_action(state, event)


@pytest.mark.parametrize("state", [state for state in MoveState if not state.is_over])
def test_external_events_are_accepted_in_every_state(state: MoveState) -> None:
    for event in (
        MoveEvent.CANCEL,
        MoveEvent.STOP,
        MoveEvent.SOURCE_FAILED,
        MoveEvent.DESTINATION_FAILED,
    ):
        after, action = next_move_action(state, event)
        if state is MoveState.SWAPPING and event in (MoveEvent.CANCEL, MoveEvent.STOP):
            assert (after, action) == (state, MoveAction.WAIT)  # J-09: it is over in moments
        else:
            assert after.is_over


def test_only_a_completed_swap_ends_in_moved() -> None:
    """J-08: only the end of the swap makes the future replica the current replica."""
    ways = [
        (state, event)
        for (state, event), (after, _) in MOVE_TRANSITIONS.items()
        if after is MoveState.MOVED
    ]
    assert ways == [(MoveState.SWAPPING, MoveEvent.SWITCHED)]


def test_failed_directory_leaves_future_replica() -> None:
    """J-11, J-15: `.move` is kept, and a later start decides."""
    for (_, event), (_, action) in MOVE_TRANSITIONS.items():
        if event in (MoveEvent.SOURCE_FAILED, MoveEvent.DESTINATION_FAILED):
            assert action is MoveAction.LEAVE


def at(*directories: Path) -> list[MoveLeftover]:
    return [MoveLeftover(each, "t-0.move") for each in directories]


def verdicts(
    live: list[Path], *directories: Path, bad: bool, elsewhere: bool
) -> list[StartupAction]:
    decisions = decide_startup(live, at(*directories), is_any_offline=bad, is_elsewhere=elsewhere)
    assert [each.leftover for each in decisions] == at(*directories)
    return [each.action for each in decisions]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("bad", [False, True])
def test_startup_decision_table(bad: bool, elsewhere: bool) -> None:
    """J-13, J-14, J-15."""

    def of(live: list[Path], *copies: Path) -> list[StartupAction]:
        return verdicts(live, *copies, bad=bad, elsewhere=elsewhere)

    assert of([A]) == of([]) == of([A, B]) == []
    assert of([A], B) == of([B], A) == [StartupAction.RESUME]  # J-13
    assert of([A], A) == [StartupAction.DISCARD]
    assert of([A], A, B) == [StartupAction.DISCARD, StartupAction.RESUME]
    assert of([A], B, C) == [StartupAction.RESUME, StartupAction.DISCARD]
    assert of([A, B], C) == [StartupAction.LEAVE]
    assert of([A, B], B, C) == [StartupAction.LEAVE] * 2
    is_whole = not bad and not elsewhere
    assert of([], B) == [StartupAction.PROMOTE if is_whole else StartupAction.OFFLINE]  # J-14, J-15
    assert of([], B, C) == [StartupAction.OFFLINE] * 2
