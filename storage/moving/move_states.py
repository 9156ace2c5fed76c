"""State machine of a move between log directories: one table, no I/O (KIP-113, J-05 to J-12).

    queued → copying ⇄ swapping → moved
       └────────┴─────────┴──→ cancelled, failed, converted

Cancellation and shutdown do not interrupt `swapping`: it takes a moment, and a half-done swap is not a valid state
of a directory. Actions for the move and its `.move` directory:

| action  | meaning                                                                                 |
|---------|-----------------------------------------------------------------------------------------|
| START   | a thread is free: copy                                                                  |
| COPY    | copy the next slice                                                                     |
| SWAP    | swap                                                                                    |
| FINISH  | the old directory is removed later (J-10)                                               |
| DISCARD | `.move` is removed: the move was cancelled, or the destination is full                  |
| LEAVE   | a directory failed: `.move` is kept, and the next start decides (J-13, J-15)            |
| CONVERT | `.move` becomes a cleanly closed `-future`, from which the next start continues         |
| WAIT    | the swap is in progress; its end determines the state                                   |
| IGNORE  | the move is over                                                                        |
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class MoveState(Enum):
    """State of a move; the last four are final."""

    QUEUED = "queued"
    """Waits for a thread (J-06); `.move` exists."""
    COPYING = "copying"
    SWAPPING = "swapping"
    MOVED = "moved"
    CANCELLED = "cancelled"
    FAILED = "failed"
    CONVERTED = "converted"

    @property
    def is_over(self) -> bool:
        return self in _OVER


_OVER = frozenset({MoveState.MOVED, MoveState.CANCELLED, MoveState.FAILED, MoveState.CONVERTED})


class MoveEvent(Enum):
    """An event of a move; the value is its description in log lines."""

    THREAD_FREE = "a thread is free"
    BEHIND = "more data to copy"
    CAUGHT_UP = "little data is left to copy"
    SWITCHED = "the log was switched to the future replica"
    CANCEL = "cancelled, replaced by another move, or partition deleted"
    SOURCE_FAILED = "the source directory or the log is offline"
    DESTINATION_FAILED = "the destination directory is offline"
    DESTINATION_FULL = "the destination is full"
    STOP = "shutdown"


class MoveAction(Enum):
    """Action that follows from an event; see the table of the module."""

    START = "start"
    COPY = "copy"
    SWAP = "swap"
    FINISH = "finish"
    DISCARD = "discard"
    LEAVE = "leave"
    CONVERT = "convert"
    WAIT = "wait"
    IGNORE = "ignore"


S, E, A = MoveState, MoveEvent, MoveAction

MOVE_TRANSITIONS: Mapping[tuple[MoveState, MoveEvent], tuple[MoveState, MoveAction]] = {
    (S.QUEUED, E.THREAD_FREE): (S.COPYING, A.START),
    (S.QUEUED, E.CANCEL): (S.CANCELLED, A.DISCARD),
    (S.QUEUED, E.SOURCE_FAILED): (S.FAILED, A.LEAVE),
    (S.QUEUED, E.DESTINATION_FAILED): (S.FAILED, A.LEAVE),
    (S.QUEUED, E.STOP): (S.CONVERTED, A.CONVERT),
    (S.COPYING, E.BEHIND): (S.COPYING, A.COPY),
    (S.COPYING, E.CAUGHT_UP): (S.SWAPPING, A.SWAP),
    (S.COPYING, E.CANCEL): (S.CANCELLED, A.DISCARD),
    (S.COPYING, E.SOURCE_FAILED): (S.FAILED, A.LEAVE),
    (S.COPYING, E.DESTINATION_FAILED): (S.FAILED, A.LEAVE),
    (S.COPYING, E.DESTINATION_FULL): (S.FAILED, A.DISCARD),
    (S.COPYING, E.STOP): (S.CONVERTED, A.CONVERT),
    (S.SWAPPING, E.BEHIND): (S.COPYING, A.COPY),
    (S.SWAPPING, E.SWITCHED): (S.MOVED, A.FINISH),
    (S.SWAPPING, E.CANCEL): (S.SWAPPING, A.WAIT),
    (S.SWAPPING, E.SOURCE_FAILED): (S.FAILED, A.LEAVE),
    (S.SWAPPING, E.DESTINATION_FAILED): (S.FAILED, A.LEAVE),
    (S.SWAPPING, E.DESTINATION_FULL): (S.FAILED, A.DISCARD),
    (S.SWAPPING, E.STOP): (S.SWAPPING, A.WAIT),
}
"""All transitions of states that are not final. Other pairs raise InvalidMoveEvent."""


class InvalidMoveEvent(AssertionError):
    """An event that is not possible in this state: a bug of the mover."""


def next_move_action(state: MoveState, event: MoveEvent) -> tuple[MoveState, MoveAction]:
    """Return the next state and the action. Raises InvalidMoveEvent."""
    if state.is_over:
        return state, MoveAction.IGNORE
    try:
        return MOVE_TRANSITIONS[state, event]
    except KeyError:
        raise InvalidMoveEvent(f"event {event.name} in state {state.name}") from None
