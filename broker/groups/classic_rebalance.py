"""Rebalances, generations and timeouts of a classic group.

A request that can't complete is kept as its future. `tick` handles due deadlines;
`next_deadline_ms` is the time of the next one.

Invariants: every waiting JoinGroup, SyncGroup and Heartbeat completes by a deadline or a pending
append; generations only grow; a stable group equals the replay of its last record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from odradek.broker.groups.classic_group_members import ClassicGroupMember, ClassicGroupMembers
from odradek.broker.groups.classic_group_states import (
    ACTIONS,
    VALID_TRANSITIONS,
    ClassicGroupAction,
    ClassicGroupEvent,
    ClassicGroupState,
)
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.messages import (
    NO_ERROR,
    NO_MEMBER_ID,
    ClassicGroupMetadata,
    CoordinatorResult,
    EventTime,
    Future,
    GroupKey,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupResponse,
    Record,
    RecordAppend,
    SyncGroupResponse,
)
from odradek.broker.groups.subscription import CONSUMER_PROTOCOL, subscribed_topics
from odradek.protocol.errors import ErrorCode, KafkaError

NO_ASSIGNMENT = b""
REBALANCE_RETRY_MS_MIN = 100
"""A rebalance that nobody joined is tried again after the rebalance timeout, but not sooner."""


class InvalidClassicGroupRecord(KafkaError):
    """A group metadata record that violates an invariant of classic groups."""

    code = ErrorCode.corrupt_message


class Generations:
    """See the module."""

    def __init__(self, group_id: str, config: GroupConfig, now: EventTime) -> None:
        self.group_id = group_id
        self._config = config
        self.state = ClassicGroupState.EMPTY
        self.state_before = ClassicGroupState.DEAD
        self.state_timestamp_ms: int | None = now.wall_ms
        self.generation = 0
        self.protocol: str | None = None
        self.roster = ClassicGroupMembers()
        self.subscriptions: frozenset[str] | None = None
        """Topics that the members subscribe to; None where that is not known."""
        self._join_deadline_ms: int | None = None
        self._join_extension_ms: int | None = None
        """How much longer the first join may be extended; None if it is not the first."""
        self._new_member_added = False
        """Whether somebody joined the first join since, or was given an id to do so with."""
        self._sync_deadline_ms: int | None = None
        self.initial_arrival_deadline_ms = 0
        """Until when those who started together with the group's first members may arrive. Heartbeats
        of a stable group wait for them: who arrives has everyone join anew at once."""
        self.next_deadline_ms: int | None = None
        """Call `tick` at this time or soon after it; it may find nothing to do."""

    @classmethod
    def from_stored(cls, group_id: str, stored: ClassicGroupMetadata, config: GroupConfig) -> Self:
        """The group that a record describes. `on_group_loaded` starts the timers once all is loaded.

        Raises ImpossibleGroup for one that nobody can have written.
        """
        _check(stored)
        group = cls(group_id, config, EventTime(0, stored.state_timestamp_ms))
        group.generation = stored.generation
        group.protocol = stored.protocol
        is_led = any(each.member_id == stored.leader for each in stored.members)
        group.roster = ClassicGroupMembers(
            stored.protocol_type or None, stored.leader if is_led else None
        )
        recorded_ms = stored.state_timestamp_ms
        group.state_timestamp_ms = None if recorded_ms == -1 else recorded_ms
        for each in stored.members:
            rebalance_timeout_ms = each.rebalance_timeout_ms
            if rebalance_timeout_ms == -1:  # written before there was one
                rebalance_timeout_ms = each.session_timeout_ms
            member = ClassicGroupMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                rebalance_timeout_ms,
                each.session_timeout_ms,
                stored.protocol_type,
                ((stored.protocol or "", each.subscription),),
                each.assignment,
            )
            group.roster.add(member, None)
        group.state = ClassicGroupState.STABLE if stored.members else ClassicGroupState.EMPTY
        group._update_subscriptions()
        return group

    @classmethod
    def converted(
        cls,
        group_id: str,
        generation: int,
        members: Sequence[ClassicGroupMember],
        config: GroupConfig,
        now: EventTime,
    ) -> Self:
        """A stable group of those who were together in one of another kind. `on_group_loaded` starts it."""
        group = cls(group_id, config, now)
        group.generation = generation
        for each in members:
            group.roster.add(each, None)
        group.protocol = group.roster.select_protocol()
        group.state = ClassicGroupState.STABLE
        group._update_subscriptions()
        return group

    def rebalance(self, reason: str, now: EventTime) -> CoordinatorResult:
        """Start a rebalance for a reason outside the group."""
        result = CoordinatorResult()
        self._rebalance(reason, now, result)
        return result

    def on_group_loaded(self, now: EventTime) -> CoordinatorResult:
        """This node began to coordinate the group, whose state was loaded: sessions start anew."""
        result = CoordinatorResult()
        for member in self.roster.members.values():
            self._extend_session(member, now)
        if len(self.roster) > self._config.max_size:
            self._rebalance(
                f"the group is over its capacity of {self._config.max_size}", now, result
            )
        return result

    # What it is

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicGroupState.EMPTY

    @property
    def protocol_type(self) -> str | None:
        return self.roster.protocol_type

    def stored(self, assignments: Mapping[str, bytes]) -> ClassicGroupMetadata:
        """The present generation as it goes into the log."""
        protocol = self.protocol
        members = self.roster.members.values() if protocol is not None else ()
        return ClassicGroupMetadata(
            self.protocol_type or "",
            self.generation,
            protocol,
            self.roster.leader_id,
            -1 if self.state_timestamp_ms is None else self.state_timestamp_ms,
            tuple(
                each.stored(protocol or "", assignments.get(each.member_id, NO_ASSIGNMENT))
                for each in members
            ),
        )

    def waiters(self) -> Iterator[Future]:
        """Whoever waits for an answer."""
        for member in self.roster.members.values():
            if member.waiting_join is not None:
                yield member.waiting_join
            if member.waiting_sync is not None:
                yield member.waiting_sync
            if member.waiting_heartbeat is not None:
                yield member.waiting_heartbeat

    # From one generation to the next

    @property
    def _is_first_join(self) -> bool:
        """A group that was empty gives its members time to arrive before its first generation."""
        return (
            self.state is ClassicGroupState.PREPARING
            and self.state_before is ClassicGroupState.EMPTY
        )

    def _rebalance_or_complete(
        self, reason: str, now: EventTime, result: CoordinatorResult
    ) -> None:
        if self.state is ClassicGroupState.PREPARING:
            self._complete_if_ready(now, result)
        else:
            self._rebalance(reason, now, result)

    def _rebalance(self, reason: str, now: EventTime, result: CoordinatorResult) -> None:
        """Start a rebalance: members have to rejoin."""
        result.notes.append(f"rebalance after generation {self.generation}: {reason}")
        if self.state is ClassicGroupState.COMPLETING:
            self._cancel_syncs(ErrorCode.rebalance_in_progress, now, result)
        self._respond_heartbeats(ErrorCode.rebalance_in_progress, result)
        self.roster.pending_sync_members.clear()
        self._sync_deadline_ms = None
        is_first = self.is_empty
        self._transition_to(ClassicGroupState.PREPARING, now)
        if is_first:
            self._begin_first_join(now)
        elif self.roster.all_joined:
            self._complete_join(now, result)
        else:
            self._set_join_deadline(self.roster.rebalance_timeout_ms, now)

    def _begin_first_join(self, now: EventTime) -> None:
        """Give members time to arrive. However short it is, `tick` ends the join, not this call."""
        delay_ms = self._config.initial_rebalance_delay_ms
        self._join_extension_ms = max(self.roster.rebalance_timeout_ms - delay_ms, 0)
        self._new_member_added = False
        self.initial_arrival_deadline_ms = now.monotonic_ms + self._config.arrival_ms
        self._set_join_deadline(delay_ms, now)

    def _complete_initial_join(self, now: EventTime, result: CoordinatorResult) -> None:
        """Extend the first join while new members keep coming; else go on with who is there. One that
        was given its id is on its way: Kafka does not wait for it, and has to begin again with it."""
        remaining_ms = self._join_extension_ms
        if not remaining_ms or not self._new_member_added:
            self._complete_join(now, result)
            return
        delay_ms = min(self._config.initial_rebalance_delay_ms, remaining_ms)
        self._new_member_added = False
        self._join_extension_ms = remaining_ms - delay_ms
        self._set_join_deadline(delay_ms, now)

    def _complete_if_ready(self, now: EventTime, result: CoordinatorResult) -> None:
        """Complete the join phase if all members joined, except in the initial rebalance."""
        is_ready = self.state is ClassicGroupState.PREPARING and self.roster.all_joined
        if is_ready and not self._is_first_join:
            self._complete_join(now, result)

    def _complete_join(self, now: EventTime, result: CoordinatorResult) -> None:
        """Complete the join phase and start the next generation. Dynamic members that did not
        rejoin are removed; static members stay."""
        self._join_deadline_ms = self._join_extension_ms = None
        for member in list(self.roster.members.values()):
            if member.waiting_join is None and not member.is_static:
                result.notes.append(f"{member.member_id} did not join in time and is removed")
                self.roster.remove(member.member_id)
        if len(self.roster) and not self.roster.elect_joined_leader():
            # Nobody is there but static members that may come back: sessions decide.
            self._set_join_deadline(
                max(self.roster.rebalance_timeout_ms, REBALANCE_RETRY_MS_MIN), now
            )
            return
        self.generation += 1
        self.protocol = self.roster.select_protocol() if len(self.roster) else None
        self._update_subscriptions()
        self.roster.pending_sync_members.clear()
        if self.protocol is None:
            self._transition_to(ClassicGroupState.EMPTY, now)
            result.notes.append(f"generation {self.generation} is empty")
            record = Record(GroupKey(self.group_id), self.stored({}))
            result.appends.append(RecordAppend((record,), replay=False))
        else:
            self._transition_to(ClassicGroupState.COMPLETING, now)
            self._respond_joins(now, result)

    def _respond_joins(self, now: EventTime, result: CoordinatorResult) -> None:
        for member in self.roster.members.values():
            if member.waiting_join is not None:
                result.reply(member.waiting_join, self._join_response(member))
                self.roster.set_waiting_join(member, None)
            member.is_new = False
            self._extend_session(member, now)
            self.roster.pending_sync_members[member.member_id] = None
        result.notes.append(f"generation {self.generation} has {len(self.roster)} members")
        self._sync_deadline_ms = now.monotonic_ms + max(self.roster.rebalance_timeout_ms, 0)
        self._schedule_deadline(self._sync_deadline_ms)

    def _complete_sync(
        self, assignments: Mapping[str, bytes], now: EventTime, result: CoordinatorResult
    ) -> None:
        self._transition_to(ClassicGroupState.STABLE, now)
        result.completed_rebalances += 1
        for member in self.roster.members.values():
            member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
            if member.waiting_sync is not None:
                result.reply(member.waiting_sync, self._sync_response(member))
                member.waiting_sync = None
                self._extend_session(member, now)

    def _cancel_syncs(self, code: ErrorCode, now: EventTime, result: CoordinatorResult) -> None:
        """Nobody gets an assignment of this generation any more."""
        for member in self.roster.members.values():
            member.assignment = NO_ASSIGNMENT
            if member.waiting_sync is not None:
                result.reply(member.waiting_sync, SyncGroupResponse(code))
                member.waiting_sync = None
                self._extend_session(member, now)

    def _remove_pending_sync_members(self, now: EventTime, result: CoordinatorResult) -> None:
        dropped = list(self.roster.pending_sync_members)
        for member_id in dropped:
            self._remove(member_id, result)
        self._rebalance(f"{', '.join(dropped)} did not sync in time", now, result)

    def _remove(self, member_id: str, result: CoordinatorResult) -> None:
        """Remove a member or a pending id; one that still waits is told that it is unknown."""
        member = self.roster.members.get(member_id)
        code = ErrorCode.unknown_member_id
        if member is not None and member.waiting_join is not None:
            result.reply(member.waiting_join, JoinGroupResponse(code, NO_MEMBER_ID))
        if member is not None and member.waiting_sync is not None:
            result.reply(member.waiting_sync, SyncGroupResponse(code))
        if member is not None:
            self._respond_heartbeat(member, code, result)
        self.roster.remove(member_id)

    def _respond_heartbeats(self, code: ErrorCode, result: CoordinatorResult) -> None:
        for member in self.roster.members.values():
            self._respond_heartbeat(member, code, result)

    def _respond_heartbeat(
        self, member: ClassicGroupMember, code: ErrorCode, result: CoordinatorResult
    ) -> None:
        """Of a member whose heartbeat waits."""
        if member.waiting_heartbeat is not None:
            result.reply(member.waiting_heartbeat, HeartbeatResponse(code))
            member.waiting_heartbeat = None

    def _join_response(self, member: ClassicGroupMember) -> JoinGroupResponse:
        """The answer to a member that is in the present generation."""
        is_leader = self.roster.is_leader(member.member_id)
        return JoinGroupResponse(
            NO_ERROR,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.roster.leader_id or NO_MEMBER_ID,
            members=self._join_group_members() if is_leader else (),
        )

    def _join_group_members(self) -> tuple[JoinGroupMember, ...]:
        return tuple(
            JoinGroupMember(each.member_id, each.instance_id, each.metadata(self.protocol))
            for each in self.roster.members.values()
        )

    def _sync_response(self, member: ClassicGroupMember) -> SyncGroupResponse:
        return SyncGroupResponse(NO_ERROR, self.protocol_type, self.protocol, member.assignment)

    def _assignments(self) -> dict[str, bytes]:
        return {each.member_id: each.assignment for each in self.roster.members.values()}

    def _update_subscriptions(self) -> None:
        """Read what the members subscribe to, where they are consumers and we understand them."""
        self.subscriptions = None
        if self.protocol_type != CONSUMER_PROTOCOL:
            return
        if not len(self.roster):
            self.subscriptions = frozenset()
        elif self.protocol is not None:
            self.subscriptions = subscribed_topics(
                each.metadata(self.protocol) for each in self.roster.members.values()
            )

    def _transition_to(self, state: ClassicGroupState, now: EventTime) -> None:
        assert state in VALID_TRANSITIONS[self.state], f"{self.state} does not become {state}"
        self.state_before = self.state
        self.state = state
        self.state_timestamp_ms = now.wall_ms

    def end(self, code: ErrorCode, now: EventTime) -> CoordinatorResult:
        """The group is no more, or not this node's any more: whoever waits is told `code`."""
        result = CoordinatorResult()
        for member in self.roster.members.values():
            if member.waiting_join is not None:
                result.reply(member.waiting_join, JoinGroupResponse(code, member.member_id))
                self.roster.set_waiting_join(member, None)
            if member.waiting_sync is not None:
                result.reply(member.waiting_sync, SyncGroupResponse(code))
                member.waiting_sync = None
            self._respond_heartbeat(member, code, result)
            member.deadline_ms = None
        self.roster.pending.clear()
        self._join_deadline_ms = self._sync_deadline_ms = self.next_deadline_ms = None
        if self.state is not ClassicGroupState.DEAD:
            self._transition_to(ClassicGroupState.DEAD, now)
        return result

    # Time

    def tick(self, now: EventTime) -> CoordinatorResult:
        """Do what is due. Everything that was due when it is called happens once, in order."""
        result = CoordinatorResult()
        for _, act in sorted(self._due(now.monotonic_ms)):
            kind, member_id = act
            match ClassicGroupEvent[kind]:
                case ClassicGroupEvent.SESSION_TIMEOUT:
                    self._expire(member_id, now, result)
                case ClassicGroupEvent.PENDING_MEMBER_TIMEOUT:
                    self._expire_pending(member_id, now, result)
                case ClassicGroupEvent.JOIN_TIMEOUT if _is_due(self._join_deadline_ms, now):
                    if (
                        ACTIONS[ClassicGroupEvent.JOIN_TIMEOUT][self.state]
                        is ClassicGroupAction.COMPLETE_JOIN
                    ):
                        self._complete_initial_join(now, result)
                case ClassicGroupEvent.SYNC_TIMEOUT if _is_due(self._sync_deadline_ms, now):
                    self._sync_deadline_ms = None
                    if (
                        ACTIONS[ClassicGroupEvent.SYNC_TIMEOUT][self.state]
                        is ClassicGroupAction.REMOVE_PENDING_SYNC_MEMBERS
                    ):
                        self._remove_pending_sync_members(now, result)
                case ClassicGroupEvent.INITIAL_ARRIVAL_TIMEOUT:
                    if (
                        ACTIONS[ClassicGroupEvent.INITIAL_ARRIVAL_TIMEOUT][self.state]
                        is ClassicGroupAction.COMPLETE_WAITING_HEARTBEATS
                    ):
                        self._respond_heartbeats(NO_ERROR, result)
        self.next_deadline_ms = min(self._deadlines(), default=None)
        return result

    def _due(self, now_ms: int) -> Iterator[tuple[int, tuple[str, str]]]:
        """What is due, with its time; what happens about one may make another moot."""
        for member in self.roster.members.values():
            if member.deadline_ms is not None and member.deadline_ms <= now_ms:
                yield member.deadline_ms, (ClassicGroupEvent.SESSION_TIMEOUT.name, member.member_id)
        for member_id, deadline_ms in self.roster.pending.items():
            if deadline_ms <= now_ms:
                yield deadline_ms, (ClassicGroupEvent.PENDING_MEMBER_TIMEOUT.name, member_id)
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
            yield self._join_deadline_ms, (ClassicGroupEvent.JOIN_TIMEOUT.name, "")
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            yield self._sync_deadline_ms, (ClassicGroupEvent.SYNC_TIMEOUT.name, "")
        if self._has_waiting_heartbeat and self.initial_arrival_deadline_ms <= now_ms:
            yield (
                self.initial_arrival_deadline_ms,
                (ClassicGroupEvent.INITIAL_ARRIVAL_TIMEOUT.name, ""),
            )

    @property
    def _has_waiting_heartbeat(self) -> bool:
        return any(each.waiting_heartbeat is not None for each in self.roster.members.values())

    def _deadlines(self) -> Iterator[int]:
        for member in self.roster.members.values():
            if member.deadline_ms is not None:
                yield member.deadline_ms
        yield from self.roster.pending.values()
        if self._join_deadline_ms is not None:
            yield self._join_deadline_ms
        if self._sync_deadline_ms is not None:
            yield self._sync_deadline_ms
        if self._has_waiting_heartbeat:
            yield self.initial_arrival_deadline_ms

    def _expire(self, member_id: str, now: EventTime, result: CoordinatorResult) -> None:
        member = self.roster.members.get(member_id)
        if member is None or not _is_due(member.deadline_ms, now):
            return
        member.deadline_ms = None
        if member.is_waiting_for_coordinator:
            return  # the answer it waits for starts its session again
        self._remove(member_id, result)
        match ACTIONS[ClassicGroupEvent.SESSION_TIMEOUT][self.state]:
            case ClassicGroupAction.REBALANCE:
                self._rebalance(f"the session of {member_id} expired", now, result)
            case ClassicGroupAction.COMPLETE_IF_ALL_JOINED if self.roster.all_joined:
                self._complete_join(now, result)

    def _expire_pending(self, member_id: str, now: EventTime, result: CoordinatorResult) -> None:
        if not _is_due(self.roster.pending.get(member_id), now):
            return
        self.roster.remove(member_id)
        step = ACTIONS[ClassicGroupEvent.PENDING_MEMBER_TIMEOUT][self.state]
        if step is ClassicGroupAction.COMPLETE_IF_ALL_JOINED and self.roster.all_joined:
            self._complete_join(now, result)

    def _extend_session(
        self, member: ClassicGroupMember, now: EventTime, timeout_ms: int | None = None
    ) -> None:
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        member.deadline_ms = now.monotonic_ms + timeout_ms
        self._schedule_deadline(member.deadline_ms)

    def _set_join_deadline(self, delay_ms: int, now: EventTime) -> None:
        self._join_deadline_ms = now.monotonic_ms + max(delay_ms, 0)
        self._schedule_deadline(self._join_deadline_ms)

    def _schedule_deadline(self, deadline_ms: int) -> None:
        if self.next_deadline_ms is None or deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms


def _is_due(deadline_ms: int | None, now: EventTime) -> bool:
    return deadline_ms is not None and deadline_ms <= now.monotonic_ms


def _check(stored: ClassicGroupMetadata) -> None:
    """What a roster takes for granted."""
    ids = {each.member_id for each in stored.members}
    names = [each.instance_id for each in stored.members if each.instance_id is not None]
    if len(ids) != len(stored.members) or len(set(names)) != len(names):
        raise InvalidClassicGroupRecord("two members with one id")
    if stored.members and (stored.protocol is None or not stored.protocol_type):
        raise InvalidClassicGroupRecord("members without a protocol")
