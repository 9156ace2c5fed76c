"""Replacement and fencing of static members that rejoin without their member id (KIP-345, KIP-814).

In a stable group with an unchanged protocol the new member id is written without a rebalance. If
the write fails the member keeps its old id and has to rejoin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from odradek.broker.groups.classic_group_members import ClassicGroupMember
from odradek.broker.groups.classic_group_states import ClassicGroupAction, ClassicGroupState
from odradek.broker.groups.classic_rebalance import Generations
from odradek.broker.groups.messages import (
    NO_MEMBER_ID,
    AppendCompletion,
    CoordinatorResult,
    EventTime,
    Future,
    GroupKey,
    JoinGroup,
    JoinGroupResponse,
    Record,
    RecordAppend,
    StaticMemberReplaced,
    SyncGroupResponse,
)
from odradek.protocol.errors import ErrorCode

REASON_CHARS_MAX = 255


class Returns(Generations):
    """See the module."""

    def _replace_static_member(
        self,
        new_id: str,
        step: ClassicGroupAction,
        request: JoinGroup,
        future: Future,
        now: EventTime,
        result: CoordinatorResult,
    ) -> None:
        assert request.instance_id is not None, "only static members are replaced"
        old_id = self.roster.static[request.instance_id]
        member = self.roster.members[old_id]
        undo = StaticMemberReplaced(
            self.group_id,
            request.instance_id,
            new_id,
            future,
            self.generation,
            request.can_skip_assignment,
            self.roster.leader_id,
            old_id,
            member.protocols,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
        )
        self._fence(member, result)
        self.roster.rename(old_id, new_id)
        member.is_new = False
        self._extend_session(member, now)
        self._update_from_join(member, request, future)
        reason = f"static member {request.instance_id} is back as {new_id}{why(request.reason)}"
        match step:
            case ClassicGroupAction.REPLACE_AND_STORE if (
                self.roster.select_protocol() == self.protocol
            ):
                result.notes.append(f"{reason}; no rebalance")
                self._update_subscriptions()
                self._append_assignment(self._assignments(), undo, result)
            case ClassicGroupAction.REPLACE:
                self._complete_if_ready(now, result)
            case _:
                self._rebalance(reason, now, result)

    def _fence(self, member: ClassicGroupMember, result: CoordinatorResult) -> None:
        """Fence pending requests with the old member id (FENCED_INSTANCE_ID)."""
        code = ErrorCode.fenced_instance_id
        if member.waiting_join is not None:
            result.reply(member.waiting_join, JoinGroupResponse(code, member.member_id))
            self.roster.set_waiting_join(member, None)
        if member.waiting_sync is not None:
            result.reply(member.waiting_sync, SyncGroupResponse(code))
            member.waiting_sync = None
        self._respond_heartbeat(member, code, result)

    def _replaced(
        self, completion: StaticMemberReplaced, now: EventTime, result: CoordinatorResult
    ) -> None:
        """The new id is in the log. If a rebalance came in between, its end answers the join."""
        member = self.roster.members.get(completion.member_id)
        if member is None or member.waiting_join is not completion.future:
            return
        if self.state is not ClassicGroupState.STABLE or self.generation != completion.generation:
            return
        respond = self._join_response(member)
        if completion.can_skip_assignment:
            respond = replace(respond, skip_assignment=self.roster.is_leader(member.member_id))
        else:
            # An old client takes itself for the leader if it is named so, and would assign what a
            # stable group then ignores: it is told the id it had before.
            respond = replace(respond, leader=completion.leader_before or NO_MEMBER_ID, members=())
        self.roster.set_waiting_join(member, None)
        self._extend_session(member, now)
        result.reply(completion.future, respond)

    def _static_member_not_replaced(
        self,
        completion: StaticMemberReplaced,
        code: ErrorCode,
        written: bool,
        now: EventTime,
        result: CoordinatorResult,
    ) -> None:
        """The new id is not in the log, or not known to be: the member has to come back again."""
        member = self.roster.members.get(completion.member_id)
        if member is None or member.waiting_join is not completion.future:
            return
        respond = replace(
            JoinGroupResponse(code, NO_MEMBER_ID),
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=completion.leader_before or NO_MEMBER_ID,
        )
        self.roster.set_waiting_join(member, None)
        if not written:
            self.roster.update(
                member,
                completion.protocols_before,
                completion.rebalance_timeout_ms_before,
                completion.session_timeout_ms_before,
                None,
            )
            self.roster.rename(completion.member_id, completion.member_id_before)
            self._update_subscriptions()
        self._extend_session(member, now)
        result.reply(completion.future, respond)

    def _update_from_join(
        self, member: ClassicGroupMember, request: JoinGroup, future: Future
    ) -> None:
        self.roster.update(
            member,
            request.protocols,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            future,
        )

    def _append_assignment(
        self,
        assignments: Mapping[str, bytes],
        completion: AppendCompletion,
        result: CoordinatorResult,
    ) -> None:
        record = Record(GroupKey(self.group_id), self.stored(assignments))
        result.appends.append(RecordAppend((record,), completion, replay=False))


def why(reason: str | None) -> str:
    """What the client gives as its reason (KIP-800), for the log."""
    return f"; it says: {reason[:REASON_CHARS_MAX]}" if reason else ""
