"""States of a classic group and the action for each event in each state."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class ClassicGroupState(enum.Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroupEvent(enum.Enum):
    """What happens to a group, as finely as the table tells it apart."""

    MEMBER_ID_REQUIRED = "a dynamic member joins without an id, and needs one first"
    NEW_MEMBER_JOINS = "a new member joins and is given its id on the way"
    PENDING_MEMBER_JOINS = "a new member joins with the id it was given"
    STATIC_MEMBER_REJOINS = "a static member joins again without a member id"
    LEADER_REJOINS = "the leader joins again, its metadata unchanged"
    FOLLOWER_REJOINS = "another member joins again, its metadata unchanged"
    MEMBER_REJOINS_WITH_NEW_METADATA = "a member joins again with other metadata"
    LEADER_SYNCS = "the leader hands in the assignments"
    FOLLOWER_SYNCS = "another member asks for its assignment"
    MEMBER_HEARTBEATS = "a member says that it is alive"
    HEARTBEAT_DURING_INITIAL_ARRIVAL = (
        "the same, while a group's first members may still be arriving"
    )
    INITIAL_ARRIVAL_TIMEOUT = "the time for them to arrive is over"
    MEMBERS_LEAVE = "members, or pending ones, leave"
    SESSION_TIMEOUT = "nothing was heard of a member for its session timeout"
    PENDING_MEMBER_TIMEOUT = "nobody joined with an id that was given out"
    JOIN_TIMEOUT = "the time to join is over"
    SYNC_TIMEOUT = "the time to sync is over, and not everyone has"
    ASSIGNMENT_WRITE_COMMITTED = "this generation's assignments are in the log"
    ASSIGNMENT_WRITE_FAILED = "this generation's assignments could not be written"


class ClassicGroupAction(enum.Enum):
    """What is done about an event."""

    ASSIGN_MEMBER_ID = "answer with an id to join with (MEMBER_ID_REQUIRED)"
    ADD_MEMBER = "add the member, and rebalance"
    UPDATE = "take over its metadata, and rebalance"
    RETURN_CURRENT_GENERATION = "answer with the generation that it is in"
    REPLACE = "put it in its old place"
    REPLACE_AND_REBALANCE = "put it in its old place, and rebalance"
    REPLACE_AND_STORE = "put it in its old place; no rebalance unless the protocol changes"
    AWAIT_ASSIGNMENT = "keep it waiting for the leader"
    STORE_ASSIGNMENT = "write the assignments, then answer everyone"
    COMPLETE_SYNC = "give everyone their assignment"
    RETURN_ASSIGNMENT = "answer with its assignment"
    EXTEND_SESSION = "extend its session"
    DELAY_HEARTBEAT = "extend its session, and keep it waiting for who may still come"
    COMPLETE_WAITING_HEARTBEATS = "answer the heartbeats that wait"
    EXTEND_SESSION_AND_REJOIN = "extend its session, and tell it to join (REBALANCE_IN_PROGRESS)"
    REJOIN = "tell it to join (REBALANCE_IN_PROGRESS)"
    REBALANCE = "rebalance"
    REBALANCE_WITH_ERROR = "tell those who wait what went wrong, and rebalance"
    COMPLETE_IF_READY = "complete the join if everyone is there and it is not the group's first"
    COMPLETE_IF_ALL_JOINED = "complete the join if everyone is there"
    COMPLETE_JOIN = "begin the next generation with those who are there"
    REMOVE_PENDING_SYNC_MEMBERS = "remove who has not synced, and rebalance"
    REFUSE = "answer UNKNOWN_MEMBER_ID"
    UNAVAILABLE = "answer COORDINATOR_NOT_AVAILABLE"
    NOTHING = "nothing"


def _table() -> Mapping[ClassicGroupEvent, Mapping[ClassicGroupState, ClassicGroupAction]]:
    s, e = ClassicGroupAction, ClassicGroupEvent
    # fmt: off
    rows = {
        #                        Empty       Preparing                Completing               Stable                 Dead
        e.MEMBER_ID_REQUIRED:  (s.ASSIGN_MEMBER_ID, s.ASSIGN_MEMBER_ID,               s.ASSIGN_MEMBER_ID,               s.ASSIGN_MEMBER_ID,             s.UNAVAILABLE),
        e.NEW_MEMBER_JOINS:        (s.ADD_MEMBER,   s.ADD_MEMBER,                 s.ADD_MEMBER,                 s.ADD_MEMBER,               s.UNAVAILABLE),
        e.PENDING_MEMBER_JOINS:  (s.ADD_MEMBER,   s.ADD_MEMBER,                 s.ADD_MEMBER,                 s.ADD_MEMBER,               s.UNAVAILABLE),
        e.STATIC_MEMBER_REJOINS: (s.REFUSE,  s.REPLACE,               s.REPLACE_AND_REBALANCE, s.REPLACE_AND_STORE,   s.UNAVAILABLE),
        e.LEADER_REJOINS:        (s.REFUSE,  s.UPDATE,                s.RETURN_CURRENT_GENERATION,                s.UPDATE,              s.UNAVAILABLE),
        e.FOLLOWER_REJOINS:      (s.REFUSE,  s.UPDATE,                s.RETURN_CURRENT_GENERATION,                s.RETURN_CURRENT_GENERATION,              s.UNAVAILABLE),
        e.MEMBER_REJOINS_WITH_NEW_METADATA:        (s.REFUSE,  s.UPDATE,                s.UPDATE,                s.UPDATE,              s.UNAVAILABLE),
        e.LEADER_SYNCS:          (s.REFUSE,  s.REJOIN,                s.STORE_ASSIGNMENT,      s.RETURN_ASSIGNMENT,   s.UNAVAILABLE),
        e.FOLLOWER_SYNCS:        (s.REFUSE,  s.REJOIN,                s.AWAIT_ASSIGNMENT,      s.RETURN_ASSIGNMENT,   s.UNAVAILABLE),
        e.MEMBER_HEARTBEATS:     (s.REFUSE,  s.EXTEND_SESSION_AND_REJOIN, s.EXTEND_SESSION,            s.EXTEND_SESSION,          s.UNAVAILABLE),
        e.HEARTBEAT_DURING_INITIAL_ARRIVAL:       (s.REFUSE,  s.EXTEND_SESSION_AND_REJOIN, s.EXTEND_SESSION,            s.DELAY_HEARTBEAT,        s.UNAVAILABLE),
        e.INITIAL_ARRIVAL_TIMEOUT:          (s.NOTHING, s.NOTHING,               s.NOTHING,               s.COMPLETE_WAITING_HEARTBEATS,   s.NOTHING),
        e.MEMBERS_LEAVE:         (s.NOTHING, s.COMPLETE_IF_READY,     s.REBALANCE,             s.REBALANCE,           s.UNAVAILABLE),
        e.SESSION_TIMEOUT:        (s.NOTHING, s.COMPLETE_IF_ALL_JOINED, s.REBALANCE,            s.REBALANCE,           s.NOTHING),
        e.PENDING_MEMBER_TIMEOUT:       (s.NOTHING, s.COMPLETE_IF_ALL_JOINED, s.NOTHING,              s.NOTHING,             s.NOTHING),
        e.JOIN_TIMEOUT:       (s.NOTHING, s.COMPLETE_JOIN,         s.NOTHING,               s.NOTHING,             s.NOTHING),
        e.SYNC_TIMEOUT:       (s.NOTHING, s.NOTHING,               s.REMOVE_PENDING_SYNC_MEMBERS,         s.REMOVE_PENDING_SYNC_MEMBERS,       s.NOTHING),
        e.ASSIGNMENT_WRITE_COMMITTED:     (s.NOTHING, s.NOTHING,               s.COMPLETE_SYNC,                s.NOTHING,             s.NOTHING),
        e.ASSIGNMENT_WRITE_FAILED:       (s.NOTHING, s.NOTHING,               s.REBALANCE_WITH_ERROR,  s.NOTHING,             s.NOTHING),
    }
    # fmt: on
    return {event: dict(zip(ClassicGroupState, row, strict=True)) for event, row in rows.items()}


ACTIONS = _table()
"""Event, then state: what is done."""

VALID_TRANSITIONS: Mapping[ClassicGroupState, frozenset[ClassicGroupState]] = {
    ClassicGroupState.EMPTY: frozenset({ClassicGroupState.PREPARING, ClassicGroupState.DEAD}),
    ClassicGroupState.PREPARING: frozenset(
        {ClassicGroupState.COMPLETING, ClassicGroupState.EMPTY, ClassicGroupState.DEAD}
    ),
    ClassicGroupState.COMPLETING: frozenset(
        {ClassicGroupState.STABLE, ClassicGroupState.PREPARING, ClassicGroupState.DEAD}
    ),
    ClassicGroupState.STABLE: frozenset({ClassicGroupState.PREPARING, ClassicGroupState.DEAD}),
    ClassicGroupState.DEAD: frozenset(),
}
"""Which states can follow on a state."""
