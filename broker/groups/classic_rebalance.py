"""Rebalances of a classic group: start, join phase, sync phase, and the next generation.

`ClassicRebalance` has the state of the group: members, generation, protocol, and deadlines. A
request that can't complete is kept as its future. `classic_group_timeouts` handles due deadlines.

Invariants: every waiting JoinGroup, SyncGroup and Heartbeat completes by a deadline or a pending
append; generations only grow; a stable group equals the replay of its last record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from odradek.broker.groups.classic_group_members import ClassicGroupMember, ClassicGroupMembers
from odradek.broker.groups.classic_group_states import VALID_TRANSITIONS, ClassicGroupState
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.messages import (
    NO_ERROR,
    NO_MEMBER_ID,
    AppendCompletion,
    ClassicGroupMetadata,
    CoordinatorResult,
    EventTime,
    Future,
    GroupKey,
    HeartbeatResponse,
    JoinGroup,
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
"""Minimum delay before a rebalance that no member joined is retried; else it is the rebalance timeout."""
REASON_CHARS_MAX = 255


class InvalidClassicGroupRecord(KafkaError):
    """A group metadata record that violates an invariant of classic groups."""

    code = ErrorCode.corrupt_message


class ClassicRebalance:
    """State, rebalance and deadlines of one classic group."""

    def __init__(self, group_id: str, config: GroupConfig, now: EventTime) -> None:
        self.group_id = group_id
        self.config = config
        self.state = ClassicGroupState.EMPTY
        self.previous_state = ClassicGroupState.DEAD
        self.state_timestamp_ms: int | None = now.wall_ms
        self.generation = 0
        self.protocol: str | None = None
        self.members = ClassicGroupMembers()
        self.subscriptions: frozenset[str] | None = None
        """Topics that the members subscribe to; None if unknown."""
        self.join_deadline_ms: int | None = None
        self._join_extension_ms: int | None = None
        """By how much the initial rebalance may still be extended; None in other rebalances."""
        self._new_member_added = False
        """Whether a member joined or got its member id since the initial rebalance was last extended."""
        self.sync_deadline_ms: int | None = None
        self.heartbeat_delay_until_ms = 0
        """`DELAYED_HEARTBEAT_MS` after the initial rebalance began. Until then a stable group delays Heartbeat
        responses, so that they report the rebalance that the next member to join causes."""
        self.next_deadline_ms: int | None = None
        """Time of the next timeout check. Possibly earlier than the next deadline, never later."""

    def load(self, metadata: ClassicGroupMetadata) -> None:
        """Set the state to that of a record. `on_group_loaded` starts the timers later.

        Raises InvalidClassicGroupRecord.
        """
        _check_record(metadata)
        self.generation = metadata.generation
        self.protocol = metadata.protocol
        self.members.protocol_type = metadata.protocol_type or None
        if any(member.member_id == metadata.leader for member in metadata.members):
            self.members.leader_id = metadata.leader
        timestamp_ms = metadata.state_timestamp_ms
        self.state_timestamp_ms = None if timestamp_ms == -1 else timestamp_ms
        for each in metadata.members:
            rebalance_timeout_ms = each.rebalance_timeout_ms
            if rebalance_timeout_ms == -1:  # version 0 of the record has no rebalance timeout
                rebalance_timeout_ms = each.session_timeout_ms
            member = ClassicGroupMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                rebalance_timeout_ms,
                each.session_timeout_ms,
                metadata.protocol_type,
                ((metadata.protocol or "", each.subscription),),
                each.assignment,
            )
            self.members.add(member, None)
        self.state = ClassicGroupState.STABLE if metadata.members else ClassicGroupState.EMPTY
        self.update_subscriptions()

    def convert(self, generation: int, members: Sequence[ClassicGroupMember]) -> None:
        """Become a stable group of these members, which were in a consumer group."""
        self.generation = generation
        for member in members:
            self.members.add(member, None)
        self.protocol = self.members.select_protocol()
        self.state = ClassicGroupState.STABLE
        self.update_subscriptions()

    def on_group_loaded(self, now: EventTime) -> CoordinatorResult:
        """Start the sessions of the members after the group was loaded."""
        result = CoordinatorResult()
        for member in self.members.by_id.values():
            self.extend_session(member, now)
        if len(self.members) > self.config.max_size:
            reason = f"the loaded group is over capacity {self.config.max_size}"
            self.start(reason, now, result)
        return result

    # State

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicGroupState.EMPTY

    @property
    def protocol_type(self) -> str | None:
        return self.members.protocol_type

    def to_metadata(self, assignments: Mapping[str, bytes]) -> ClassicGroupMetadata:
        """The record value of the current generation with these assignments."""
        protocol = self.protocol
        members = self.members.by_id.values() if protocol is not None else ()
        return ClassicGroupMetadata(
            self.protocol_type or "",
            self.generation,
            protocol,
            self.members.leader_id,
            -1 if self.state_timestamp_ms is None else self.state_timestamp_ms,
            tuple(
                member.to_metadata(protocol or "", assignments.get(member.member_id, NO_ASSIGNMENT))
                for member in members
            ),
        )

    def waiting_futures(self) -> Iterator[Future]:
        """Futures of all requests that wait in this group."""
        for member in self.members.by_id.values():
            if member.waiting_join is not None:
                yield member.waiting_join
            if member.waiting_sync is not None:
                yield member.waiting_sync
            if member.waiting_heartbeat is not None:
                yield member.waiting_heartbeat

    def transition_to(self, state: ClassicGroupState, now: EventTime) -> None:
        assert state in VALID_TRANSITIONS[self.state], f"{self.state} does not become {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now.wall_ms

    def update_subscriptions(self) -> None:
        """Decode the topics that the members subscribe to, if the protocol type is "consumer"."""
        self.subscriptions = None
        if self.protocol_type != CONSUMER_PROTOCOL:
            return
        if not len(self.members):
            self.subscriptions = frozenset()
        elif self.protocol is not None:
            self.subscriptions = subscribed_topics(
                member.metadata(self.protocol) for member in self.members.by_id.values()
            )

    def current_assignments(self) -> dict[str, bytes]:
        """The assignments of the members by member id."""
        return {member.member_id: member.assignment for member in self.members.by_id.values()}

    # Join phase

    @property
    def _is_initial_rebalance(self) -> bool:
        """Whether this is the rebalance of a group that was empty, which waits for more members."""
        return (
            self.state is ClassicGroupState.PREPARING
            and self.previous_state is ClassicGroupState.EMPTY
        )

    def start_or_complete(self, reason: str, now: EventTime, result: CoordinatorResult) -> None:
        """Start a rebalance, or complete the join phase of the current one if all members joined."""
        if self.state is ClassicGroupState.PREPARING:
            self.complete_join_if_ready(now, result)
        else:
            self.start(reason, now, result)

    def start(self, reason: str, now: EventTime, result: CoordinatorResult) -> None:
        """Start a rebalance: all members have to rejoin."""
        result.notes.append(
            f"preparing to rebalance with old generation {self.generation} (reason: {reason})"
        )
        if self.state is ClassicGroupState.COMPLETING:
            self.cancel_syncs(ErrorCode.rebalance_in_progress, now, result)
        self.complete_heartbeats(ErrorCode.rebalance_in_progress, result)
        self.members.pending_sync_members.clear()
        self.sync_deadline_ms = None
        is_initial = self.is_empty
        self.transition_to(ClassicGroupState.PREPARING, now)
        if is_initial:
            self._start_initial_rebalance(now)
        elif self.members.all_joined:
            self.complete_join(now, result)
        else:
            self._set_join_deadline(self.members.rebalance_timeout_ms, now)

    def _start_initial_rebalance(self, now: EventTime) -> None:
        """Wait for more members (group.initial.rebalance.delay.ms). Even without a delay the join
        phase completes in the next timeout check, not in this call."""
        delay_ms = self.config.initial_rebalance_delay_ms
        self._join_extension_ms = max(self.members.rebalance_timeout_ms - delay_ms, 0)
        self._new_member_added = False
        self.heartbeat_delay_until_ms = now.monotonic_ms + self.config.delayed_heartbeat_ms
        self._set_join_deadline(delay_ms, now)

    def on_member_added(self) -> None:
        """A member joined or got its member id: an initial rebalance is extended."""
        self._new_member_added = True

    def complete_or_extend_initial_join(self, now: EventTime, result: CoordinatorResult) -> None:
        """Extend the initial rebalance while members are added; complete the join phase otherwise.

        A member that only got its member id counts as added. Kafka does not wait for it and has to
        rebalance again when it joins.
        """
        remaining_ms = self._join_extension_ms
        if not remaining_ms or not self._new_member_added:
            self.complete_join(now, result)
            return
        delay_ms = min(self.config.initial_rebalance_delay_ms, remaining_ms)
        self._new_member_added = False
        self._join_extension_ms = remaining_ms - delay_ms
        self._set_join_deadline(delay_ms, now)

    def complete_join_if_ready(self, now: EventTime, result: CoordinatorResult) -> None:
        """Complete the join phase if all members joined, except in the initial rebalance."""
        is_ready = self.state is ClassicGroupState.PREPARING and self.members.all_joined
        if is_ready and not self._is_initial_rebalance:
            self.complete_join(now, result)

    def complete_join(self, now: EventTime, result: CoordinatorResult) -> None:
        """Complete the join phase and start the next generation. Dynamic members that did not
        rejoin are removed; static members stay."""
        self.join_deadline_ms = self._join_extension_ms = None
        for member in list(self.members.by_id.values()):
            if member.waiting_join is None and not member.is_static:
                result.notes.append(f"{member.member_id} did not join in time and is removed")
                self.members.remove(member.member_id)
        if len(self.members) and not self.members.elect_joined_leader():
            # Only static members are left and none has joined: wait until they join or expire.
            self._set_join_deadline(
                max(self.members.rebalance_timeout_ms, REBALANCE_RETRY_MS_MIN), now
            )
            return
        self.generation += 1
        self.protocol = self.members.select_protocol() if len(self.members) else None
        self.update_subscriptions()
        self.members.pending_sync_members.clear()
        if self.protocol is None:
            self.transition_to(ClassicGroupState.EMPTY, now)
            result.notes.append(f"generation {self.generation} is now empty")
            record = Record(GroupKey(self.group_id), self.to_metadata({}))
            result.appends.append(RecordAppend((record,), replay=False))
        else:
            self.transition_to(ClassicGroupState.COMPLETING, now)
            self._start_sync(now, result)

    def _start_sync(self, now: EventTime, result: CoordinatorResult) -> None:
        """Send the JoinGroup responses; members have their rebalance timeout to send SyncGroup."""
        for member in self.members.by_id.values():
            if member.waiting_join is not None:
                result.reply(member.waiting_join, self.join_response(member))
                self.members.set_waiting_join(member, None)
            member.is_new = False
            self.extend_session(member, now)
            self.members.pending_sync_members[member.member_id] = None
        result.notes.append(
            f"stabilized generation {self.generation} with {len(self.members)} members"
        )
        self.sync_deadline_ms = now.monotonic_ms + max(self.members.rebalance_timeout_ms, 0)
        self.schedule_deadline(self.sync_deadline_ms)

    def join_response(self, member: ClassicGroupMember) -> JoinGroupResponse:
        """Response to a member of the current generation; only the leader gets the members."""
        is_leader = self.members.is_leader(member.member_id)
        return JoinGroupResponse(
            NO_ERROR,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.members.leader_id or NO_MEMBER_ID,
            members=self._join_group_members() if is_leader else (),
        )

    def _join_group_members(self) -> tuple[JoinGroupMember, ...]:
        return tuple(
            JoinGroupMember(member.member_id, member.instance_id, member.metadata(self.protocol))
            for member in self.members.by_id.values()
        )

    def update_member(self, member: ClassicGroupMember, request: JoinGroup, future: Future) -> None:
        """Apply a JoinGroup request to a member that rejoins, and keep the request waiting."""
        self.members.update(
            member,
            request.protocols,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            future,
        )

    # Sync phase

    def append_assignments(
        self,
        assignments: Mapping[str, bytes],
        completion: AppendCompletion,
        result: CoordinatorResult,
    ) -> None:
        """Append the group metadata record with these assignments."""
        record = Record(GroupKey(self.group_id), self.to_metadata(assignments))
        result.appends.append(RecordAppend((record,), completion, replay=False))

    def complete_sync(
        self, assignments: Mapping[str, bytes], now: EventTime, result: CoordinatorResult
    ) -> None:
        """Complete the rebalance: the group is stable and members get their assignments."""
        self.transition_to(ClassicGroupState.STABLE, now)
        result.completed_rebalances += 1
        for member in self.members.by_id.values():
            member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
            if member.waiting_sync is not None:
                result.reply(member.waiting_sync, self.sync_response(member))
                member.waiting_sync = None
                self.extend_session(member, now)

    def cancel_syncs(self, code: ErrorCode, now: EventTime, result: CoordinatorResult) -> None:
        """Clear the assignments and fail waiting SyncGroup requests with `code`."""
        for member in self.members.by_id.values():
            member.assignment = NO_ASSIGNMENT
            if member.waiting_sync is not None:
                result.reply(member.waiting_sync, SyncGroupResponse(code))
                member.waiting_sync = None
                self.extend_session(member, now)

    def on_member_synced(self, member: ClassicGroupMember) -> None:
        self.members.pending_sync_members.pop(member.member_id, None)
        if not self.members.pending_sync_members:
            self.sync_deadline_ms = None

    def sync_response(self, member: ClassicGroupMember) -> SyncGroupResponse:
        return SyncGroupResponse(NO_ERROR, self.protocol_type, self.protocol, member.assignment)

    # Members and sessions

    def remove_member(self, member_id: str, result: CoordinatorResult) -> None:
        """Remove a member or a pending member id; its waiting requests get UNKNOWN_MEMBER_ID."""
        member = self.members.by_id.get(member_id)
        code = ErrorCode.unknown_member_id
        if member is not None and member.waiting_join is not None:
            result.reply(member.waiting_join, JoinGroupResponse(code, NO_MEMBER_ID))
        if member is not None and member.waiting_sync is not None:
            result.reply(member.waiting_sync, SyncGroupResponse(code))
        if member is not None:
            self.complete_heartbeat(member, code, result)
        self.members.remove(member_id)

    def complete_heartbeats(self, code: ErrorCode, result: CoordinatorResult) -> None:
        """Complete all delayed Heartbeat requests."""
        for member in self.members.by_id.values():
            self.complete_heartbeat(member, code, result)

    def complete_heartbeat(
        self, member: ClassicGroupMember, code: ErrorCode, result: CoordinatorResult
    ) -> None:
        """Complete the member's delayed Heartbeat request, if there is one."""
        if member.waiting_heartbeat is not None:
            result.reply(member.waiting_heartbeat, HeartbeatResponse(code))
            member.waiting_heartbeat = None

    def extend_session(
        self, member: ClassicGroupMember, now: EventTime, timeout_ms: int | None = None
    ) -> None:
        """Restart the member's session; `timeout_ms` replaces its session timeout."""
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        member.deadline_ms = now.monotonic_ms + timeout_ms
        self.schedule_deadline(member.deadline_ms)

    def _set_join_deadline(self, delay_ms: int, now: EventTime) -> None:
        self.join_deadline_ms = now.monotonic_ms + max(delay_ms, 0)
        self.schedule_deadline(self.join_deadline_ms)

    def schedule_deadline(self, deadline_ms: int) -> None:
        if self.next_deadline_ms is None or deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms

    def close(self, code: ErrorCode, now: EventTime) -> CoordinatorResult:
        """Close the group after it was deleted or its partition unloaded: waiting requests fail
        with `code`."""
        result = CoordinatorResult()
        for member in self.members.by_id.values():
            if member.waiting_join is not None:
                result.reply(member.waiting_join, JoinGroupResponse(code, member.member_id))
                self.members.set_waiting_join(member, None)
            if member.waiting_sync is not None:
                result.reply(member.waiting_sync, SyncGroupResponse(code))
                member.waiting_sync = None
            self.complete_heartbeat(member, code, result)
            member.deadline_ms = None
        self.members.pending_join_members.clear()
        self.join_deadline_ms = self.sync_deadline_ms = self.next_deadline_ms = None
        if self.state is not ClassicGroupState.DEAD:
            self.transition_to(ClassicGroupState.DEAD, now)
        return result


def client_reason(reason: str | None) -> str:
    """The client's reason (KIP-800) as a suffix of a log line."""
    return f"; client reason: {reason[:REASON_CHARS_MAX]}" if reason else ""


def _check_record(metadata: ClassicGroupMetadata) -> None:
    """Check the invariants of `ClassicGroupMembers`. Raises InvalidClassicGroupRecord."""
    member_ids = {member.member_id for member in metadata.members}
    instance_ids = [
        member.instance_id for member in metadata.members if member.instance_id is not None
    ]
    if len(member_ids) != len(metadata.members) or len(set(instance_ids)) != len(instance_ids):
        raise InvalidClassicGroupRecord("two members have the same member id or instance id")
    if metadata.members and (metadata.protocol is None or not metadata.protocol_type):
        raise InvalidClassicGroupRecord("the group has members but no protocol")
