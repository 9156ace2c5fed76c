"""Replacement and fencing of static members that rejoin without their member id (KIP-345, KIP-814).

In a stable group with an unchanged protocol the new member id is written without a rebalance. If
the write fails, the member keeps its old id and has to rejoin. Later requests with the old member id are fenced by
`classic_group_members.py`. Consumer groups (KIP-848) fence static members in `consumer/consumer_group.py`.
"""

from __future__ import annotations

from dataclasses import replace

from odradek.broker.groups.classic_group_members import ClassicGroupMember
from odradek.broker.groups.classic_group_states import ClassicGroupAction, ClassicGroupState
from odradek.broker.groups.classic_rebalance import ClassicRebalance, client_reason
from odradek.broker.groups.messages import (
    NO_MEMBER_ID,
    CoordinatorResult,
    EventTime,
    Future,
    JoinGroup,
    JoinGroupResponse,
    StaticMemberReplaced,
    SyncGroupResponse,
)
from odradek.protocol.errors import ErrorCode


class StaticMemberReplacement:
    """Gives static members of one group a new member id."""

    __slots__ = ("_rebalance",)

    def __init__(self, rebalance: ClassicRebalance) -> None:
        self._rebalance = rebalance

    def replace(
        self,
        new_id: str,
        action: ClassicGroupAction,
        request: JoinGroup,
        future: Future,
        now: EventTime,
        result: CoordinatorResult,
    ) -> None:
        """Replace the member that has the request's instance id, and fence its old member id.

        `action` decides whether the group rebalances.
        """
        assert request.instance_id is not None, "only static members are replaced"
        rebalance = self._rebalance
        members = rebalance.members
        old_id = members.static_members[request.instance_id]
        member = members.by_id[old_id]
        undo = self._completion(member, new_id, request, future)
        self._fence(member, result)
        members.rename(old_id, new_id)
        member.is_new = False
        rebalance.extend_session(member, now)
        rebalance.update_member(member, request, future)
        reason = (
            f"static member {request.instance_id} replaced {old_id} with {new_id}"
            f"{client_reason(request.reason)}"
        )
        match action:
            case ClassicGroupAction.REPLACE_AND_STORE if (
                members.select_protocol() == rebalance.protocol
            ):
                result.notes.append(f"{reason}; no rebalance")
                rebalance.update_subscriptions()
                rebalance.append_assignments(rebalance.current_assignments(), undo, result)
            case ClassicGroupAction.REPLACE:
                rebalance.complete_join_if_ready(now, result)
            case _:
                rebalance.start(reason, now, result)

    def _completion(
        self, member: ClassicGroupMember, new_id: str, request: JoinGroup, future: Future
    ) -> StaticMemberReplaced:
        """Completion of the append, with the state to restore if it fails."""
        assert request.instance_id is not None
        return StaticMemberReplaced(
            self._rebalance.group_id,
            request.instance_id,
            new_id,
            future,
            self._rebalance.generation,
            request.can_skip_assignment,
            self._rebalance.members.leader_id,
            member.member_id,
            member.protocols,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
        )

    def _fence(self, member: ClassicGroupMember, result: CoordinatorResult) -> None:
        """Fence pending requests with the old member id (FENCED_INSTANCE_ID)."""
        code = ErrorCode.fenced_instance_id
        if member.waiting_join is not None:
            result.reply(member.waiting_join, JoinGroupResponse(code, member.member_id))
            self._rebalance.members.set_waiting_join(member, None)
        if member.waiting_sync is not None:
            result.reply(member.waiting_sync, SyncGroupResponse(code))
            member.waiting_sync = None
        self._rebalance.complete_heartbeat(member, code, result)

    def on_committed(
        self, completion: StaticMemberReplaced, now: EventTime, result: CoordinatorResult
    ) -> None:
        """Respond to JoinGroup after the new member id is committed. If a rebalance has started
        meanwhile, its end completes the request."""
        rebalance = self._rebalance
        members = rebalance.members
        member = members.by_id.get(completion.member_id)
        if member is None or member.waiting_join is not completion.future:
            return
        is_stable = rebalance.state is ClassicGroupState.STABLE
        if not is_stable or rebalance.generation != completion.generation:
            return
        response = rebalance.join_response(member)
        if completion.can_skip_assignment:
            response = replace(response, skip_assignment=members.is_leader(member.member_id))
        else:
            # A client before JoinGroup v9 that is named leader computes an assignment, which a
            # stable group ignores. It gets the previous leader id, so that it does not.
            response = replace(
                response, leader=completion.leader_before or NO_MEMBER_ID, members=()
            )
        members.set_waiting_join(member, None)
        rebalance.extend_session(member, now)
        result.reply(completion.future, response)

    def on_failed(
        self,
        completion: StaticMemberReplaced,
        code: ErrorCode,
        written: bool,
        now: EventTime,
        result: CoordinatorResult,
    ) -> None:
        """Fail JoinGroup after the new member id could not be committed: the member has to rejoin.
        If the record was not `written`, the member gets its old id back."""
        rebalance = self._rebalance
        members = rebalance.members
        member = members.by_id.get(completion.member_id)
        if member is None or member.waiting_join is not completion.future:
            return
        response = replace(
            JoinGroupResponse(code, NO_MEMBER_ID),
            generation=rebalance.generation,
            protocol_type=rebalance.protocol_type,
            protocol_name=rebalance.protocol,
            leader=completion.leader_before or NO_MEMBER_ID,
        )
        members.set_waiting_join(member, None)
        if not written:
            members.update(
                member,
                completion.protocols_before,
                completion.rebalance_timeout_ms_before,
                completion.session_timeout_ms_before,
                None,
            )
            members.rename(completion.member_id, completion.member_id_before)
            rebalance.update_subscriptions()
        rebalance.extend_session(member, now)
        result.reply(completion.future, response)
