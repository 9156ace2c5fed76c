"""The classic group protocol: a state machine without I/O and without a clock.

The members of a group meet in JoinGroup, where the coordinator picks a protocol they all support and
one of them as leader; the leader alone is told who the others are, computes everyone's assignment,
and hands it in with SyncGroup, whose answers bring each member its own. A member that joins, leaves
or falls silent starts that over (a rebalance): a new generation.

`states.TABLE` says what every event leads to in every state. Events come in as method calls with the
time they happen at; what is to be done about them comes out as `Actions`. Here is what requests
lead to; `returns` has the static member that comes back, `generations` what all that sets in motion,
and time.

Rules: Kafka 4.3; KIP-394 (member ids), KIP-345 (static members), KIP-429 (cooperative rebalancing:
nothing but protocols here), KIP-559 (protocol checks), KIP-800 (reasons), KIP-814 (static leaders).
"""

from __future__ import annotations

from odradek.broker.groups.actions import (
    NO_ERROR,
    NO_MEMBER_ID,
    Actions,
    Assigned,
    GroupKey,
    Heartbeat,
    HeartbeatResponse,
    Join,
    JoinResponse,
    Leave,
    Leaver,
    LeaveResponse,
    Left,
    Now,
    Record,
    Replaced,
    Sync,
    SyncResponse,
    Then,
    Waiter,
)
from odradek.broker.groups.expiry import ExpiryRule
from odradek.broker.groups.returns import Returns, why
from odradek.broker.groups.roster import Member
from odradek.broker.groups.states import TABLE, Event, State, Step
from odradek.broker.groups.subscription import CONSUMER_PROTOCOL
from odradek.protocol.errors import ErrorCode


