"""The cycle of a classic group's generations: everyone joins, one assigns, all are stable, and again.

What turns the wheel here is time and the decisions of `ClassicGroup`, which takes the requests.
Nobody waits in here: a request that can't be answered yet is kept as its waiter. Deadlines are kept
too; `wake_ms` says when `tick` wants to be called.

Invariants: whoever waits in JoinGroup, SyncGroup or Heartbeat is answered by some deadline or by an
append that is under way; generations only grow; a stable group is what replaying its last record gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from odradek.broker.groups.actions import (
    NO_ERROR,
    NO_MEMBER_ID,
    Actions,
    Append,
    GroupKey,
    HeartbeatResponse,
    JoinedMember,
    JoinResponse,
    Now,
    Record,
    StoredGroup,
    SyncResponse,
    Waiter,
)
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.roster import Member, Roster
from odradek.broker.groups.states import FOLLOWS, TABLE, Event, State, Step
from odradek.broker.groups.subscription import CONSUMER_PROTOCOL, subscribed_topics
from odradek.protocol.errors import ErrorCode, KafkaError

NO_ASSIGNMENT = b""
RETRY_MS_MIN = 100
"""A rebalance that nobody joined is tried again after the rebalance timeout, but not sooner."""


class ImpossibleGroup(KafkaError):
    """A stored group that contradicts itself."""

    code = ErrorCode.corrupt_message


class Generations:
    """See the module."""

    def __init__(self, group_id: str, config: GroupConfig, now: Now) -> None:
        self.group_id = group_id
        self._config = config
        self.state = State.EMPTY
        self.state_before = State.DEAD
        self.state_timestamp_ms: int | None = now.wall_ms
        self.generation = 0
        self.protocol: str | None = None
        self.roster = Roster()
        self.subscriptions: frozenset[str] | None = None
        """Topics that the members subscribe to; None where that is not known."""
        self._join_deadline_ms: int | None = None
        self._join_extension_ms: int | None = None
        """How much longer the first join may be extended; None if it is not the first."""
        self._came_since_extension = False
        """Whether somebody joined the first join since, or was given an id to do so with."""
        self._sync_deadline_ms: int | None = None
        self.arrival_ends_ms = 0
        """Until when those who started together with the group's first members may arrive. Heartbeats
        of a stable group wait for them: who arrives has everyone join anew at once."""
        self.wake_ms: int | None = None
        """Call `tick` at this time or soon after it; it may find nothing to do."""

    @classmethod
    def from_stored(cls, group_id: str, stored: StoredGroup, config: GroupConfig) -> Self:
        """The group that a record describes. `began` starts the timers once all is loaded.

        Raises ImpossibleGroup for one that nobody can have written.
        """
        _check(stored)
        group = cls(group_id, config, Now(0, stored.state_timestamp_ms))
        group.generation = stored.generation
        group.protocol = stored.protocol
        is_led = any(each.member_id == stored.leader for each in stored.members)
        group.roster = Roster(stored.protocol_type or None, stored.leader if is_led else None)
        recorded_ms = stored.state_timestamp_ms
        group.state_timestamp_ms = None if recorded_ms == -1 else recorded_ms
        for each in stored.members:
            rebalance_timeout_ms = each.rebalance_timeout_ms
            if rebalance_timeout_ms == -1:  # written before there was one
                rebalance_timeout_ms = each.session_timeout_ms
            member = Member(
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
        group.state = State.STABLE if stored.members else State.EMPTY
        group._know_subscriptions()
        return group

    @classmethod
    def converted(
        cls,
        group_id: str,
        generation: int,
        members: Sequence[Member],
        config: GroupConfig,
        now: Now,
    ) -> Self:
        """A stable group of those who were together in one of another kind. `began` starts it."""
        group = cls(group_id, config, now)
        group.generation = generation
        for each in members:
            group.roster.add(each, None)
        group.protocol = group.roster.select_protocol()
        group.state = State.STABLE
        group._know_subscriptions()
        return group

    def rebalance(self, reason: str, now: Now) -> Actions:
        """Have everyone join again, for a reason from outside."""
        actions = Actions()
        self._rebalance(reason, now, actions)
        return actions

    def began(self, now: Now) -> Actions:
        """This node began to coordinate the group, whose state was loaded: sessions start anew."""
        actions = Actions()
        for member in self.roster.members.values():
            self._extend_session(member, now)
        if len(self.roster) > self._config.max_size:
            self._rebalance(
                f"the group is over its capacity of {self._config.max_size}", now, actions
            )
        return actions

    # What it is

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def protocol_type(self) -> str | None:
        return self.roster.protocol_type

    def stored(self, assignments: Mapping[str, bytes]) -> StoredGroup:
        """The present generation as it goes into the log."""
        protocol = self.protocol
        members = self.roster.members.values() if protocol is not None else ()
        return StoredGroup(
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

    def waiters(self) -> Iterator[Waiter]:
        """Whoever waits for an answer."""
        for member in self.roster.members.values():
            if member.joining is not None:
                yield member.joining
            if member.syncing is not None:
                yield member.syncing
            if member.beating is not None:
                yield member.beating

    # From one generation to the next

    @property
    def _is_first_join(self) -> bool:
        """A group that was empty gives its members time to arrive before its first generation."""
        return self.state is State.PREPARING and self.state_before is State.EMPTY

    def _rebalance_or_complete(self, reason: str, now: Now, actions: Actions) -> None:
        if self.state is State.PREPARING:
            self._complete_if_ready(now, actions)
        else:
            self._rebalance(reason, now, actions)

    def _rebalance(self, reason: str, now: Now, actions: Actions) -> None:
        """Have everyone join again."""
        actions.notes.append(f"rebalance after generation {self.generation}: {reason}")
        if self.state is State.COMPLETING:
            self._cancel_syncs(ErrorCode.rebalance_in_progress, now, actions)
        self._respond_heartbeats(ErrorCode.rebalance_in_progress, actions)
        self.roster.unsynced.clear()
        self._sync_deadline_ms = None
        is_first = self.is_empty
        self._become(State.PREPARING, now)
        if is_first:
            self._begin_first_join(now)
        elif self.roster.all_joined:
            self._complete_join(now, actions)
        else:
            self._join_until(self.roster.rebalance_timeout_ms, now)

    def _begin_first_join(self, now: Now) -> None:
        """Give members time to arrive. However short it is, `tick` ends the join, not this call."""
        delay_ms = self._config.initial_rebalance_delay_ms
        self._join_extension_ms = max(self.roster.rebalance_timeout_ms - delay_ms, 0)
        self._came_since_extension = False
        self.arrival_ends_ms = now.monotonic_ms + self._config.arrival_ms
        self._join_until(delay_ms, now)

    def _join_time_is_up(self, now: Now, actions: Actions) -> None:
        """Extend the first join while new members keep coming; else go on with who is there. One that
        was given its id is on its way: Kafka does not wait for it, and has to begin again with it."""
        remaining_ms = self._join_extension_ms
        if not remaining_ms or not self._came_since_extension:
            self._complete_join(now, actions)
            return
        delay_ms = min(self._config.initial_rebalance_delay_ms, remaining_ms)
        self._came_since_extension = False
        self._join_extension_ms = remaining_ms - delay_ms
        self._join_until(delay_ms, now)

    def _complete_if_ready(self, now: Now, actions: Actions) -> None:
        """Everyone has joined: no need to wait, except in a first join, for those who are to come."""
        is_ready = self.state is State.PREPARING and self.roster.all_joined
        if is_ready and not self._is_first_join:
            self._complete_join(now, actions)

    def _complete_join(self, now: Now, actions: Actions) -> None:
        """Begin the next generation. Dynamic members who have not joined are out, static ones stay."""
        self._join_deadline_ms = self._join_extension_ms = None
        for member in list(self.roster.members.values()):
            if member.joining is None and not member.is_static:
                actions.notes.append(f"{member.member_id} did not join in time and is removed")
                self.roster.remove(member.member_id)
        if len(self.roster) and not self.roster.elect_joined_leader():
            # Nobody is there but static members that may come back: sessions decide.
            self._join_until(max(self.roster.rebalance_timeout_ms, RETRY_MS_MIN), now)
            return
        self.generation += 1
        self.protocol = self.roster.select_protocol() if len(self.roster) else None
        self._know_subscriptions()
        self.roster.unsynced.clear()
        if self.protocol is None:
            self._become(State.EMPTY, now)
            actions.notes.append(f"generation {self.generation} is empty")
            record = Record(GroupKey(self.group_id), self.stored({}))
            actions.appends.append(Append((record,), replay=False))
        else:
            self._become(State.COMPLETING, now)
            self._respond_joins(now, actions)

    def _respond_joins(self, now: Now, actions: Actions) -> None:
        for member in self.roster.members.values():
            if member.joining is not None:
                actions.reply(member.joining, self._joined(member))
                self.roster.set_joining(member, None)
            member.is_new = False
            self._extend_session(member, now)
            self.roster.unsynced[member.member_id] = None
        actions.notes.append(f"generation {self.generation} has {len(self.roster)} members")
        self._sync_deadline_ms = now.monotonic_ms + max(self.roster.rebalance_timeout_ms, 0)
        self._wake_at(self._sync_deadline_ms)

    def _settle(self, assignments: Mapping[str, bytes], now: Now, actions: Actions) -> None:
        self._become(State.STABLE, now)
        actions.completed_rebalances += 1
        for member in self.roster.members.values():
            member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
            if member.syncing is not None:
                actions.reply(member.syncing, self._assigned(member))
                member.syncing = None
                self._extend_session(member, now)

    def _cancel_syncs(self, code: ErrorCode, now: Now, actions: Actions) -> None:
        """Nobody gets an assignment of this generation any more."""
        for member in self.roster.members.values():
            member.assignment = NO_ASSIGNMENT
            if member.syncing is not None:
                actions.reply(member.syncing, SyncResponse(code))
                member.syncing = None
                self._extend_session(member, now)

    def _drop_unsynced(self, now: Now, actions: Actions) -> None:
        dropped = list(self.roster.unsynced)
        for member_id in dropped:
            self._remove(member_id, actions)
        self._rebalance(f"{', '.join(dropped)} did not sync in time", now, actions)

    def _remove(self, member_id: str, actions: Actions) -> None:
        """Remove a member or a pending id; one that still waits is told that it is unknown."""
        member = self.roster.members.get(member_id)
        code = ErrorCode.unknown_member_id
        if member is not None and member.joining is not None:
            actions.reply(member.joining, JoinResponse(code, NO_MEMBER_ID))
        if member is not None and member.syncing is not None:
            actions.reply(member.syncing, SyncResponse(code))
        if member is not None:
            self._respond_heartbeat(member, code, actions)
        self.roster.remove(member_id)

    def _respond_heartbeats(self, code: ErrorCode, actions: Actions) -> None:
        for member in self.roster.members.values():
            self._respond_heartbeat(member, code, actions)

    def _respond_heartbeat(self, member: Member, code: ErrorCode, actions: Actions) -> None:
        """Of a member whose heartbeat waits."""
        if member.beating is not None:
            actions.reply(member.beating, HeartbeatResponse(code))
            member.beating = None

    def _joined(self, member: Member) -> JoinResponse:
        """The answer to a member that is in the present generation."""
        is_leader = self.roster.is_leader(member.member_id)
        return JoinResponse(
            NO_ERROR,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.roster.leader_id or NO_MEMBER_ID,
            members=self._everyone() if is_leader else (),
        )

    def _everyone(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol))
            for each in self.roster.members.values()
        )

    def _assigned(self, member: Member) -> SyncResponse:
        return SyncResponse(NO_ERROR, self.protocol_type, self.protocol, member.assignment)

    def _assignments(self) -> dict[str, bytes]:
        return {each.member_id: each.assignment for each in self.roster.members.values()}

    def _know_subscriptions(self) -> None:
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

    def _become(self, state: State, now: Now) -> None:
        assert state in FOLLOWS[self.state], f"{self.state} does not become {state}"
        self.state_before = self.state
        self.state = state
        self.state_timestamp_ms = now.wall_ms

    def end(self, code: ErrorCode, now: Now) -> Actions:
        """The group is no more, or not this node's any more: whoever waits is told `code`."""
        actions = Actions()
        for member in self.roster.members.values():
            if member.joining is not None:
                actions.reply(member.joining, JoinResponse(code, member.member_id))
                self.roster.set_joining(member, None)
            if member.syncing is not None:
                actions.reply(member.syncing, SyncResponse(code))
                member.syncing = None
            self._respond_heartbeat(member, code, actions)
            member.deadline_ms = None
        self.roster.pending.clear()
        self._join_deadline_ms = self._sync_deadline_ms = self.wake_ms = None
        if self.state is not State.DEAD:
            self._become(State.DEAD, now)
        return actions

    # Time

    def tick(self, now: Now) -> Actions:
        """Do what is due. Everything that was due when it is called happens once, in order."""
        actions = Actions()
        for _, act in sorted(self._due(now.monotonic_ms)):
            kind, member_id = act
            match Event[kind]:
                case Event.MEMBER_EXPIRES:
                    self._expire(member_id, now, actions)
                case Event.PENDING_EXPIRES:
                    self._expire_pending(member_id, now, actions)
                case Event.JOIN_TIME_IS_UP if _is_due(self._join_deadline_ms, now):
                    if TABLE[Event.JOIN_TIME_IS_UP][self.state] is Step.COMPLETE_JOIN:
                        self._join_time_is_up(now, actions)
                case Event.SYNC_TIME_IS_UP if _is_due(self._sync_deadline_ms, now):
                    self._sync_deadline_ms = None
                    if TABLE[Event.SYNC_TIME_IS_UP][self.state] is Step.DROP_UNSYNCED:
                        self._drop_unsynced(now, actions)
                case Event.ARRIVAL_ENDS:
                    if TABLE[Event.ARRIVAL_ENDS][self.state] is Step.RESPONSE_HEARTBEATS:
                        self._respond_heartbeats(NO_ERROR, actions)
        self.wake_ms = min(self._deadlines(), default=None)
        return actions

    def _due(self, now_ms: int) -> Iterator[tuple[int, tuple[str, str]]]:
        """What is due, with its time; what happens about one may make another moot."""
        for member in self.roster.members.values():
            if member.deadline_ms is not None and member.deadline_ms <= now_ms:
                yield member.deadline_ms, (Event.MEMBER_EXPIRES.name, member.member_id)
        for member_id, deadline_ms in self.roster.pending.items():
            if deadline_ms <= now_ms:
                yield deadline_ms, (Event.PENDING_EXPIRES.name, member_id)
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
            yield self._join_deadline_ms, (Event.JOIN_TIME_IS_UP.name, "")
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            yield self._sync_deadline_ms, (Event.SYNC_TIME_IS_UP.name, "")
        if self._is_beat_waiting and self.arrival_ends_ms <= now_ms:
            yield self.arrival_ends_ms, (Event.ARRIVAL_ENDS.name, "")

    @property
    def _is_beat_waiting(self) -> bool:
        return any(each.beating is not None for each in self.roster.members.values())

    def _deadlines(self) -> Iterator[int]:
        for member in self.roster.members.values():
            if member.deadline_ms is not None:
                yield member.deadline_ms
        yield from self.roster.pending.values()
        if self._join_deadline_ms is not None:
            yield self._join_deadline_ms
        if self._sync_deadline_ms is not None:
            yield self._sync_deadline_ms
        if self._is_beat_waiting:
            yield self.arrival_ends_ms

    def _expire(self, member_id: str, now: Now, actions: Actions) -> None:
        member = self.roster.members.get(member_id)
        if member is None or not _is_due(member.deadline_ms, now):
            return
        member.deadline_ms = None
        if member.is_alive_by_waiting:
            return  # the answer it waits for starts its session again
        self._remove(member_id, actions)
        match TABLE[Event.MEMBER_EXPIRES][self.state]:
            case Step.REBALANCE:
                self._rebalance(f"the session of {member_id} expired", now, actions)
            case Step.COMPLETE_IF_ALL_JOINED if self.roster.all_joined:
                self._complete_join(now, actions)

    def _expire_pending(self, member_id: str, now: Now, actions: Actions) -> None:
        if not _is_due(self.roster.pending.get(member_id), now):
            return
        self.roster.remove(member_id)
        step = TABLE[Event.PENDING_EXPIRES][self.state]
        if step is Step.COMPLETE_IF_ALL_JOINED and self.roster.all_joined:
            self._complete_join(now, actions)

    def _extend_session(self, member: Member, now: Now, timeout_ms: int | None = None) -> None:
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        member.deadline_ms = now.monotonic_ms + timeout_ms
        self._wake_at(member.deadline_ms)

    def _join_until(self, delay_ms: int, now: Now) -> None:
        self._join_deadline_ms = now.monotonic_ms + max(delay_ms, 0)
        self._wake_at(self._join_deadline_ms)

    def _wake_at(self, deadline_ms: int) -> None:
        if self.wake_ms is None or deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms


def _is_due(deadline_ms: int | None, now: Now) -> bool:
    return deadline_ms is not None and deadline_ms <= now.monotonic_ms


def _check(stored: StoredGroup) -> None:
    """What a roster takes for granted."""
    ids = {each.member_id for each in stored.members}
    names = [each.instance_id for each in stored.members if each.instance_id is not None]
    if len(ids) != len(stored.members) or len(set(names)) != len(names):
        raise ImpossibleGroup("two members with one id")
    if stored.members and (stored.protocol is None or not stored.protocol_type):
        raise ImpossibleGroup("members without a protocol")
