"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup. No I/O and no clock.

Members join, the coordinator selects a protocol and a leader, the leader sends the assignments in
SyncGroup, and every member receives its own. A member that joins, leaves or expires starts a
rebalance, which ends with the next generation.

`classic_group_states.ACTIONS` is the action for every event and state. `classic_rebalance` starts
and completes rebalances, `classic_group_timeouts` expires members, and `static_member_replacement`
replaces and fences static members.

Rules: Kafka 4.3; KIP-394 (member ids), KIP-345 (static members), KIP-429 (cooperative rebalancing),
KIP-559 (protocol checks), KIP-800 (reasons), KIP-814 (static leaders).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from odradek.broker.groups.classic_group_members import ClassicGroupMember, ClassicGroupMembers
from odradek.broker.groups.classic_group_states import (
    ACTIONS,
    ClassicGroupAction,
    ClassicGroupEvent,
    ClassicGroupState,
)
from odradek.broker.groups.classic_group_timeouts import ClassicGroupTimeouts
from odradek.broker.groups.classic_rebalance import ClassicRebalance, client_reason
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.messages import (
    NO_ERROR,
    NO_MEMBER_ID,
    AppendCompletion,
    AssignmentWritten,
    ClassicGroupMetadata,
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
from odradek.broker.groups.static_member_replacement import StaticMemberReplacement
from odradek.broker.groups.subscription import CONSUMER_PROTOCOL
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.values import value_class


class ClassicGroupNotFound(KafkaError):
    """The group does not exist or is not a classic group."""

    code = ErrorCode.group_id_not_found


@value_class
class DescribedMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@value_class
class DescribedGroup:
    """Result of DescribeGroups for one group."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


class ClassicGroup:
    """A group of the classic protocol."""

    kind = "classic"

    def __init__(self, group_id: str, config: GroupConfig, now: EventTime) -> None:
        self.group_id = group_id
        self._config = config
        self.rebalance = ClassicRebalance(group_id, config, now)
        self._static_members = StaticMemberReplacement(self.rebalance)
        self._timeouts = ClassicGroupTimeouts(self.rebalance)
        self.members: ClassicGroupMembers = self.rebalance.members

    @classmethod
    def from_metadata(
        cls, group_id: str, metadata: ClassicGroupMetadata, config: GroupConfig
    ) -> ClassicGroup:
        """The group of a group metadata record. `on_group_loaded` starts its timers later.

        Raises InvalidClassicGroupRecord.
        """
        group = cls(group_id, config, EventTime(0, metadata.state_timestamp_ms))
        group.rebalance.load(metadata)
        return group

    @classmethod
    def from_consumer_group(
        cls,
        group_id: str,
        generation: int,
        members: Sequence[ClassicGroupMember],
        config: GroupConfig,
        now: EventTime,
    ) -> ClassicGroup:
        """A stable group of the members of a consumer group. `on_group_loaded` starts its timers."""
        group = cls(group_id, config, now)
        group.rebalance.convert(generation, members)
        return group

    # State

    @property
    def state(self) -> ClassicGroupState:
        return self.rebalance.state

    @property
    def state_timestamp_ms(self) -> int | None:
        return self.rebalance.state_timestamp_ms

    @property
    def generation(self) -> int:
        return self.rebalance.generation

    @property
    def protocol(self) -> str | None:
        return self.rebalance.protocol

    @property
    def protocol_type(self) -> str | None:
        return self.members.protocol_type

    @property
    def subscriptions(self) -> frozenset[str] | None:
        """Topics that the members subscribe to; None if unknown."""
        return self.rebalance.subscriptions

    @property
    def is_empty(self) -> bool:
        return self.rebalance.is_empty

    @property
    def next_deadline_ms(self) -> int | None:
        """Time of the next `tick`."""
        return self.rebalance.next_deadline_ms

    def deadlines(self) -> Iterator[int]:
        """All deadlines of the group, in no order."""
        return self._timeouts.deadlines()

    def waiting_futures(self) -> Iterator[Future]:
        """Futures of all requests that wait in this group."""
        return self.rebalance.waiting_futures()

    def current_assignments(self) -> dict[str, bytes]:
        """The assignments of the members by member id."""
        return self.rebalance.current_assignments()

    def to_metadata(self, assignments: Mapping[str, bytes]) -> ClassicGroupMetadata:
        """The record value of the current generation with these assignments."""
        return self.rebalance.to_metadata(assignments)

    def describe(self) -> DescribedGroup:
        """Result of DescribeGroups. Protocol and metadata are set only while the group is stable."""
        is_stable = self.state is ClassicGroupState.STABLE
        return DescribedGroup(
            self.group_id,
            self.state_name,
            self.protocol_type or "",
            (self.protocol or "") if is_stable else "",
            tuple(
                DescribedMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(self.protocol) if is_stable else b"",
                    member.assignment,
                )
                for member in self.members.by_id.values()
            ),
        )

    def on_group_loaded(self, now: EventTime) -> CoordinatorResult:
        """Start the sessions of the members after the group was loaded."""
        return self.rebalance.on_group_loaded(now)

    def start_rebalance(self, reason: str, now: EventTime) -> CoordinatorResult:
        """Start a rebalance for a reason outside the group."""
        result = CoordinatorResult()
        self.rebalance.start(reason, now, result)
        return result

    def tick(self, now: EventTime) -> CoordinatorResult:
        """Handle the deadlines that are due."""
        return self._timeouts.check(now)

    def close(self, code: ErrorCode, now: EventTime) -> CoordinatorResult:
        """Close the group after it was deleted or its partition unloaded: waiting requests fail
        with `code`."""
        return self.rebalance.close(code, now)

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_simple(self) -> bool:
        """Whether the group has only offsets: no member ever joined it."""
        return (
            self.protocol_type is None and self.is_empty and not self.members.pending_join_members
        )

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members subscribe to the topic. If their metadata is invalid, they count as
        subscribed to every topic."""
        if self.subscriptions is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscriptions

    def offset_expiration_rule(self) -> OffsetExpirationRule | None:
        """When this group's offsets expire (KIP-211); None if they do not expire in this state."""
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
        """Whether group.max.size accepts the member.

        In the join phase only members that have joined count, so that in a group that is too large
        the last ones to join are rejected. In later states all members count.
        """
        member = self.members.by_id.get(member_id)
        if self.state is ClassicGroupState.PREPARING:
            if member is not None and member.waiting_join is not None:
                return True
            return self.members.waiting_join_count < self._config.max_size
        if self.state in (ClassicGroupState.COMPLETING, ClassicGroupState.STABLE):
            return member is not None or len(self.members) < self._config.max_size
        return True

    def _reject_full_group(
        self, member_id: str, future: Future, now: EventTime, result: CoordinatorResult
    ) -> None:
        self.members.remove(member_id)
        result.reply(future, JoinGroupResponse(ErrorCode.group_max_size_reached, NO_MEMBER_ID))
        self.rebalance.complete_join_if_ready(now, result)

    def _supports(self, request: JoinGroup) -> bool:
        """Whether the request has a protocol that all members support."""
        if self.is_empty:
            return bool(request.protocol_type) and bool(request.protocols)
        return request.protocol_type == self.protocol_type and self.members.supports_any_protocol(
            [name for name, _ in request.protocols]
        )

    def _join_unknown(
        self, request: JoinGroup, future: Future, now: EventTime, result: CoordinatorResult
    ) -> None:
        if request.instance_id is None:
            new_id = f"{request.client_id}-{request.member_uuid}"
            event = (
                ClassicGroupEvent.MEMBER_ID_REQUIRED
                if request.id_required
                else ClassicGroupEvent.NEW_MEMBER_JOINS
            )
        else:
            new_id = f"{request.instance_id}-{request.member_uuid}"
            is_known = request.instance_id in self.members.static_members
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
            case action:
                self._static_members.replace(new_id, action, request, future, now, result)

    def _join_known(
        self, request: JoinGroup, future: Future, now: EventTime, result: CoordinatorResult
    ) -> None:
        member_id = request.member_id
        if member_id in self.members.pending_join_members:
            if request.instance_id is not None:  # only dynamic members have pending ids
                code = ErrorCode.unknown_server_error
                result.reply(future, JoinGroupResponse(code, NO_MEMBER_ID))
                return
            self._add_member(member_id, request, future, now, result)
            return
        error = self.members.check(member_id, request.instance_id)
        if error is not NO_ERROR:
            result.reply(future, JoinGroupResponse(error, member_id))
            return
        member = self.members.by_id[member_id]
        match ACTIONS[self._rejoin_event(member, request)][self.state]:
            case ClassicGroupAction.UPDATE:
                self._update(member, request, future, now, result)
            case ClassicGroupAction.RETURN_CURRENT_GENERATION:
                result.reply(future, self.rebalance.join_response(member))
            case _:
                result.reply(future, JoinGroupResponse(ErrorCode.unknown_member_id, member_id))

    def _rejoin_event(self, member: ClassicGroupMember, request: JoinGroup) -> ClassicGroupEvent:
        if member.protocols != request.protocols:
            return ClassicGroupEvent.MEMBER_REJOINS_WITH_NEW_METADATA
        if self.members.is_leader(member.member_id):
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
        self.members.pending_join_members[new_id] = deadline_ms
        self.rebalance.on_member_added()
        self.rebalance.schedule_deadline(deadline_ms)
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
        self.rebalance.on_member_added()
        self.members.add(member, future)
        self.rebalance.extend_session(member, now, self._config.new_member_join_timeout_ms)
        self.rebalance.start_or_complete(
            f"adding new member {member_id}{client_reason(request.reason)}", now, result
        )

    def _update(
        self,
        member: ClassicGroupMember,
        request: JoinGroup,
        future: Future,
        now: EventTime,
        result: CoordinatorResult,
    ) -> None:
        self._supersede_join(member, result)
        self.rebalance.update_member(member, request, future)
        reason = f"updating metadata for member {member.member_id}{client_reason(request.reason)}"
        self.rebalance.start_or_complete(reason, now, result)

    def _supersede_join(self, member: ClassicGroupMember, result: CoordinatorResult) -> None:
        """Complete an older JoinGroup of the member with REBALANCE_IN_PROGRESS."""
        if member.waiting_join is not None:
            code = ErrorCode.rebalance_in_progress
            result.reply(member.waiting_join, JoinGroupResponse(code, member.member_id))
            self.members.set_waiting_join(member, None)

    # SyncGroup

    def sync(self, request: SyncGroup, future: Future, now: EventTime) -> CoordinatorResult:
        result = CoordinatorResult()
        error = self._check_sync(request)
        if error is not NO_ERROR:
            result.reply(future, SyncGroupResponse(error))
            return result
        member = self.members.by_id[request.member_id]
        is_leader = self.members.is_leader(request.member_id)
        event = ClassicGroupEvent.LEADER_SYNCS if is_leader else ClassicGroupEvent.FOLLOWER_SYNCS
        match ACTIONS[event][self.state]:
            case ClassicGroupAction.AWAIT_ASSIGNMENT:
                self._await_assignment(member, future, result)
            case ClassicGroupAction.STORE_ASSIGNMENT:
                self._await_assignment(member, future, result)
                assignments = dict(request.assignments)
                completion = AssignmentWritten(self.group_id, self.generation, assignments)
                self.rebalance.append_assignments(assignments, completion, result)
            case ClassicGroupAction.RETURN_ASSIGNMENT:
                self.rebalance.on_member_synced(member)
                result.reply(future, self.rebalance.sync_response(member))
            case ClassicGroupAction.REJOIN:
                result.reply(future, SyncGroupResponse(ErrorCode.rebalance_in_progress))
            case _:
                result.reply(future, SyncGroupResponse(ErrorCode.unknown_member_id))
        return result

    def _check_sync(self, request: SyncGroup) -> ErrorCode:
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = self.members.check(request.member_id, request.instance_id)
        if error is not NO_ERROR:
            return error
        if request.generation != self.generation:
            return ErrorCode.illegal_generation
        for requested, current in (
            (request.protocol_type, self.protocol_type),
            (request.protocol_name, self.protocol),
        ):
            if requested is not None and current is not None and requested != current:
                return ErrorCode.inconsistent_group_protocol
        return NO_ERROR

    def _await_assignment(
        self, member: ClassicGroupMember, future: Future, result: CoordinatorResult
    ) -> None:
        if member.waiting_sync is not None:
            result.reply(member.waiting_sync, SyncGroupResponse(ErrorCode.rebalance_in_progress))
        member.waiting_sync = future
        self.rebalance.on_member_synced(member)

    # Heartbeat and LeaveGroup

    def heartbeat(self, request: Heartbeat, future: Future, now: EventTime) -> CoordinatorResult:
        result = CoordinatorResult()
        error = self._check_heartbeat(request)
        if error is not NO_ERROR:
            result.reply(future, HeartbeatResponse(error))
            return result
        is_early = now.monotonic_ms < self.rebalance.heartbeat_delay_until_ms
        event = (
            ClassicGroupEvent.HEARTBEAT_AFTER_INITIAL_REBALANCE
            if is_early
            else ClassicGroupEvent.MEMBER_HEARTBEATS
        )
        action = ACTIONS[event][self.rebalance.state]
        if action is ClassicGroupAction.UNKNOWN_MEMBER:
            result.reply(future, HeartbeatResponse(ErrorCode.unknown_member_id))
            return result
        member = self.members.by_id[request.member_id]
        self.rebalance.extend_session(member, now)
        if member.waiting_heartbeat is not None:
            self.rebalance.complete_heartbeat(member, NO_ERROR, result)
        match action:
            case ClassicGroupAction.DELAY_HEARTBEAT:
                member.waiting_heartbeat = future
                self.rebalance.schedule_deadline(self.rebalance.heartbeat_delay_until_ms)
            case ClassicGroupAction.EXTEND_SESSION_AND_REJOIN:
                result.reply(future, HeartbeatResponse(ErrorCode.rebalance_in_progress))
            case _:
                result.reply(future, HeartbeatResponse(NO_ERROR))
        return result

    def _check_heartbeat(self, request: Heartbeat) -> ErrorCode:
        if self.rebalance.state is ClassicGroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = self.members.check(request.member_id, request.instance_id)
        if error is NO_ERROR and request.generation != self.rebalance.generation:
            return ErrorCode.illegal_generation
        return error

    def leave(self, request: LeaveGroup, future: Future, now: EventTime) -> CoordinatorResult:
        result = CoordinatorResult()
        action = ACTIONS[ClassicGroupEvent.MEMBERS_LEAVE][self.state]
        if action is ClassicGroupAction.UNAVAILABLE:
            result.reply(future, LeaveGroupResponse(ErrorCode.coordinator_not_available))
            return result
        responses = tuple(self._leave(leaver, result) for leaver in request.members)
        removed = [
            left.member_id or left.instance_id or "" for left in responses if left.error is NO_ERROR
        ]
        if removed and action is ClassicGroupAction.REBALANCE:
            reasons = "".join(client_reason(leaver.reason) for leaver in request.members)
            self.rebalance.start(
                f"removing {', '.join(removed)} on LeaveGroup{reasons}", now, result
            )
        elif removed and action is ClassicGroupAction.COMPLETE_IF_READY:
            self.rebalance.complete_join_if_ready(now, result)
        result.reply_after_appends(future, LeaveGroupResponse(NO_ERROR, responses))
        return result

    def _leave(self, leaver: LeavingMember, result: CoordinatorResult) -> LeaveMemberResponse:
        member_id = leaver.member_id
        if member_id == NO_MEMBER_ID:
            name = leaver.instance_id
            holder = None if name is None else self.members.static_members.get(name)
            error = NO_ERROR if holder is not None else ErrorCode.unknown_member_id
            member_id = holder or NO_MEMBER_ID
        elif member_id in self.members.pending_join_members:
            error = NO_ERROR
        else:
            error = self.members.check(member_id, leaver.instance_id)
        if error is NO_ERROR:
            self.rebalance.remove_member(member_id, result)
        return LeaveMemberResponse(leaver.member_id, leaver.instance_id, error)

    # Checks of offset and group requests

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now: EventTime,
        *,
        transactional: bool = False,
    ) -> ErrorCode:
        """Check an OffsetCommit or TxnOffsetCommit; an OffsetCommit extends the member's session.

        UNKNOWN_MEMBER_ID also for a commit without a member id while the group has members.
        """
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if generation < 0 and self.is_empty:
            return NO_ERROR
        has_identity = generation >= 0 or member_id != NO_MEMBER_ID or instance_id is not None
        if has_identity:
            error = self.members.check(member_id, instance_id)
            if error is not NO_ERROR:
                return error
            if generation != self.generation:
                return ErrorCode.illegal_generation
        elif not transactional:
            return ErrorCode.unknown_member_id
        if transactional:
            return NO_ERROR
        if self.state is ClassicGroupState.COMPLETING:
            return ErrorCode.rebalance_in_progress
        self.rebalance.extend_session(self.members.by_id[member_id], now)
        return NO_ERROR

    def check_offset_delete(self) -> ErrorCode:
        """Check OffsetDelete. A group with members must have the protocol type "consumer", whose
        subscriptions are known."""
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.group_id_not_found
        if not self.is_empty and self.protocol_type != CONSUMER_PROTOCOL:
            return ErrorCode.non_empty_group
        return NO_ERROR

    def tombstones(self) -> tuple[Record, ...]:
        """The records that delete the group."""
        return (Record(GroupKey(self.group_id), None),)

    def check_delete(self) -> ErrorCode:
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.group_id_not_found
        return NO_ERROR if self.is_empty else ErrorCode.non_empty_group

    # Append results

    def appended(self, completion: AppendCompletion, now: EventTime) -> CoordinatorResult:
        """Complete an append whose records are committed."""
        result = CoordinatorResult()
        if isinstance(completion, AssignmentWritten):
            if self.generation == completion.generation:
                action = ACTIONS[ClassicGroupEvent.ASSIGNMENT_WRITE_COMMITTED][self.state]
                if action is ClassicGroupAction.COMPLETE_SYNC:
                    self.rebalance.complete_sync(completion.assignments, now, result)
        elif isinstance(completion, StaticMemberReplaced):
            self._static_members.on_committed(completion, now, result)
        return result

    def append_failed(
        self, completion: AppendCompletion, code: ErrorCode, now: EventTime, *, written: bool
    ) -> CoordinatorResult:
        """Handle an append that failed. If `written`, the records are in the log but not committed."""
        result = CoordinatorResult()
        if isinstance(completion, AssignmentWritten):
            action = ACTIONS[ClassicGroupEvent.ASSIGNMENT_WRITE_FAILED][self.state]
            if (
                self.generation == completion.generation
                and action is ClassicGroupAction.REBALANCE_WITH_ERROR
            ):
                self.rebalance.cancel_syncs(code, now, result)
                reason = f"error {code.name} when storing group assignment"
                self.rebalance.start(reason, now, result)
        elif isinstance(completion, StaticMemberReplaced):
            self._static_members.on_failed(completion, code, written, now, result)
        return result
