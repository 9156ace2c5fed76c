"""The classic group's states, what can happen in them, and what is done about it: one table."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class State(enum.Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Event(enum.Enum):
    """What happens to a group, as finely as the table tells it apart."""

    NEWCOMER_ASKS_FOR_ID = "a dynamic member joins without an id, and needs one first"
    NEWCOMER_JOINS = "a new member joins and is given its id on the way"
    PENDING_MEMBER_JOINS = "a new member joins with the id it was given"
    STATIC_MEMBER_RETURNS = "a static member joins again without a member id"
    LEADER_REJOINS = "the leader joins again, its metadata unchanged"
    FOLLOWER_REJOINS = "another member joins again, its metadata unchanged"
    MEMBER_CHANGES = "a member joins again with other metadata"
    LEADER_SYNCS = "the leader hands in the assignments"
    FOLLOWER_SYNCS = "another member asks for its assignment"
    MEMBER_HEARTBEATS = "a member says that it is alive"
    EARLY_HEARTBEAT = "the same, while a group's first members may still be arriving"
    ARRIVAL_ENDS = "the time for them to arrive is over"
    MEMBERS_LEAVE = "members, or pending ones, leave"
    MEMBER_EXPIRES = "nothing was heard of a member for its session timeout"
    PENDING_EXPIRES = "nobody joined with an id that was given out"
    JOIN_TIME_IS_UP = "the time to join is over"
    SYNC_TIME_IS_UP = "the time to sync is over, and not everyone has"
    ASSIGNMENT_STORED = "this generation's assignments are in the log"
    ASSIGNMENT_LOST = "this generation's assignments could not be written"


class Step(enum.Enum):
    """What is done about an event."""

    GIVE_ID = "answer with an id to join with (MEMBER_ID_REQUIRED)"
    ADMIT = "add the member, and rebalance"
    UPDATE = "take over its metadata, and rebalance"
    REPEAT = "answer with the generation that it is in"
    REPLACE = "put it in its old place"
    REPLACE_AND_REBALANCE = "put it in its old place, and rebalance"
    REPLACE_AND_STORE = "put it in its old place; no rebalance unless the protocol changes"
    AWAIT_ASSIGNMENT = "keep it waiting for the leader"
    STORE_ASSIGNMENT = "write the assignments, then answer everyone"
    SETTLE = "give everyone their assignment"
    RESPONSE_ASSIGNMENT = "answer with its assignment"
    STAY_ALIVE = "extend its session"
    AWAIT_OTHERS = "extend its session, and keep it waiting for who may still come"
    RESPONSE_HEARTBEATS = "answer the heartbeats that wait"
    STAY_ALIVE_AND_REJOIN = "extend its session, and tell it to join (REBALANCE_IN_PROGRESS)"
    REJOIN = "tell it to join (REBALANCE_IN_PROGRESS)"
    REBALANCE = "rebalance"
    REBALANCE_WITH_ERROR = "tell those who wait what went wrong, and rebalance"
    COMPLETE_IF_READY = "complete the join if everyone is there and it is not the group's first"
    COMPLETE_IF_ALL_JOINED = "complete the join if everyone is there"
    COMPLETE_JOIN = "begin the next generation with those who are there"
    DROP_UNSYNCED = "remove who has not synced, and rebalance"
    REFUSE = "answer UNKNOWN_MEMBER_ID"
    UNAVAILABLE = "answer COORDINATOR_NOT_AVAILABLE"
    NOTHING = "nothing"


def _table() -> Mapping[Event, Mapping[State, Step]]:
    s, e = Step, Event
    # fmt: off
    rows = {
        #                        Empty       Preparing                Completing               Stable                 Dead
        e.NEWCOMER_ASKS_FOR_ID:  (s.GIVE_ID, s.GIVE_ID,               s.GIVE_ID,               s.GIVE_ID,             s.UNAVAILABLE),
        e.NEWCOMER_JOINS:        (s.ADMIT,   s.ADMIT,                 s.ADMIT,                 s.ADMIT,               s.UNAVAILABLE),
        e.PENDING_MEMBER_JOINS:  (s.ADMIT,   s.ADMIT,                 s.ADMIT,                 s.ADMIT,               s.UNAVAILABLE),
        e.STATIC_MEMBER_RETURNS: (s.REFUSE,  s.REPLACE,               s.REPLACE_AND_REBALANCE, s.REPLACE_AND_STORE,   s.UNAVAILABLE),
        e.LEADER_REJOINS:        (s.REFUSE,  s.UPDATE,                s.REPEAT,                s.UPDATE,              s.UNAVAILABLE),
        e.FOLLOWER_REJOINS:      (s.REFUSE,  s.UPDATE,                s.REPEAT,                s.REPEAT,              s.UNAVAILABLE),
        e.MEMBER_CHANGES:        (s.REFUSE,  s.UPDATE,                s.UPDATE,                s.UPDATE,              s.UNAVAILABLE),
        e.LEADER_SYNCS:          (s.REFUSE,  s.REJOIN,                s.STORE_ASSIGNMENT,      s.RESPONSE_ASSIGNMENT,   s.UNAVAILABLE),
        e.FOLLOWER_SYNCS:        (s.REFUSE,  s.REJOIN,                s.AWAIT_ASSIGNMENT,      s.RESPONSE_ASSIGNMENT,   s.UNAVAILABLE),
        e.MEMBER_HEARTBEATS:     (s.REFUSE,  s.STAY_ALIVE_AND_REJOIN, s.STAY_ALIVE,            s.STAY_ALIVE,          s.UNAVAILABLE),
        e.EARLY_HEARTBEAT:       (s.REFUSE,  s.STAY_ALIVE_AND_REJOIN, s.STAY_ALIVE,            s.AWAIT_OTHERS,        s.UNAVAILABLE),
        e.ARRIVAL_ENDS:          (s.NOTHING, s.NOTHING,               s.NOTHING,               s.RESPONSE_HEARTBEATS,   s.NOTHING),
        e.MEMBERS_LEAVE:         (s.NOTHING, s.COMPLETE_IF_READY,     s.REBALANCE,             s.REBALANCE,           s.UNAVAILABLE),
        e.MEMBER_EXPIRES:        (s.NOTHING, s.COMPLETE_IF_ALL_JOINED, s.REBALANCE,            s.REBALANCE,           s.NOTHING),
        e.PENDING_EXPIRES:       (s.NOTHING, s.COMPLETE_IF_ALL_JOINED, s.NOTHING,              s.NOTHING,             s.NOTHING),
        e.JOIN_TIME_IS_UP:       (s.NOTHING, s.COMPLETE_JOIN,         s.NOTHING,               s.NOTHING,             s.NOTHING),
        e.SYNC_TIME_IS_UP:       (s.NOTHING, s.NOTHING,               s.DROP_UNSYNCED,         s.DROP_UNSYNCED,       s.NOTHING),
        e.ASSIGNMENT_STORED:     (s.NOTHING, s.NOTHING,               s.SETTLE,                s.NOTHING,             s.NOTHING),
        e.ASSIGNMENT_LOST:       (s.NOTHING, s.NOTHING,               s.REBALANCE_WITH_ERROR,  s.NOTHING,             s.NOTHING),
    }
    # fmt: on
    return {event: dict(zip(State, row, strict=True)) for event, row in rows.items()}


TABLE = _table()
"""Event, then state: what is done."""

FOLLOWS: Mapping[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING, State.DEAD}),
    State.PREPARING: frozenset({State.COMPLETING, State.EMPTY, State.DEAD}),
    State.COMPLETING: frozenset({State.STABLE, State.PREPARING, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING, State.DEAD}),
    State.DEAD: frozenset(),
}
"""Which states can follow on a state."""
