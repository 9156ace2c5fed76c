"""The life of a move: one table, no I/O (KIP-113, J-05 to J-12).

    queued → copying ⇄ swapping → moved
       └────────┴─────────┴──→ cancelled, failed, converted

`swapping` is the swap. It is not left by a cancellation or a shutdown: it is over in moments, and
half of it is no state that a directory should be in. What becomes of the `.move` directory:

| action  | done                                                                                 |
|---------|--------------------------------------------------------------------------------------|
| START   | a thread is free: copy                                                               |
| COPY    | copy the next slice                                                                  |
| SWAP    | swap                                                                                 |
| FINISH  | the old directory is removed later (J-10)                                            |
| DISCARD | `.move` is removed: nobody wants it, or its directory is full                        |
| LEAVE   | `.move` stays as it is, for the next start to judge (J-13, J-15): a directory failed |
| CONVERT | `.move` becomes a cleanly closed `-future`, from which the next start goes on        |
| WAIT    | the swap is under way: its end decides                                               |
| IGNORE  | it is over                                                                           |
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class MoveState(Enum):
    QUEUED = "queued"
    """Waits for a thread (J-06); `.move` is there."""
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
    THREAD_FREE = "a thread is free"
    BEHIND = "there is more to copy"
    CAUGHT_UP = "little is left to copy"
    SWITCHED = "the log is in its new directory"
    CANCEL = "cancelled, redirected or deleted"
    SOURCE_FAILED = "the source's directory is offline, or the log is"
    DESTINATION_FAILED = "the destination's directory is offline"
    DESTINATION_FULL = "the destination is full"
    STOP = "the node stops"


class MoveAction(Enum):
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
"""What is not here cannot happen; what is over ignores everything."""


class InvalidMoveEvent(AssertionError):
    """An event that cannot come in this state: a bug of the mover's."""


def next_move_action(state: MoveState, event: MoveEvent) -> tuple[MoveState, MoveAction]:
    """The next state, and what is to be done. Raises Impossible."""
    if state.is_over:
        return state, MoveAction.IGNORE
    try:
        return MOVE_TRANSITIONS[state, event]
    except KeyError:
        raise InvalidMoveEvent(f"{event.value}, while {state.value}") from None
