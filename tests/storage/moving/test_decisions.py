"""The two tables of a move, every input of each: its life, and what a start makes of what is left."""

from __future__ import annotations

import itertools

import pytest

from odradek.seams.files import Path
from odradek.storage.moving.startup import Left, Verdict, decide
from odradek.storage.moving.states import TABLE, Action, Event, Impossible, State, step

A, B, C = Path("/a"), Path("/b"), Path("/c")
ENDINGS = {
    State.MOVED: {Action.FINISH},
    State.CANCELLED: {Action.DISCARD},
    State.FAILED: {Action.LEAVE, Action.DISCARD},
    State.PARKED: {Action.PARK},
}


def test_every_state_meets_every_event() -> None:
    for state, event in itertools.product(State, Event):
        if state.is_over:
            assert step(state, event) == (state, Action.IGNORE)
        elif (state, event) in TABLE:
            after, action = step(state, event)
            assert action in ENDINGS.get(after, {action})
            assert not after.is_over or action is not Action.WAIT
        else:
            with pytest.raises(Impossible):
                step(state, event)


@pytest.mark.parametrize("state", [state for state in State if not state.is_over])
def test_what_comes_from_outside_can_come_at_any_time(state: State) -> None:
    for event in (Event.CANCEL, Event.STOP, Event.SOURCE_FAILED, Event.DESTINATION_FAILED):
        after, action = step(state, event)
        if state is State.CROSSING and event in (Event.CANCEL, Event.STOP):
            assert (after, action) == (state, Action.WAIT)  # J-09: it is over in moments
        else:
            assert after.is_over


def test_only_a_swap_moves() -> None:
    """J-08: nothing but the end of the swap makes the copy the log."""
    ways = [(state, event) for (state, event), (after, _) in TABLE.items() if after is State.MOVED]
    assert ways == [(State.CROSSING, Event.SWITCHED)]


def test_a_failed_directory_keeps_what_it_has() -> None:
    """J-11, J-15: `.move` is left for a start that knows more."""
    for (_, event), (_, action) in TABLE.items():
        if event in (Event.SOURCE_FAILED, Event.DESTINATION_FAILED):
            assert action is Action.LEAVE


def at(*directories: Path) -> list[Left]:
    return [Left(each, "t-0.move") for each in directories]


def verdicts(live: list[Path], *directories: Path, bad: bool, elsewhere: bool) -> list[Verdict]:
    decisions = decide(live, at(*directories), any_bad=bad, is_elsewhere=elsewhere)
    assert [each.left for each in decisions] == at(*directories)
    return [each.verdict for each in decisions]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("bad", [False, True])
def test_j13_j14_j15_every_start(bad: bool, elsewhere: bool) -> None:
    def of(live: list[Path], *copies: Path) -> list[Verdict]:
        return verdicts(live, *copies, bad=bad, elsewhere=elsewhere)

    assert of([A]) == of([]) == of([A, B]) == []
    assert of([A], B) == of([B], A) == [Verdict.RESUME]  # J-13
    assert of([A], A) == [Verdict.DISCARD]
    assert of([A], A, B) == [Verdict.DISCARD, Verdict.RESUME]
    assert of([A], B, C) == [Verdict.RESUME, Verdict.DISCARD]
    assert of([A, B], C) == [Verdict.LEAVE]
    assert of([A, B], B, C) == [Verdict.LEAVE] * 2
    is_whole = not bad and not elsewhere
    assert of([], B) == [Verdict.PROMOTE if is_whole else Verdict.OFFLINE]  # J-14, J-15
    assert of([], B, C) == [Verdict.OFFLINE] * 2
