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
    """Events of a classic group, as the table distinguishes them."""

    MEMBER_ID_REQUIRED = "dynamic member joins without a member id (JoinGroup v4 or later)"
    NEW_MEMBER_JOINS = (
        "new member joins without a member id (static member, or JoinGroup before v4)"
    )
    PENDING_MEMBER_JOINS = "pending member joins with its member id"
    STATIC_MEMBER_REJOINS = "static member rejoins without a member id"
    LEADER_REJOINS = "leader rejoins with unchanged metadata"
    FOLLOWER_REJOINS = "follower rejoins with unchanged metadata"
    MEMBER_REJOINS_WITH_NEW_METADATA = "member rejoins with changed metadata"
    LEADER_SYNCS = "leader sends SyncGroup with the assignments"
    FOLLOWER_SYNCS = "follower sends SyncGroup"
    MEMBER_HEARTBEATS = "member sends Heartbeat"
    HEARTBEAT_AFTER_INITIAL_REBALANCE = "member sends Heartbeat soon after the initial rebalance"
    DELAYED_HEARTBEAT_TIMEOUT = "delay of these heartbeats ends"
    MEMBERS_LEAVE = "members or pending members leave"
    SESSION_TIMEOUT = "session of a member expires"
    PENDING_MEMBER_TIMEOUT = "pending member does not join within its session timeout"
    JOIN_TIMEOUT = "join phase times out (rebalance timeout, or initial rebalance delay)"
    SYNC_TIMEOUT = "sync phase times out with members that have not sent SyncGroup"
    ASSIGNMENT_WRITE_COMMITTED = "assignments of this generation are committed"
    ASSIGNMENT_WRITE_FAILED = "assignments of this generation could not be written"


class ClassicGroupAction(enum.Enum):
    """Actions of the group coordinator."""

    ASSIGN_MEMBER_ID = "return a new member id with MEMBER_ID_REQUIRED"
    ADD_MEMBER = "add the member and rebalance"
    UPDATE = "update the metadata and rebalance"
    RETURN_CURRENT_GENERATION = "return the current generation"
    REPLACE = "replace the static member"
    REPLACE_AND_REBALANCE = "replace the static member and rebalance"
    REPLACE_AND_STORE = "replace the static member; rebalance only if the protocol changes"
    AWAIT_ASSIGNMENT = "wait for the leader's SyncGroup"
    STORE_ASSIGNMENT = "append the assignments"
    COMPLETE_SYNC = "return the assignments and become Stable"
    RETURN_ASSIGNMENT = "return the assignment"
    EXTEND_SESSION = "extend the session"
    DELAY_HEARTBEAT = "extend the session and delay the response"
    COMPLETE_WAITING_HEARTBEATS = "complete the delayed heartbeats"
    EXTEND_SESSION_AND_REJOIN = "extend the session and return REBALANCE_IN_PROGRESS"
    REJOIN = "return REBALANCE_IN_PROGRESS"
    REBALANCE = "rebalance"
    REBALANCE_WITH_ERROR = "fail the waiting SyncGroup requests and rebalance"
    COMPLETE_IF_READY = "complete the join phase if all other members have joined; during the initial rebalance, do nothing"
    COMPLETE_IF_ALL_JOINED = "complete the join phase if all other members have joined"
    COMPLETE_JOIN = (
        "complete the join phase with the members that joined (or extend the initial rebalance)"
    )
    REMOVE_PENDING_SYNC_MEMBERS = "remove these members and rebalance"
    UNKNOWN_MEMBER = "return UNKNOWN_MEMBER_ID"
    UNAVAILABLE = "return COORDINATOR_NOT_AVAILABLE"
    NOTHING = "nothing"