class ClassicGroup(Returns):
    """See the module."""

    kind = "classic"

    # What it is

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_simple(self) -> bool:
        """There for its offsets alone: nobody ever joined it."""
        return self.protocol_type is None and self.is_empty and not self.roster.pending

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members read the topic; consumers that can't be understood read every topic."""
        if self.subscriptions is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscriptions

    def expiry_rule(self) -> ExpiryRule | None:
        """When this group's offsets expire (KIP-211); None if they don't while it is as it is."""
        if self.protocol_type is None:
            return ExpiryRule(since_ms=None)
        if self.is_empty:
            return ExpiryRule(since_ms=self.state_timestamp_ms)
        if self.state is State.STABLE and self.subscriptions is not None:
            return ExpiryRule(since_ms=None)
        return None

    # JoinGroup

    def join(self, request: Join, waiter: Waiter, now: Now) -> Actions:
        actions = Actions()
        is_unknown = request.member_id == NO_MEMBER_ID
        if not self._has_room_for(request.member_id):
            self._turn_away(request.member_id, waiter, now, actions)
        elif self.state is State.DEAD:
            code = ErrorCode.coordinator_not_available
            actions.reply(waiter, JoinResponse(code, request.member_id))
        elif not self._supports(request):
            code = ErrorCode.inconsistent_group_protocol
            actions.reply(waiter, JoinResponse(code, request.member_id))
        elif is_unknown:
            self._join_unknown(request, waiter, now, actions)
        else:
            self._join_known(request, waiter, now, actions)
        return actions

    def _has_room_for(self, member_id: str) -> bool:
        """Whether group.max.size lets it in.

        While members join, those who have joined count, so that the last to join are turned away
        from a group that is already too large; later on all members do.
        """
        member = self.roster.members.get(member_id)
        if self.state is State.PREPARING:
            if member is not None and member.joining is not None:
                return True
            return self.roster.awaiting_join < self._config.max_size
        if self.state in (State.COMPLETING, State.STABLE):
            return member is not None or len(self.roster) < self._config.max_size
        return True

    def _turn_away(self, member_id: str, waiter: Waiter, now: Now, actions: Actions) -> None:
        self.roster.remove(member_id)
        actions.reply(waiter, JoinResponse(ErrorCode.group_max_size_reached, NO_MEMBER_ID))
        self._complete_if_ready(now, actions)

    def _supports(self, request: Join) -> bool:
        """Whether there is a protocol that it and all members support."""
        if self.is_empty:
            return bool(request.protocol_type) and bool(request.protocols)
        return request.protocol_type == self.protocol_type and self.roster.agrees_on_any(
            [name for name, _ in request.protocols]
        )

    def _join_unknown(self, request: Join, waiter: Waiter, now: Now, actions: Actions) -> None:
        if request.instance_id is None:
            new_id = f"{request.client_id}-{request.fresh_id}"
            event = Event.NEWCOMER_ASKS_FOR_ID if request.id_required else Event.NEWCOMER_JOINS
        else:
            new_id = f"{request.instance_id}-{request.fresh_id}"
            is_known = request.instance_id in self.roster.static
            event = Event.STATIC_MEMBER_RETURNS if is_known else Event.NEWCOMER_JOINS
        match TABLE[event][self.state]:
            case Step.GIVE_ID:
                self._give_id(new_id, request, waiter, now, actions)
            case Step.ADMIT:
                self._admit(new_id, request, waiter, now, actions)
            case step:
                self._replace(new_id, step, request, waiter, now, actions)

    def _join_known(self, request: Join, waiter: Waiter, now: Now, actions: Actions) -> None:
        member_id = request.member_id
        if member_id in self.roster.pending:
            if request.instance_id is not None:  # ids are given to dynamic members alone
                code = ErrorCode.unknown_server_error
                actions.reply(waiter, JoinResponse(code, NO_MEMBER_ID))
                return
            self._admit(member_id, request, waiter, now, actions)
            return
        error = self.roster.check(member_id, request.instance_id)
        if error is not NO_ERROR:
            actions.reply(waiter, JoinResponse(error, member_id))
            return
        member = self.roster.members[member_id]
        match TABLE[self._rejoin_event(member, request)][self.state]:
            case Step.UPDATE:
                self._update(member, request, waiter, now, actions)
            case Step.REPEAT:
                actions.reply(waiter, self._joined(member))
            case _:
                actions.reply(waiter, JoinResponse(ErrorCode.unknown_member_id, member_id))

    def _rejoin_event(self, member: Member, request: Join) -> Event:
        if member.protocols != request.protocols:
            return Event.MEMBER_CHANGES
        if self.roster.is_leader(member.member_id):
            return Event.LEADER_REJOINS
        return Event.FOLLOWER_REJOINS

    def _give_id(
        self, new_id: str, request: Join, waiter: Waiter, now: Now, actions: Actions
    ) -> None:
        deadline_ms = now.monotonic_ms + request.session_timeout_ms
        self.roster.pending[new_id] = deadline_ms
        self._came_since_extension = True
        self._wake_at(deadline_ms)
        actions.reply(waiter, JoinResponse(ErrorCode.member_id_required, new_id))

    def _admit(
        self, member_id: str, request: Join, waiter: Waiter, now: Now, actions: Actions
    ) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocol_type,
            request.protocols,
            is_new=True,
        )
        self._came_since_extension = True
        self.roster.add(member, waiter)
        self._extend_session(member, now, self._config.new_member_join_timeout_ms)
        self._rebalance_or_complete(f"{member_id} joins{why(request.reason)}", now, actions)

    def _update(
        self, member: Member, request: Join, waiter: Waiter, now: Now, actions: Actions
    ) -> None:
        self._retire_join(member, actions)
        self._adopt(member, request, waiter)
        reason = f"{member.member_id} joins again{why(request.reason)}"
        self._rebalance_or_complete(reason, now, actions)

    def _retire_join(self, member: Member, actions: Actions) -> None:
        """A member that asks twice gets one answer; the older request is told to ask again."""
        if member.joining is not None:
            code = ErrorCode.rebalance_in_progress
            actions.reply(member.joining, JoinResponse(code, member.member_id))
            self.roster.set_joining(member, None)

    # SyncGroup

    def sync(self, request: Sync, waiter: Waiter, now: Now) -> Actions:
        actions = Actions()
        error = self._check_sync(request)
        if error is not NO_ERROR:
            actions.reply(waiter, SyncResponse(error))
            return actions
        member = self.roster.members[request.member_id]
        is_leader = self.roster.is_leader(request.member_id)
        event = Event.LEADER_SYNCS if is_leader else Event.FOLLOWER_SYNCS
        match TABLE[event][self.state]:
            case Step.AWAIT_ASSIGNMENT:
                self._await_assignment(member, waiter, actions)
            case Step.STORE_ASSIGNMENT:
                self._await_assignment(member, waiter, actions)
                assignments = dict(request.assignments)
                then = Assigned(self.group_id, self.generation, assignments)
                self._store(assignments, then, actions)
            case Step.RESPONSE_ASSIGNMENT:
                self._synced(member)
                actions.reply(waiter, self._assigned(member))
            case Step.REJOIN:
                actions.reply(waiter, SyncResponse(ErrorCode.rebalance_in_progress))
            case _:
                actions.reply(waiter, SyncResponse(ErrorCode.unknown_member_id))
        return actions

    def _check_sync(self, request: Sync) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        error = self.roster.check(request.member_id, request.instance_id)
        if error is not NO_ERROR:
            return error
        if request.generation != self.generation:
            return ErrorCode.illegal_generation
        for said, known in (
            (request.protocol_type, self.protocol_type),
            (request.protocol_name, self.protocol),
        ):
            if said is not None and known is not None and said != known:
                return ErrorCode.inconsistent_group_protocol
        return NO_ERROR

    def _await_assignment(self, member: Member, waiter: Waiter, actions: Actions) -> None:
        if member.syncing is not None:
            actions.reply(member.syncing, SyncResponse(ErrorCode.rebalance_in_progress))
        member.syncing = waiter
        self._synced(member)

    def _synced(self, member: Member) -> None:
        self.roster.unsynced.pop(member.member_id, None)
        if not self.roster.unsynced:
            self._sync_deadline_ms = None

    # Heartbeat and LeaveGroup

    def heartbeat(self, request: Heartbeat, waiter: Waiter, now: Now) -> Actions:
        actions = Actions()
        error = self._check_heartbeat(request)
        if error is not NO_ERROR:
            actions.reply(waiter, HeartbeatResponse(error))
            return actions
        is_early = now.monotonic_ms < self.arrival_ends_ms
        event = Event.EARLY_HEARTBEAT if is_early else Event.MEMBER_HEARTBEATS
        step = TABLE[event][self.state]
        if step is Step.REFUSE:
            actions.reply(waiter, HeartbeatResponse(ErrorCode.unknown_member_id))
            return actions
        member = self.roster.members[request.member_id]
        self._extend_session(member, now)
        self._respond_heartbeat(member, NO_ERROR, actions)
        match step:
            case Step.AWAIT_OTHERS:
                member.beating = waiter
                self._wake_at(self.arrival_ends_ms)
            case Step.STAY_ALIVE_AND_REJOIN:
                actions.reply(waiter, HeartbeatResponse(ErrorCode.rebalance_in_progress))
            case _:
                actions.reply(waiter, HeartbeatResponse(NO_ERROR))
        return actions

    def _check_heartbeat(self, request: Heartbeat) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        error = self.roster.check(request.member_id, request.instance_id)
        if error is NO_ERROR and request.generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def leave(self, request: Leave, waiter: Waiter, now: Now) -> Actions:
        actions = Actions()
        step = TABLE[Event.MEMBERS_LEAVE][self.state]
        if step is Step.UNAVAILABLE:
            actions.reply(waiter, LeaveResponse(ErrorCode.coordinator_not_available))
            return actions
        responses = tuple(self._leave(each, actions) for each in request.members)
        gone = [
            each.member_id or each.instance_id or "" for each in responses if each.error is NO_ERROR
        ]
        if gone and step is Step.REBALANCE:
            reasons = "".join(why(each.reason) for each in request.members if each.reason)
            self._rebalance(f"{', '.join(gone)} left{reasons}", now, actions)
        elif gone and step is Step.COMPLETE_IF_READY:
            self._complete_if_ready(now, actions)
        actions.reply_after_appends(waiter, LeaveResponse(NO_ERROR, responses))
        return actions

    def _leave(self, leaver: Leaver, actions: Actions) -> Left:
        member_id = leaver.member_id
        if member_id == NO_MEMBER_ID:
            name = leaver.instance_id
            holder = None if name is None else self.roster.static.get(name)
            error = NO_ERROR if holder is not None else ErrorCode.unknown_member_id
            member_id = holder or NO_MEMBER_ID
        elif member_id in self.roster.pending:
            error = NO_ERROR
        else:
            error = self.roster.check(member_id, leaver.instance_id)
        if error is NO_ERROR:
            self._remove(member_id, actions)
        return Left(leaver.member_id, leaver.instance_id, error)

    # What may be done to its offsets, and to itself

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now: Now,
        *,
        transactional: bool = False,
    ) -> ErrorCode:
        """Whether offsets may be committed under this name; a member that does so is alive."""
        if self.state is State.DEAD:
            return ErrorCode.coordinator_not_available
        if generation < 0 and self.is_empty:
            return NO_ERROR
        named = generation >= 0 or member_id != NO_MEMBER_ID or instance_id is not None
        if named:
            error = self.roster.check(member_id, instance_id)
            if error is not NO_ERROR:
                return error
            if generation != self.generation:
                return ErrorCode.illegal_generation
        elif not transactional:  # from outside, while there are members
            return ErrorCode.unknown_member_id
        if transactional:
            return NO_ERROR
        if self.state is State.COMPLETING:
            return ErrorCode.rebalance_in_progress
        self._extend_session(self.roster.members[member_id], now)
        return NO_ERROR

    def check_offset_delete(self) -> ErrorCode:
        """Offsets go while there are members only if we know what those read."""
        if self.state is State.DEAD:
            return ErrorCode.group_id_not_found
        if not self.is_empty and self.protocol_type != CONSUMER_PROTOCOL:
            return ErrorCode.non_empty_group
        return NO_ERROR

    def gone(self) -> tuple[Record, ...]:
        """The records that end it."""
        return (Record(GroupKey(self.group_id), None),)

    def check_delete(self) -> ErrorCode:
        if self.state is State.DEAD:
            return ErrorCode.group_id_not_found
        return NO_ERROR if self.is_empty else ErrorCode.non_empty_group

    # What became of an append

    def appended(self, then: Then, now: Now) -> Actions:
        """The records of an append are there to stay."""
        actions = Actions()
        if isinstance(then, Assigned):
            if self.generation == then.generation:
                step = TABLE[Event.ASSIGNMENT_STORED][self.state]
                if step is Step.SETTLE:
                    self._settle(then.assignments, now, actions)
        elif isinstance(then, Replaced):
            self._replaced(then, now, actions)
        return actions

    def append_failed(self, then: Then, code: ErrorCode, now: Now, *, written: bool) -> Actions:
        """The records are not in the log; or, if `written`, they are and may or may not stay."""
        actions = Actions()
        if isinstance(then, Assigned):
            step = TABLE[Event.ASSIGNMENT_LOST][self.state]
            if self.generation == then.generation and step is Step.REBALANCE_WITH_ERROR:
                self._cancel_syncs(code, now, actions)
                reason = f"the assignments could not be stored ({code.name})"
                self._rebalance(reason, now, actions)
        elif isinstance(then, Replaced):
            self._not_replaced(then, code, written, now, actions)
        return actions
