"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup. No I/O and no clock.

Members join, the coordinator selects a protocol and a leader, the leader sends the assignment in
SyncGroup, and every member receives its own. A member that joins, leaves or expires starts a
rebalance, which ends with the next generation.

`classic_group_states.ACTIONS` is the action for every event and state. `classic_rebalance` has
rebalances and timeouts, `static_members` the replacement of static members.

Rules: Kafka 4.3; KIP-394 (member ids), KIP-345 (static members), KIP-429 (cooperative rebalancing),
KIP-559 (protocol checks), KIP-800 (reasons), KIP-814 (static leaders).
"""

from __future__ import annotations

from odradek.broker.groups.classic_group_members import ClassicGroupMember
from odradek.broker.groups.classic_group_states import (
    ACTIONS,
    ClassicGroupAction,
    ClassicGroupEvent,
    ClassicGroupState,
)
from odradek.broker.groups.messages import (
    NO_ERROR,
    NO_MEMBER_ID,
    AppendCompletion,
    AssignmentWritten,
    CoordinatorResult,
    EventTime,
    Future,
    GroupKey,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveGroupResponse,
    LeaveMemberResponse,
    LeavingMember,
    Record,
    StaticMemberReplaced,
    SyncGroup,
    SyncGroupResponse,
)
from odradek.broker.groups.offset_store import OffsetExpirationRule
from odradek.broker.groups.static_members import Returns, why
from odradek.broker.groups.subscription import CONSUMER_PROTOCOL
from odradek.protocol.errors import ErrorCode


class ClassicGroup(Returns):
    """A group of the classic protocol."""

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

    def expiry_rule(self) -> OffsetExpirationRule | None:
        """When this group's offsets expire (KIP-211); None if they don't while it is as it is."""
        if self.protocol_type is None:
            return OffsetExpirationRule(since_ms=None)
        if self.is_empty:
            return OffsetExpirationRule(since_ms=self.state_timestamp_ms)
        if self.state is ClassicGroupState.STABLE and self.subscriptions is not None:
            return OffsetExpirationRule(since_ms=None)
        return None

    # JoinGroup

    def join(self, request: JoinGroup, future: Future, now: EventTime) -> CoordinatorResult:
        result = CoordinatorResult()
        is_unknown = request.member_id == NO_MEMBER_ID
        if not self._accepts_member(request.member_id):
            self._reject_full_group(request.member_id, future, now, result)
        elif self.state is ClassicGroupState.DEAD:
            code = ErrorCode.coordinator_not_available
            result.reply(future, JoinGroupResponse(code, request.member_id))
        elif not self._supports(request):
            code = ErrorCode.inconsistent_group_protocol
            result.reply(future, JoinGroupResponse(code, request.member_id))
        elif is_unknown:
            self._join_unknown(request, future, now, result)
        else:
            self._join_known(request, future, now, result)
        return result

    def _accepts_member(self, member_id: str) -> bool:
        """Whether group.max.size lets it in.

        While members join, those who have joined count, so that the last to join are turned away
        from a group that is already too large; later on all members do.
        """
        member = self.roster.members.get(member_id)
        if self.state is ClassicGroupState.PREPARING:
            if member is not None and member.waiting_join is not None:
                return True
            return self.roster.waiting_join_count < self._config.max_size
        if self.state in (ClassicGroupState.COMPLETING, ClassicGroupState.STABLE):
            return member is not None or len(self.roster) < self._config.max_size
        return True

    def _reject_full_group(
        self, member_id: str, future: Future, now: EventTime, result: CoordinatorResult
    ) -> None:
        self.roster.remove(member_id)
        result.reply(future, JoinGroupResponse(ErrorCode.group_max_size_reached, NO_MEMBER_ID))
        self._complete_if_ready(now, result)

    def _supports(self, request: JoinGroup) -> bool:
        """Whether there is a protocol that it and all members support."""
        if self.is_empty:
            return bool(request.protocol_type) and bool(request.protocols)
        return request.protocol_type == self.protocol_type and self.roster.supports_any_protocol(
            [name for name, _ in request.protocols]
        )

    def _join_unknown(
        self, request: JoinGroup, future: Future, now: EventTime, result: CoordinatorResult
    ) -> None:
        if request.instance_id is None:
            new_id = f"{request.client_id}-{request.fresh_id}"
            event = (
                ClassicGroupEvent.MEMBER_ID_REQUIRED
                if request.id_required
                else ClassicGroupEvent.NEW_MEMBER_JOINS
            )
        else:
            new_id = f"{request.instance_id}-{request.fresh_id}"
            is_known = request.instance_id in self.roster.static
            event = (
                ClassicGroupEvent.STATIC_MEMBER_REJOINS
                if is_known
                else ClassicGroupEvent.NEW_MEMBER_JOINS
            )
        match ACTIONS[event][self.state]:
            case ClassicGroupAction.ASSIGN_MEMBER_ID:
                self._assign_member_id(new_id, request, future, now, result)
            case ClassicGroupAction.ADD_MEMBER:
                self._add_member(new_id, request, future, now, result)
            case step:
                self._replace_static_member(new_id, step, request, future, now, result)

    def _join_known(
        self, request: JoinGroup, future: Future, now: EventTime, result: CoordinatorResult
    ) -> None:
        member_id = request.member_id
        if member_id in self.roster.pending:
            if request.instance_id is not None:  # ids are given to dynamic members alone
                code = ErrorCode.unknown_server_error
                result.reply(future, JoinGroupResponse(code, NO_MEMBER_ID))
                return
            self._add_member(member_id, request, future, now, result)
            return
        error = self.roster.check(member_id, request.instance_id)
        if error is not NO_ERROR:
            result.reply(future, JoinGroupResponse(error, member_id))
            return
        member = self.roster.members[member_id]
        match ACTIONS[self._rejoin_event(member, request)][self.state]:
            case ClassicGroupAction.UPDATE:
                self._update(member, request, future, now, result)
            case ClassicGroupAction.RETURN_CURRENT_GENERATION:
                result.reply(future, self._join_response(member))
            case _:
                result.reply(future, JoinGroupResponse(ErrorCode.unknown_member_id, member_id))

    def _rejoin_event(self, member: ClassicGroupMember, request: JoinGroup) -> ClassicGroupEvent:
        if member.protocols != request.protocols:
            return ClassicGroupEvent.MEMBER_REJOINS_WITH_NEW_METADATA
        if self.roster.is_leader(member.member_id):
            return ClassicGroupEvent.LEADER_REJOINS
        return ClassicGroupEvent.FOLLOWER_REJOINS

    def _assign_member_id(
        self,
        new_id: str,
        request: JoinGroup,
        future: Future,
        now: EventTime,
        result: CoordinatorResult,
    ) -> None:
        deadline_ms = now.monotonic_ms + request.session_timeout_ms
        self.roster.pending[new_id] = deadline_ms
        self._new_member_added = True
        self._schedule_deadline(deadline_ms)
        result.reply(future, JoinGroupResponse(ErrorCode.member_id_required, new_id))

    def _add_member(
        self,
        member_id: str,
        request: JoinGroup,
        future: Future,
        now: EventTime,
        result: CoordinatorResult,
    ) -> None:
        member = ClassicGroupMember(
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
        self._new_member_added = True
        self.roster.add(member, future)
        self._extend_session(member, now, self._config.new_member_join_timeout_ms)
        self._rebalance_or_complete(f"{member_id} joins{why(request.reason)}", now, result)

    def _update(
        self,
        member: ClassicGroupMember,
        request: JoinGroup,
        future: Future,
        now: EventTime,
        result: CoordinatorResult,
    ) -> None:
        self._supersede_join(member, result)
        self._update_from_join(member, request, future)
        reason = f"{member.member_id} joins again{why(request.reason)}"
        self._rebalance_or_complete(reason, now, result)

    def _supersede_join(self, member: ClassicGroupMember, result: CoordinatorResult) -> None:
        """A member that asks twice gets one answer; the older request is told to ask again."""
        if member.waiting_join is not None:
            code = ErrorCode.rebalance_in_progress
            result.reply(member.waiting_join, JoinGroupResponse(code, member.member_id))
            self.roster.set_waiting_join(member, None)

    # SyncGroup

    def sync(self, request: SyncGroup, future: Future, now: EventTime) -> CoordinatorResult:
        result = CoordinatorResult()
        error = self._check_sync(request)
        if error is not NO_ERROR:
            result.reply(future, SyncGroupResponse(error))
            return result
        member = self.roster.members[request.member_id]
        is_leader = self.roster.is_leader(request.member_id)
        event = ClassicGroupEvent.LEADER_SYNCS if is_leader else ClassicGroupEvent.FOLLOWER_SYNCS
        match ACTIONS[event][self.state]:
            case ClassicGroupAction.AWAIT_ASSIGNMENT:
                self._await_assignment(member, future, result)
            case ClassicGroupAction.STORE_ASSIGNMENT:
                self._await_assignment(member, future, result)
                assignments = dict(request.assignments)
                completion = AssignmentWritten(self.group_id, self.generation, assignments)
                self._append_assignment(assignments, completion, result)
            case ClassicGroupAction.RETURN_ASSIGNMENT:
                self._member_synced(member)
                result.reply(future, self._sync_response(member))
            case ClassicGroupAction.REJOIN:
                result.reply(future, SyncGroupResponse(ErrorCode.rebalance_in_progress))
            case _:
                result.reply(future, SyncGroupResponse(ErrorCode.unknown_member_id))
        return result

    def _check_sync(self, request: SyncGroup) -> ErrorCode:
        if self.state is ClassicGroupState.DEAD:
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

    def _await_assignment(
        self, member: ClassicGroupMember, future: Future, result: CoordinatorResult
    ) -> None:
        if member.waiting_sync is not None:
            result.reply(member.waiting_sync, SyncGroupResponse(ErrorCode.rebalance_in_progress))
        member.waiting_sync = future
        self._member_synced(member)

    def _member_synced(self, member: ClassicGroupMember) -> None:
        self.roster.pending_sync_members.pop(member.member_id, None)
        if not self.roster.pending_sync_members:
            self._sync_deadline_ms = None

    # Heartbeat and LeaveGroup

    def heartbeat(self, request: Heartbeat, future: Future, now: EventTime) -> CoordinatorResult:
        result = CoordinatorResult()
        error = self._check_heartbeat(request)
        if error is not NO_ERROR:
            result.reply(future, HeartbeatResponse(error))
            return result
        is_early = now.monotonic_ms < self.initial_arrival_deadline_ms
        event = (
            ClassicGroupEvent.HEARTBEAT_DURING_INITIAL_ARRIVAL
            if is_early
            else ClassicGroupEvent.MEMBER_HEARTBEATS
        )
        step = ACTIONS[event][self.state]
        if step is ClassicGroupAction.REFUSE:
            result.reply(future, HeartbeatResponse(ErrorCode.unknown_member_id))
            return result
        member = self.roster.members[request.member_id]
        self._extend_session(member, now)
        self._respond_heartbeat(member, NO_ERROR, result)
        match step:
            case ClassicGroupAction.DELAY_HEARTBEAT:
                member.waiting_heartbeat = future
                self._schedule_deadline(self.initial_arrival_deadline_ms)
            case ClassicGroupAction.EXTEND_SESSION_AND_REJOIN:
                result.reply(future, HeartbeatResponse(ErrorCode.rebalance_in_progress))
            case _:
                result.reply(future, HeartbeatResponse(NO_ERROR))
        return result

    def _check_heartbeat(self, request: Heartbeat) -> ErrorCode:
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = self.roster.check(request.member_id, request.instance_id)
        if error is NO_ERROR and request.generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def leave(self, request: LeaveGroup, future: Future, now: EventTime) -> CoordinatorResult:
        result = CoordinatorResult()
        step = ACTIONS[ClassicGroupEvent.MEMBERS_LEAVE][self.state]
        if step is ClassicGroupAction.UNAVAILABLE:
            result.reply(future, LeaveGroupResponse(ErrorCode.coordinator_not_available))
            return result
        responses = tuple(self._leave(each, result) for each in request.members)
        gone = [
            each.member_id or each.instance_id or "" for each in responses if each.error is NO_ERROR
        ]
        if gone and step is ClassicGroupAction.REBALANCE:
            reasons = "".join(why(each.reason) for each in request.members if each.reason)
            self._rebalance(f"{', '.join(gone)} left{reasons}", now, result)
        elif gone and step is ClassicGroupAction.COMPLETE_IF_READY:
            self._complete_if_ready(now, result)
        result.reply_after_appends(future, LeaveGroupResponse(NO_ERROR, responses))
        return result

    def _leave(self, leaver: LeavingMember, result: CoordinatorResult) -> LeaveMemberResponse:
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
            self._remove(member_id, result)
        return LeaveMemberResponse(leaver.member_id, leaver.instance_id, error)

    # What may be done to its offsets, and to itself

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now: EventTime,
        *,
        transactional: bool = False,
    ) -> ErrorCode:
        """Whether offsets may be committed under this name; a member that does so is alive."""
        if self.state is ClassicGroupState.DEAD:
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
        if self.state is ClassicGroupState.COMPLETING:
            return ErrorCode.rebalance_in_progress
        self._extend_session(self.roster.members[member_id], now)
        return NO_ERROR

    def check_offset_delete(self) -> ErrorCode:
        """Offsets go while there are members only if we know what those read."""
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.group_id_not_found
        if not self.is_empty and self.protocol_type != CONSUMER_PROTOCOL:
            return ErrorCode.non_empty_group
        return NO_ERROR

    def gone(self) -> tuple[Record, ...]:
        """The records that end it."""
        return (Record(GroupKey(self.group_id), None),)

    def check_delete(self) -> ErrorCode:
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.group_id_not_found
        return NO_ERROR if self.is_empty else ErrorCode.non_empty_group

    # What became of an append

    def appended(self, completion: AppendCompletion, now: EventTime) -> CoordinatorResult:
        """The records of an append are there to stay."""
        result = CoordinatorResult()
        if isinstance(completion, AssignmentWritten):
            if self.generation == completion.generation:
                step = ACTIONS[ClassicGroupEvent.ASSIGNMENT_WRITE_COMMITTED][self.state]
                if step is ClassicGroupAction.COMPLETE_SYNC:
                    self._complete_sync(completion.assignments, now, result)
        elif isinstance(completion, StaticMemberReplaced):
            self._replaced(completion, now, result)
        return result

    def append_failed(
        self, completion: AppendCompletion, code: ErrorCode, now: EventTime, *, written: bool
    ) -> CoordinatorResult:
        """The records are not in the log; or, if `written`, they are and may or may not stay."""
        result = CoordinatorResult()
        if isinstance(completion, AssignmentWritten):
            step = ACTIONS[ClassicGroupEvent.ASSIGNMENT_WRITE_FAILED][self.state]
            if (
                self.generation == completion.generation
                and step is ClassicGroupAction.REBALANCE_WITH_ERROR
            ):
                self._cancel_syncs(code, now, result)
                reason = f"the assignments could not be stored ({code.name})"
                self._rebalance(reason, now, result)
        elif isinstance(completion, StaticMemberReplaced):
            self._static_member_not_replaced(completion, code, written, now, result)
        return result