def _table() -> Mapping[ClassicGroupEvent, Mapping[ClassicGroupState, ClassicGroupAction]]:
    s, e = ClassicGroupAction, ClassicGroupEvent
    # fmt: off
    rows = {
        #                                     Empty               Preparing                    Completing                     Stable                         Dead
        e.MEMBER_ID_REQUIRED:                (s.ASSIGN_MEMBER_ID, s.ASSIGN_MEMBER_ID,          s.ASSIGN_MEMBER_ID,            s.ASSIGN_MEMBER_ID,            s.UNAVAILABLE),
        e.NEW_MEMBER_JOINS:                  (s.ADD_MEMBER,       s.ADD_MEMBER,                s.ADD_MEMBER,                  s.ADD_MEMBER,                  s.UNAVAILABLE),
        e.PENDING_MEMBER_JOINS:              (s.ADD_MEMBER,       s.ADD_MEMBER,                s.ADD_MEMBER,                  s.ADD_MEMBER,                  s.UNAVAILABLE),
        e.STATIC_MEMBER_REJOINS:             (s.UNKNOWN_MEMBER,   s.REPLACE,                   s.REPLACE_AND_REBALANCE,       s.REPLACE_AND_STORE,           s.UNAVAILABLE),
        e.LEADER_REJOINS:                    (s.UNKNOWN_MEMBER,   s.UPDATE,                    s.RETURN_CURRENT_GENERATION,   s.UPDATE,                      s.UNAVAILABLE),
        e.FOLLOWER_REJOINS:                  (s.UNKNOWN_MEMBER,   s.UPDATE,                    s.RETURN_CURRENT_GENERATION,   s.RETURN_CURRENT_GENERATION,   s.UNAVAILABLE),
        e.MEMBER_REJOINS_WITH_NEW_METADATA:  (s.UNKNOWN_MEMBER,   s.UPDATE,                    s.UPDATE,                      s.UPDATE,                      s.UNAVAILABLE),
        e.LEADER_SYNCS:                      (s.UNKNOWN_MEMBER,   s.REJOIN,                    s.STORE_ASSIGNMENT,            s.RETURN_ASSIGNMENT,           s.UNAVAILABLE),
        e.FOLLOWER_SYNCS:                    (s.UNKNOWN_MEMBER,   s.REJOIN,                    s.AWAIT_ASSIGNMENT,            s.RETURN_ASSIGNMENT,           s.UNAVAILABLE),
        e.MEMBER_HEARTBEATS:                 (s.UNKNOWN_MEMBER,   s.EXTEND_SESSION_AND_REJOIN, s.EXTEND_SESSION,              s.EXTEND_SESSION,              s.UNAVAILABLE),
        e.HEARTBEAT_AFTER_INITIAL_REBALANCE: (s.UNKNOWN_MEMBER,   s.EXTEND_SESSION_AND_REJOIN, s.EXTEND_SESSION,              s.DELAY_HEARTBEAT,             s.UNAVAILABLE),
        e.DELAYED_HEARTBEAT_TIMEOUT:         (s.NOTHING,          s.NOTHING,                   s.NOTHING,                     s.COMPLETE_WAITING_HEARTBEATS, s.NOTHING),
        e.MEMBERS_LEAVE:                     (s.NOTHING,          s.COMPLETE_IF_READY,         s.REBALANCE,                   s.REBALANCE,                   s.UNAVAILABLE),
        e.SESSION_TIMEOUT:                   (s.NOTHING,          s.COMPLETE_IF_ALL_JOINED,    s.REBALANCE,                   s.REBALANCE,                   s.NOTHING),
        e.PENDING_MEMBER_TIMEOUT:            (s.NOTHING,          s.COMPLETE_IF_ALL_JOINED,    s.NOTHING,                     s.NOTHING,                     s.NOTHING),
        e.JOIN_TIMEOUT:                      (s.NOTHING,          s.COMPLETE_JOIN,             s.NOTHING,                     s.NOTHING,                     s.NOTHING),
        e.SYNC_TIMEOUT:                      (s.NOTHING,          s.NOTHING,                   s.REMOVE_PENDING_SYNC_MEMBERS, s.REMOVE_PENDING_SYNC_MEMBERS, s.NOTHING),
        e.ASSIGNMENT_WRITE_COMMITTED:        (s.NOTHING,          s.NOTHING,                   s.COMPLETE_SYNC,               s.NOTHING,                     s.NOTHING),
        e.ASSIGNMENT_WRITE_FAILED:           (s.NOTHING,          s.NOTHING,                   s.REBALANCE_WITH_ERROR,        s.NOTHING,                     s.NOTHING),
    }
    # fmt: on
    return {event: dict(zip(ClassicGroupState, row, strict=True)) for event, row in rows.items()}


ACTIONS = _table()
"""Action by event and state."""

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
"""Valid next states."""
