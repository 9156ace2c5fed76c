"""Requests and timeouts of the consumer groups of a shard.

The records of a request are appended in one batch. The response waits for them, or for earlier
records if there are none, so that no client sees an assignment that could be reverted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from odradek.broker.groups.classic_group import ClassicGroup
from odradek.broker.groups.consumer import classic_protocol as classic_members
from odradek.broker.groups.consumer import heartbeat as heartbeats
from odradek.broker.groups.consumer import migration
from odradek.broker.groups.consumer.consumer_group import ConsumerGroup
from odradek.broker.groups.consumer.environment import ConsumerGroupEnvironment
from odradek.broker.groups.consumer.group_state import ConsumerGroupUpdate
from odradek.broker.groups.consumer.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from odradek.broker.groups.consumer.record_helpers import ResolvedRegularExpression
from odradek.broker.groups.messages import (
    NO_ERROR,
    NO_MEMBER_ID,
    AppendCompletion,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResponse,
    CoordinatorResult,
    EventTime,
    Future,
    GroupConverted,
    GroupKey,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveGroupResponse,
    MembersExpired,
    Record,
    RecordAppend,
    Reply,
    ResolveRegularExpressions,
    SendReplies,
    SyncGroup,
    SyncGroupResponse,
)
from odradek.protocol.errors import ErrorCode, KafkaError

Group: TypeAlias = ClassicGroup | ConsumerGroup
EXPIRATION_RETRY_MS = 500
"""How soon a member that is too late is removed again, when that could not be written."""


class ConsumerGroupNotFound(KafkaError):
    code = ErrorCode.group_id_not_found


class ConsumerGroupManager:
    """Operates on the groups of one shard; the shard owns the dictionary of groups."""

    def __init__(self, groups: dict[str, Group], environment: ConsumerGroupEnvironment) -> None:
        self._groups = groups
        self._environment = environment

    def group(self, group_id: str) -> ConsumerGroup:
        """Raises NotConsumerGroup."""
        group = self._groups.get(group_id)
        if group is None:
            raise ConsumerGroupNotFound(f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise ConsumerGroupNotFound(f"Group {group_id} is not a consumer group.")
        return group

    # ConsumerGroupHeartbeat

    def heartbeat(
        self, request: ConsumerGroupHeartbeat, future: Future, now: EventTime
    ) -> CoordinatorResult:
        try:
            if request.epoch < JOIN_EPOCH:
                return self._leave(request, future, now)
            return self._heartbeat(request, future, now)
        except KafkaError as error:
            respond = ConsumerGroupHeartbeatResponse(error.code, error.message or None)
            return CoordinatorResult(replies=[Reply(future, respond)])

    def _heartbeat(
        self, request: ConsumerGroupHeartbeat, future: Future, now: EventTime
    ) -> CoordinatorResult:
        group, update = self._get_or_create_group(request, now)
        before = self._groups.get(request.group_id)
        respond = heartbeats.heartbeat(group, update, request, now)
        reply = (Reply(future, respond),)
        completion: AppendCompletion = SendReplies(reply)
        if group is not before:  # it takes its place before its records are replayed
            self._groups[request.group_id] = group
            completion = GroupConverted(request.group_id, before, reply)
        result = _append(update.records, completion)
        expressions = group.regular_expressions_to_resolve(update, now)
        if expressions:
            group.is_resolving_regular_expressions = True
            result.resolves.append(
                ResolveRegularExpressions(request.group_id, expressions, request.may_see)
            )
        return result

    def _get_or_create_group(
        self, request: ConsumerGroupHeartbeat, now: EventTime
    ) -> tuple[ConsumerGroup, ConsumerGroupUpdate]:
        """The group, as it is or as it will be. Only one who joins makes one, or makes a classic
        group one. Raises GROUP_ID_NOT_FOUND."""
        group_id, group = request.group_id, self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group, ConsumerGroupUpdate(group.state)
        if request.epoch != JOIN_EPOCH:
            if group is None:
                raise ConsumerGroupNotFound(f"Consumer group {group_id} not found.")
            raise ConsumerGroupNotFound(f"Group {group_id} is not a consumer group.")
        if group is not None and not group.is_empty:
            return migration.upgrade(group, self._environment, now)
        made = ConsumerGroup(group_id, self._environment)
        update = ConsumerGroupUpdate(made.state)
        if group is not None:
            update.records.append(Record(GroupKey(group_id), None))
        return made, update

    def _leave(
        self, request: ConsumerGroupHeartbeat, future: Future, now: EventTime
    ) -> CoordinatorResult:
        group = self.group(request.group_id)
        member = heartbeats.leaver(group, request)
        if request.epoch == STATIC_LEAVE_EPOCH:
            update = ConsumerGroupUpdate(group.state)
            respond = heartbeats.leave_for_now(group, update, member)
            return _append(update.records, SendReplies((Reply(future, respond),)))
        respond = ConsumerGroupHeartbeatResponse(NO_ERROR, None, request.member_id, request.epoch)
        reply = (Reply(future, respond),)
        result = self._fence(group, (member.member_id,), SendReplies(reply), now)
        result.notes.append(f"{member.member_id} left")
        return result

    def _fence(
        self,
        group: ConsumerGroup,
        member_ids: tuple[str, ...],
        completion: SendReplies | MembersExpired,
        now: EventTime,
    ) -> CoordinatorResult:
        """Remove members; if none of the new protocol is left, the group may become a classic one."""
        update = ConsumerGroupUpdate(group.state)
        if migration.downgrades_without(group, member_ids):
            return self._downgrade(
                group, update, member_ids, completion.replies, now, rebalance=True
            )
        group.fence(update, member_ids)
        return _append(update.records, completion)

    def _downgrade(
        self,
        group: ConsumerGroup,
        update: ConsumerGroupUpdate,
        leaving: tuple[str, ...],
        replies: tuple[Reply, ...],
        now: EventTime,
        *,
        rebalance: bool,
    ) -> CoordinatorResult:
        classic, records = migration.downgrade(group, update, leaving, now)
        self._groups[group.group_id] = classic
        completion = GroupConverted(group.group_id, group, replies)
        result = CoordinatorResult(
            appends=[RecordAppend(tuple(records), completion, replay=False, atomic=True)]
        )
        results = [classic.on_group_loaded(now)]
        if rebalance:
            results.append(classic.rebalance("it was a consumer group", now))
        for each in results:
            result.notes += each.notes
            result.appends += each.appends
        return result

    # The classic protocol

    def join(
        self, group: ConsumerGroup, request: JoinGroup, future: Future, now: EventTime
    ) -> CoordinatorResult:
        """A member of the classic protocol joins a consumer group that is not empty."""
        try:
            classic_members.check_join(group, request)
            respond = classic_members.needs_id(request)
            if respond is not None:
                return CoordinatorResult(replies=[Reply(future, respond)])
            return self._join(group, request, future, now)
        except KafkaError as error:
            failed = JoinGroupResponse(error.code, NO_MEMBER_ID)
            return CoordinatorResult(replies=[Reply(future, failed)])

    def _join(
        self, group: ConsumerGroup, request: JoinGroup, future: Future, now: EventTime
    ) -> CoordinatorResult:
        update, name = ConsumerGroupUpdate(group.state), request.instance_id
        replaced = None if name is None else group.state.static_member(name)
        goes_back = migration.downgrades_by(group, replaced)
        member, changed, owned = classic_members.rejoin(group, update, request)
        if not goes_back:
            group.update_target_assignment(update, now)
        is_stale = update.state.target_epoch < update.state.epoch
        if not (goes_back and is_stale):
            member = group.reconcile(
                update, member.member_id, owned, now, subscription_changed=changed
            )
        if goes_back:
            reply = (Reply(future, classic_members.join_response(member)),)
            return self._downgrade(group, update, (), reply, now, rebalance=is_stale)
        reply = (Reply(future, classic_members.joined(group, member, now)),)
        return _append(update.records, SendReplies(reply))

    def sync(
        self, group: ConsumerGroup, request: SyncGroup, future: Future, now: EventTime
    ) -> CoordinatorResult:
        try:
            respond = classic_members.sync(group, request, now)
        except KafkaError as error:
            return CoordinatorResult(replies=[Reply(future, SyncGroupResponse(error.code))])
        return _append([], SendReplies((Reply(future, respond),)))

    def classic_heartbeat(
        self, group: ConsumerGroup, request: Heartbeat, future: Future, now: EventTime
    ) -> CoordinatorResult:
        try:
            code = classic_members.heartbeat(group, request, now)
        except KafkaError as error:
            code = error.code
        return CoordinatorResult(replies=[Reply(future, HeartbeatResponse(code))])

    def leave(
        self, group: ConsumerGroup, request: LeaveGroup, future: Future, now: EventTime
    ) -> CoordinatorResult:
        gone, responses = classic_members.leavers(group, request)
        reply = (Reply(future, LeaveGroupResponse(NO_ERROR, responses)),)
        if not gone:
            return CoordinatorResult(replies=list(reply))
        member_ids = tuple(each.member_id for each in gone)
        return self._fence(group, member_ids, SendReplies(reply), now)

    # Time, and what took some

    def tick(self, group: ConsumerGroup, now: EventTime) -> CoordinatorResult:
        late = group.expire_members(now)
        if not late:
            return CoordinatorResult()
        completion = MembersExpired(group.group_id, late)
        result = self._fence(group, tuple(late), completion, now)
        result.notes += [f"{member_id}: {wait.value}" for member_id, wait in late.items()]
        return result

    def resolved(
        self, group_id: str, found: Mapping[str, ResolvedRegularExpression]
    ) -> CoordinatorResult:
        """What a group's expressions match; nothing if that could not be found out."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return CoordinatorResult()
        group.is_resolving_regular_expressions = False
        update = ConsumerGroupUpdate(group.state)
        group.apply_resolved_regular_expressions(update, dict(found))
        return _append(update.records, SendReplies()) if update.records else CoordinatorResult()

    # What became of an append

    def converted(self, completion: GroupConverted, now: EventTime) -> CoordinatorResult:
        """A group took another's place: who waits in that one has to join again."""
        result = CoordinatorResult(replies=list(completion.replies))
        if isinstance(completion.before, ClassicGroup):
            result.replies += completion.before.end(ErrorCode.rebalance_in_progress, now).replies
        return result

    def group_conversion_failed(
        self, completion: GroupConverted, code: ErrorCode, written: bool, now: EventTime
    ) -> CoordinatorResult:
        if written:
            result = self.converted(GroupConverted(completion.group_id, completion.before), now)
        else:
            refused = self._groups.pop(completion.group_id, None)
            result = CoordinatorResult() if refused is None else refused.end(code, now)
            if completion.before is not None:
                self._groups[completion.group_id] = completion.before
                if isinstance(completion.before, ConsumerGroup):
                    completion.before.on_group_loaded(now)
        result.replies += _failed(completion.replies, code)
        return result

    def member_expiration_failed(
        self, completion: MembersExpired, code: ErrorCode, written: bool, now: EventTime
    ) -> CoordinatorResult:
        """Members that should have gone are still there, and still late: they are looked at again
        soon. If it was written they are not; who has the id now has come since."""
        group = self._groups.get(completion.group_id)
        if isinstance(group, ConsumerGroup) and not written:
            group.retry_expiration(completion.late, now.monotonic_ms + EXPIRATION_RETRY_MS)
        return CoordinatorResult(replies=_failed(completion.replies, code))


def _append(records: list[Record], completion: AppendCompletion) -> CoordinatorResult:
    return CoordinatorResult(appends=[RecordAppend(tuple(records), completion, atomic=True)])


def _failed(replies: tuple[Reply, ...], code: ErrorCode) -> list[Reply]:
    return [Reply(future, respond.failed(code)) for future, respond in replies]
