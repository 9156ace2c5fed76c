"""A static member comes back: under a new id, but in its old place (KIP-345, KIP-814).

In a stable group that changes nothing for the others as long as the protocol stays: the new id is
written down, and the member goes on with its assignment. If it can't be written the member has the
old id still, and has to come back again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from odradek.broker.groups.actions import (
    NO_MEMBER_ID,
    Actions,
    Append,
    GroupKey,
    Join,
    JoinResponse,
    Now,
    Record,
    Replaced,
    SyncResponse,
    Then,
    Waiter,
)
from odradek.broker.groups.generations import Generations
from odradek.broker.groups.roster import Member
from odradek.broker.groups.states import State, Step
from odradek.protocol.errors import ErrorCode

REASON_CHARS_MAX = 255


class Returns(Generations):
    """See the module."""

    def _replace(
        self, new_id: str, step: Step, request: Join, waiter: Waiter, now: Now, actions: Actions
    ) -> None:
        assert request.instance_id is not None, "only static members are replaced"
        old_id = self.roster.static[request.instance_id]
        member = self.roster.members[old_id]
        undo = Replaced(
            self.group_id,
            request.instance_id,
            new_id,
            waiter,
            self.generation,
            request.can_skip_assignment,
            self.roster.leader_id,
            old_id,
            member.protocols,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
        )
        self._fence(member, actions)
        self.roster.rename(old_id, new_id)
        member.is_new = False
        self._extend_session(member, now)
        self._adopt(member, request, waiter)
        reason = f"static member {request.instance_id} is back as {new_id}{why(request.reason)}"
        match step:
            case Step.REPLACE_AND_STORE if self.roster.select_protocol() == self.protocol:
                actions.notes.append(f"{reason}; no rebalance")
                self._know_subscriptions()
                self._store(self._assignments(), undo, actions)
            case Step.REPLACE:
                self._complete_if_ready(now, actions)
            case _:
                self._rebalance(reason, now, actions)

    def _fence(self, member: Member, actions: Actions) -> None:
        """Whoever still waits under the old id is a duplicate of the member that came back."""
        code = ErrorCode.fenced_instance_id
        if member.joining is not None:
            actions.reply(member.joining, JoinResponse(code, member.member_id))
            self.roster.set_joining(member, None)
        if member.syncing is not None:
            actions.reply(member.syncing, SyncResponse(code))
            member.syncing = None
        self._respond_heartbeat(member, code, actions)

    def _replaced(self, then: Replaced, now: Now, actions: Actions) -> None:
        """The new id is in the log. If a rebalance came in between, its end answers the join."""
        member = self.roster.members.get(then.member_id)
        if member is None or member.joining is not then.waiter:
            return
        if self.state is not State.STABLE or self.generation != then.generation:
            return
        respond = self._joined(member)
        if then.can_skip_assignment:
            respond = replace(respond, skip_assignment=self.roster.is_leader(member.member_id))
        else:
            # An old client takes itself for the leader if it is named so, and would assign what a
            # stable group then ignores: it is told the id it had before.
            respond = replace(respond, leader=then.leader_before or NO_MEMBER_ID, members=())
        self.roster.set_joining(member, None)
        self._extend_session(member, now)
        actions.reply(then.waiter, respond)

    def _not_replaced(
        self, then: Replaced, code: ErrorCode, written: bool, now: Now, actions: Actions
    ) -> None:
        """The new id is not in the log, or not known to be: the member has to come back again."""
        member = self.roster.members.get(then.member_id)
        if member is None or member.joining is not then.waiter:
            return
        respond = replace(
            JoinResponse(code, NO_MEMBER_ID),
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=then.leader_before or NO_MEMBER_ID,
        )
        self.roster.set_joining(member, None)
        if not written:
            self.roster.update(
                member,
                then.protocols_before,
                then.rebalance_timeout_ms_before,
                then.session_timeout_ms_before,
                None,
            )
            self.roster.rename(then.member_id, then.member_id_before)
            self._know_subscriptions()
        self._extend_session(member, now)
        actions.reply(then.waiter, respond)

    def _adopt(self, member: Member, request: Join, waiter: Waiter) -> None:
        self.roster.update(
            member,
            request.protocols,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            waiter,
        )

    def _store(self, assignments: Mapping[str, bytes], then: Then, actions: Actions) -> None:
        record = Record(GroupKey(self.group_id), self.stored(assignments))
        actions.appends.append(Append((record,), then, replay=False))


def why(reason: str | None) -> str:
    """What the client gives as its reason (KIP-800), for the log."""
    return f"; it says: {reason[:REASON_CHARS_MAX]}" if reason else ""
