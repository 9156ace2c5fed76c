"""What requests and time do to the consumer groups of a shard: find the group, act, write it down.

A request's records go into one batch; its answer waits for them, or for what was written before if
there are none, so that nobody is told of an assignment that could be taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from odradek.broker.groups.actions import (
    NO_ERROR,
    NO_MEMBER_ID,
    Actions,
    Append,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    Converted,
    Expired,
    GroupKey,
    Heartbeat,
    HeartbeatResponse,
    Join,
    JoinResponse,
    Leave,
    LeaveResponse,
    Now,
    Record,
    Reply,
    Resolve,
    Respond,
    Sync,
    SyncResponse,
    Then,
    Waiter,
)
from odradek.broker.groups.classic import ClassicGroup
from odradek.broker.groups.consumer import classic_members, heartbeats, migration
from odradek.broker.groups.consumer.environment import Environment
from odradek.broker.groups.consumer.group import ConsumerGroup
from odradek.broker.groups.consumer.members import JOINING, LEFT_FOR_NOW
from odradek.broker.groups.consumer.records import ResolvedRegex
from odradek.broker.groups.consumer.state import Draft
from odradek.protocol.errors import ErrorCode, KafkaError

Group: TypeAlias = ClassicGroup | ConsumerGroup
RETRY_MS = 500
"""How soon a member that is too late is removed again, when that could not be written."""


class NotConsumerGroup(KafkaError):
    code = ErrorCode.group_id_not_found


class ConsumerOperations:
    """On the groups of one shard, which it shares with the shard."""

    def __init__(self, groups: dict[str, Group], environment: Environment) -> None:
        self._groups = groups
        self._environment = environment

    def group(self, group_id: str) -> ConsumerGroup:
        """Raises NotConsumerGroup."""
        group = self._groups.get(group_id)
        if group is None:
            raise NotConsumerGroup(f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise NotConsumerGroup(f"Group {group_id} is not a consumer group.")
        return group

    # ConsumerGroupHeartbeat

    def heartbeat(self, request: ConsumerHeartbeat, waiter: Waiter, now: Now) -> Actions:
        try:
            if request.epoch < JOINING:
                return self._leave(request, waiter, now)
            return self._heartbeat(request, waiter, now)
        except KafkaError as error:
            respond = ConsumerHeartbeatResponse(error.code, error.message or None)
            return Actions(replies=[Reply(waiter, respond)])

    def _heartbeat(self, request: ConsumerHeartbeat, waiter: Waiter, now: Now) -> Actions:
        group, draft = self._find_or_make(request, now)
        before = self._groups.get(request.group_id)
        respond = heartbeats.heartbeat(group, draft, request, now)
        reply = (Reply(waiter, respond),)
        then: Then = Respond(reply)
        if group is not before:  # it takes its place before its records are replayed
            self._groups[request.group_id] = group
            then = Converted(request.group_id, before, reply)
        actions = _append(draft.records, then)
        expressions = group.expressions_to_resolve(draft, now)
        if expressions:
            group.is_resolving = True
            actions.resolves.append(Resolve(request.group_id, expressions, request.may_see))
        return actions

    def _find_or_make(self, request: ConsumerHeartbeat, now: Now) -> tuple[ConsumerGroup, Draft]:
        """The group, as it is or as it will be. Only one who joins makes one, or makes a classic
        group one. Raises GROUP_ID_NOT_FOUND."""
        group_id, group = request.group_id, self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group, Draft(group.state)
        if request.epoch != JOINING:
            if group is None:
                raise NotConsumerGroup(f"Consumer group {group_id} not found.")
            raise NotConsumerGroup(f"Group {group_id} is not a consumer group.")
        if group is not None and not group.is_empty:
            return migration.upgrade(group, self._environment, now)
        made = ConsumerGroup(group_id, self._environment)
        draft = Draft(made.state)
        if group is not None:
            draft.records.append(Record(GroupKey(group_id), None))
        return made, draft

    def _leave(self, request: ConsumerHeartbeat, waiter: Waiter, now: Now) -> Actions:
        group = self.group(request.group_id)
        member = heartbeats.leaver(group, request)
        if request.epoch == LEFT_FOR_NOW:
            draft = Draft(group.state)
            respond = heartbeats.leave_for_now(group, draft, member)
            return _append(draft.records, Respond((Reply(waiter, respond),)))
        respond = ConsumerHeartbeatResponse(NO_ERROR, None, request.member_id, request.epoch)
        reply = (Reply(waiter, respond),)
        actions = self._fence(group, (member.member_id,), Respond(reply), now)
        actions.notes.append(f"{member.member_id} left")
        return actions

    def _fence(
        self, group: ConsumerGroup, member_ids: tuple[str, ...], then: Respond | Expired, now: Now
    ) -> Actions:
        """Remove members; if none of the new protocol is left, the group may become a classic one."""
        draft = Draft(group.state)
        if migration.downgrades_without(group, member_ids):
            return self._downgrade(group, draft, member_ids, then.replies, now, rebalance=True)
        group.fence(draft, member_ids)
        return _append(draft.records, then)

    def _downgrade(
        self,
        group: ConsumerGroup,
        draft: Draft,
        leaving: tuple[str, ...],
        replies: tuple[Reply, ...],
        now: Now,
        *,
        rebalance: bool,
    ) -> Actions:
        classic, records = migration.downgrade(group, draft, leaving, now)
        self._groups[group.group_id] = classic
        then = Converted(group.group_id, group, replies)
        actions = Actions(appends=[Append(tuple(records), then, replay=False, atomic=True)])
        began = [classic.began(now)]
        if rebalance:
            began.append(classic.rebalance("it was a consumer group", now))
        for each in began:
            actions.notes += each.notes
            actions.appends += each.appends
        return actions

    # The classic protocol

    def join(self, group: ConsumerGroup, request: Join, waiter: Waiter, now: Now) -> Actions:
        """A member of the classic protocol joins a consumer group that is not empty."""
        try:
            classic_members.check_join(group, request)
            respond = classic_members.needs_id(request)
            if respond is not None:
                return Actions(replies=[Reply(waiter, respond)])
            return self._join(group, request, waiter, now)
        except KafkaError as error:
            failed = JoinResponse(error.code, NO_MEMBER_ID)
            return Actions(replies=[Reply(waiter, failed)])

    def _join(self, group: ConsumerGroup, request: Join, waiter: Waiter, now: Now) -> Actions:
        draft, name = Draft(group.state), request.instance_id
        replaced = None if name is None else group.state.static_member(name)
        goes_back = migration.downgrades_by(group, replaced)
        member, changed, owned = classic_members.rejoin(group, draft, request)
        if not goes_back:
            group.update_target(draft, now)
        is_stale = draft.state.target_epoch < draft.state.epoch
        if not (goes_back and is_stale):
            member = group.reconcile(
                draft, member.member_id, owned, now, subscription_changed=changed
            )
        if goes_back:
            reply = (Reply(waiter, classic_members.join_response(member)),)
            return self._downgrade(group, draft, (), reply, now, rebalance=is_stale)
        reply = (Reply(waiter, classic_members.joined(group, member, now)),)
        return _append(draft.records, Respond(reply))

    def sync(self, group: ConsumerGroup, request: Sync, waiter: Waiter, now: Now) -> Actions:
        try:
            respond = classic_members.sync(group, request, now)
        except KafkaError as error:
            return Actions(replies=[Reply(waiter, SyncResponse(error.code))])
        return _append([], Respond((Reply(waiter, respond),)))

    def classic_heartbeat(
        self, group: ConsumerGroup, request: Heartbeat, waiter: Waiter, now: Now
    ) -> Actions:
        try:
            code = classic_members.heartbeat(group, request, now)
        except KafkaError as error:
            code = error.code
        return Actions(replies=[Reply(waiter, HeartbeatResponse(code))])

    def leave(self, group: ConsumerGroup, request: Leave, waiter: Waiter, now: Now) -> Actions:
        gone, responses = classic_members.leavers(group, request)
        reply = (Reply(waiter, LeaveResponse(NO_ERROR, responses)),)
        if not gone:
            return Actions(replies=list(reply))
        member_ids = tuple(each.member_id for each in gone)
        return self._fence(group, member_ids, Respond(reply), now)

    # Time, and what took some

    def tick(self, group: ConsumerGroup, now: Now) -> Actions:
        late = group.take_late(now)
        if not late:
            return Actions()
        then = Expired(group.group_id, late)
        actions = self._fence(group, tuple(late), then, now)
        actions.notes += [f"{member_id}: {wait.value}" for member_id, wait in late.items()]
        return actions

    def resolved(self, group_id: str, found: Mapping[str, ResolvedRegex]) -> Actions:
        """What a group's expressions match; nothing if that could not be found out."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return Actions()
        group.is_resolving = False
        draft = Draft(group.state)
        group.take_resolved(draft, dict(found))
        return _append(draft.records, Respond()) if draft.records else Actions()

    # What became of an append

    def converted(self, then: Converted, now: Now) -> Actions:
        """A group took another's place: who waits in that one has to join again."""
        actions = Actions(replies=list(then.replies))
        if isinstance(then.before, ClassicGroup):
            actions.replies += then.before.end(ErrorCode.rebalance_in_progress, now).replies
        return actions

    def not_converted(self, then: Converted, code: ErrorCode, written: bool, now: Now) -> Actions:
        if written:
            actions = self.converted(Converted(then.group_id, then.before), now)
        else:
            refused = self._groups.pop(then.group_id, None)
            actions = Actions() if refused is None else refused.end(code, now)
            if then.before is not None:
                self._groups[then.group_id] = then.before
                if isinstance(then.before, ConsumerGroup):
                    then.before.began(now)
        actions.replies += _failed(then.replies, code)
        return actions

    def not_expired(self, then: Expired, code: ErrorCode, written: bool, now: Now) -> Actions:
        """Members that should have gone are still there, and still late: they are looked at again
        soon. If it was written they are not; who has the id now has come since."""
        group = self._groups.get(then.group_id)
        if isinstance(group, ConsumerGroup) and not written:
            group.still_late(then.late, now.monotonic_ms + RETRY_MS)
        return Actions(replies=_failed(then.replies, code))


def _append(records: list[Record], then: Then) -> Actions:
    return Actions(appends=[Append(tuple(records), then, atomic=True)])


def _failed(replies: tuple[Reply, ...], code: ErrorCode) -> list[Reply]:
    return [Reply(waiter, respond.failed(code)) for waiter, respond in replies]
