"""The life of a move: one table, no I/O (KIP-113, J-05 to J-12).

    queued → copying ⇄ crossing → moved
       └────────┴─────────┴──→ cancelled, failed, parked

`crossing` is the swap. It is not left by a cancellation or a shutdown: it is over in moments, and
half of it is no state that a directory should be in. What becomes of the `.move` directory:

| action  | done                                                                                 |
|---------|--------------------------------------------------------------------------------------|
| START   | a thread is free: copy                                                               |
| COPY    | copy the next slice                                                                  |
| CROSS   | swap                                                                                 |
| FINISH  | the old directory is removed later (J-10)                                            |
| DISCARD | `.move` is removed: nobody wants it, or its directory is full                        |
| LEAVE   | `.move` stays as it is, for the next start to judge (J-13, J-15): a directory failed |
| PARK    | `.move` becomes a cleanly closed `-future`, from which the next start goes on        |
| WAIT    | the swap is under way: its end decides                                               |
| IGNORE  | it is over                                                                           |
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    QUEUED = "queued"
    """Waits for a thread (J-06); `.move` is there."""
    COPYING = "copying"
    CROSSING = "crossing"
    MOVED = "moved"
    CANCELLED = "cancelled"
    FAILED = "failed"
    PARKED = "parked"

    @property
    def is_over(self) -> bool:
        return self in _OVER


_OVER = frozenset({State.MOVED, State.CANCELLED, State.FAILED, State.PARKED})


class Event(Enum):
    THREAD_FREE = "a thread is free"
    BEHIND = "there is more to copy"
    CAUGHT_UP = "little is left to copy"
    SWITCHED = "the log is in its new directory"
    CANCEL = "cancelled, redirected or deleted"
    SOURCE_FAILED = "the source's directory is offline, or the log is"
    DESTINATION_FAILED = "the destination's directory is offline"
    NO_ROOM = "the destination is full"
    STOP = "the node stops"


class Action(Enum):
    START = "start"
    COPY = "copy"
    CROSS = "cross"
    FINISH = "finish"
    DISCARD = "discard"
    LEAVE = "leave"
    PARK = "rename_moved_for_kafka"
    WAIT = "wait"
    IGNORE = "ignore"


S, E, A = State, Event, Action

TABLE: Mapping[tuple[State, Event], tuple[State, Action]] = {
    (S.QUEUED, E.THREAD_FREE): (S.COPYING, A.START),
    (S.QUEUED, E.CANCEL): (S.CANCELLED, A.DISCARD),
    (S.QUEUED, E.SOURCE_FAILED): (S.FAILED, A.LEAVE),
    (S.QUEUED, E.DESTINATION_FAILED): (S.FAILED, A.LEAVE),
    (S.QUEUED, E.STOP): (S.PARKED, A.PARK),
    (S.COPYING, E.BEHIND): (S.COPYING, A.COPY),
    (S.COPYING, E.CAUGHT_UP): (S.CROSSING, A.CROSS),
    (S.COPYING, E.CANCEL): (S.CANCELLED, A.DISCARD),
    (S.COPYING, E.SOURCE_FAILED): (S.FAILED, A.LEAVE),
    (S.COPYING, E.DESTINATION_FAILED): (S.FAILED, A.LEAVE),
    (S.COPYING, E.NO_ROOM): (S.FAILED, A.DISCARD),
    (S.COPYING, E.STOP): (S.PARKED, A.PARK),
    (S.CROSSING, E.BEHIND): (S.COPYING, A.COPY),
    (S.CROSSING, E.SWITCHED): (S.MOVED, A.FINISH),
    (S.CROSSING, E.CANCEL): (S.CROSSING, A.WAIT),
    (S.CROSSING, E.SOURCE_FAILED): (S.FAILED, A.LEAVE),
    (S.CROSSING, E.DESTINATION_FAILED): (S.FAILED, A.LEAVE),
    (S.CROSSING, E.NO_ROOM): (S.FAILED, A.DISCARD),
    (S.CROSSING, E.STOP): (S.CROSSING, A.WAIT),
}
"""What is not here cannot happen; what is over ignores everything."""


class Impossible(AssertionError):
    """An event that cannot come in this state: a bug of the mover's."""


def step(state: State, event: Event) -> tuple[State, Action]:
    """The next state, and what is to be done. Raises Impossible."""
    if state.is_over:
        return state, Action.IGNORE
    try:
        return TABLE[state, event]
    except KeyError:
        raise Impossible(f"{event.value}, while {state.value}") from None
