"""Requests and timeouts of the consumer groups of a shard.

The records of a request are appended in one batch. The response waits for them, or for earlier
records if there are none, so that no client sees an assignment that could be reverted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from odradek.broker.groups.classic_group import ClassicGroup
from odradek.broker.groups.consumer import classic_protocol, migration
from odradek.broker.groups.consumer import heartbeat as heartbeats
from odradek.broker.groups.consumer.consumer_group import ConsumerGroup
from odradek.broker.groups.consumer.group_state import ConsumerGroupUpdate
from odradek.broker.groups.consumer.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from odradek.broker.groups.consumer.record_helpers import ResolvedRegularExpression
from odradek.broker.groups.consumer.topic_metadata import ConsumerGroupEnvironment
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
"""Delay before expired members are removed again after the append failed."""


class ConsumerGroupNotFound(KafkaError):
    code = ErrorCode.group_id_not_found


class ConsumerGroupManager:
    """Operates on the groups of one shard; the shard owns the dictionary of groups."""

    def __init__(self, groups: dict[str, Group], environment: ConsumerGroupEnvironment) -> None:
        self._groups = groups
        self._environment = environment

    def group(self, group_id: str) -> ConsumerGroup:
        """The consumer group with this id. Raises ConsumerGroupNotFound."""
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
            response = ConsumerGroupHeartbeatResponse(error.code, error.message or None)
            return CoordinatorResult(replies=[Reply(future, response)])

    def _heartbeat(
        self, request: ConsumerGroupHeartbeat, future: Future, now: EventTime
    ) -> CoordinatorResult:
        group, update = self._get_or_create_group(request, now)
        before = self._groups.get(request.group_id)
        response = heartbeats.heartbeat(group, update, request, now)
        reply = (Reply(future, response),)
        completion: AppendCompletion = SendReplies(reply)
        if group is not before:  # replaying its records needs the group
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
        """The group, or a new one if the member joins (epoch 0). A classic group is upgraded.

        Raises ConsumerGroupNotFound or CannotUpgrade.
        """
        group_id, group = request.group_id, self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group, ConsumerGroupUpdate(group.state)
        if request.epoch != JOIN_EPOCH:
            if group is None:
                raise ConsumerGroupNotFound(f"Consumer group {group_id} not found.")
            raise ConsumerGroupNotFound(f"Group {group_id} is not a consumer group.")
        if group is not None and not group.is_empty:
            return migration.upgrade(group, self._environment, now)
        created = ConsumerGroup(group_id, self._environment)
        update = ConsumerGroupUpdate(created.state)
        if group is not None:
            update.records.append(Record(GroupKey(group_id), None))
        return created, update

    def _leave(
        self, request: ConsumerGroupHeartbeat, future: Future, now: EventTime
    ) -> CoordinatorResult:
        group = self.group(request.group_id)
        member = heartbeats.leaving_member(group, request)
        if request.epoch == STATIC_LEAVE_EPOCH:
            update = ConsumerGroupUpdate(group.state)
            response = heartbeats.leave_temporarily(group, update, member)
            return _append(update.records, SendReplies((Reply(future, response),)))
        response = ConsumerGroupHeartbeatResponse(NO_ERROR, None, request.member_id, request.epoch)
        reply = (Reply(future, response),)
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
        """Remove members. If only members of the classic protocol remain, the group may be downgraded."""
        update = ConsumerGroupUpdate(group.state)
        if migration.is_downgraded_without(group, member_ids):
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
            results.append(classic.start_rebalance("downgrade group from consumer to classic", now))
        for each in results:
            result.notes += each.notes
            result.appends += each.appends
        return result

    # The classic protocol

    def join(
        self, group: ConsumerGroup, request: JoinGroup, future: Future, now: EventTime
    ) -> CoordinatorResult:
        """JoinGroup of a consumer group that is not empty."""
        try:
            classic_protocol.check_join(group, request)
            response = classic_protocol.check_member_id(request)
            if response is not None:
                return CoordinatorResult(replies=[Reply(future, response)])
            return self._join(group, request, future, now)
        except KafkaError as error:
            failed = JoinGroupResponse(error.code, NO_MEMBER_ID)
            return CoordinatorResult(replies=[Reply(future, failed)])

    def _join(
        self, group: ConsumerGroup, request: JoinGroup, future: Future, now: EventTime
    ) -> CoordinatorResult:
        update, name = ConsumerGroupUpdate(group.state), request.instance_id
        replaced = None if name is None else group.state.static_member(name)
        downgrades = migration.is_downgraded_by(group, replaced)
        member, changed, owned = classic_protocol.rejoin(group, update, request)
        if not downgrades:
            group.update_target_assignment(update, now)
        is_stale = update.state.target_epoch < update.state.epoch
        if not (downgrades and is_stale):
            member = group.reconcile(
                update, member.member_id, owned, now, subscription_changed=changed
            )
        if downgrades:
            reply = (Reply(future, classic_protocol.join_response(member)),)
            return self._downgrade(group, update, (), reply, now, rebalance=is_stale)
        reply = (Reply(future, classic_protocol.on_joined(group, member, now)),)
        return _append(update.records, SendReplies(reply))

    def sync(
        self, group: ConsumerGroup, request: SyncGroup, future: Future, now: EventTime
    ) -> CoordinatorResult:
        try:
            response = classic_protocol.sync(group, request, now)
        except KafkaError as error:
            return CoordinatorResult(replies=[Reply(future, SyncGroupResponse(error.code))])
        return _append([], SendReplies((Reply(future, response),)))

    def classic_heartbeat(
        self, group: ConsumerGroup, request: Heartbeat, future: Future, now: EventTime
    ) -> CoordinatorResult:
        try:
            code = classic_protocol.heartbeat(group, request, now)
        except KafkaError as error:
            code = error.code
        return CoordinatorResult(replies=[Reply(future, HeartbeatResponse(code))])

    def leave(
        self, group: ConsumerGroup, request: LeaveGroup, future: Future, now: EventTime
    ) -> CoordinatorResult:
        leaving, responses = classic_protocol.leaving_members(group, request)
        reply = (Reply(future, LeaveGroupResponse(NO_ERROR, responses)),)
        if not leaving:
            return CoordinatorResult(replies=list(reply))
        member_ids = tuple(each.member_id for each in leaving)
        return self._fence(group, member_ids, SendReplies(reply), now)

    # Timeouts and regular expressions

    def tick(self, group: ConsumerGroup, now: EventTime) -> CoordinatorResult:
        timeouts = group.expire_members(now)
        if not timeouts:
            return CoordinatorResult()
        completion = MembersExpired(group.group_id, timeouts)
        result = self._fence(group, tuple(timeouts), completion, now)
        result.notes += [f"{member_id}: {wait.value}" for member_id, wait in timeouts.items()]
        return result

    def on_regular_expressions_resolved(
        self, group_id: str, resolved: Mapping[str, ResolvedRegularExpression]
    ) -> CoordinatorResult:
        """Apply resolved regular expressions; `resolved` is empty if resolving failed."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return CoordinatorResult()
        group.is_resolving_regular_expressions = False
        update = ConsumerGroupUpdate(group.state)
        group.apply_resolved_regular_expressions(update, dict(resolved))
        return _append(update.records, SendReplies()) if update.records else CoordinatorResult()

    # Append results

    def on_converted(self, completion: GroupConverted, now: EventTime) -> CoordinatorResult:
        """The conversion is committed: requests that wait in the previous group get REBALANCE_IN_PROGRESS."""
        result = CoordinatorResult(replies=list(completion.replies))
        if isinstance(completion.before, ClassicGroup):
            result.replies += completion.before.close(ErrorCode.rebalance_in_progress, now).replies
        return result

    def group_conversion_failed(
        self, completion: GroupConverted, code: ErrorCode, written: bool, now: EventTime
    ) -> CoordinatorResult:
        if written:
            result = self.on_converted(GroupConverted(completion.group_id, completion.before), now)
        else:
            converted = self._groups.pop(completion.group_id, None)
            result = CoordinatorResult() if converted is None else converted.close(code, now)
            if completion.before is not None:
                self._groups[completion.group_id] = completion.before
                if isinstance(completion.before, ConsumerGroup):
                    completion.before.on_group_loaded(now)
        result.replies += _failed(completion.replies, code)
        return result

    def member_expiration_failed(
        self, completion: MembersExpired, code: ErrorCode, written: bool, now: EventTime
    ) -> CoordinatorResult:
        """Schedule the removal of expired members again. If the records were written, the members are
        removed, and a member with the same id has joined since."""
        group = self._groups.get(completion.group_id)
        if isinstance(group, ConsumerGroup) and not written:
            group.retry_expiration(completion.timeouts, now.monotonic_ms + EXPIRATION_RETRY_MS)
        return CoordinatorResult(replies=_failed(completion.replies, code))


def _append(records: list[Record], completion: AppendCompletion) -> CoordinatorResult:
    return CoordinatorResult(appends=[RecordAppend(tuple(records), completion, atomic=True)])


def _failed(replies: tuple[Reply, ...], code: ErrorCode) -> list[Reply]:
    return [Reply(future, response.failed(code)) for future, response in replies]
