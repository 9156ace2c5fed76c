"""Timeouts of a classic group: session, pending member, join, sync, and delayed heartbeats.

`check` handles all deadlines that are due, in order of time. The deadlines are kept by
`ClassicRebalance` and by its members.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.broker.groups.classic_group_states import (
    ACTIONS,
    ClassicGroupAction,
    ClassicGroupEvent,
)
from odradek.broker.groups.classic_rebalance import ClassicRebalance
from odradek.broker.groups.messages import NO_ERROR, CoordinatorResult, EventTime


class ClassicGroupTimeouts:
    """Expires the members, member ids and rebalance phases of one group."""

    __slots__ = ("_rebalance",)

    def __init__(self, rebalance: ClassicRebalance) -> None:
        self._rebalance = rebalance

    def check(self, now: EventTime) -> CoordinatorResult:
        """Handle every deadline that was due at the start of the call, and schedule the next check."""
        rebalance = self._rebalance
        result = CoordinatorResult()
        for _, (event_name, member_id) in sorted(self._due(now.monotonic_ms)):
            match ClassicGroupEvent[event_name]:
                case ClassicGroupEvent.SESSION_TIMEOUT:
                    self._expire_member(member_id, now, result)
                case ClassicGroupEvent.PENDING_MEMBER_TIMEOUT:
                    self._expire_pending_member(member_id, now, result)
                case ClassicGroupEvent.JOIN_TIMEOUT if _is_due(rebalance.join_deadline_ms, now):
                    action = ACTIONS[ClassicGroupEvent.JOIN_TIMEOUT][rebalance.state]
                    if action is ClassicGroupAction.COMPLETE_JOIN:
                        rebalance.complete_or_extend_initial_join(now, result)
                case ClassicGroupEvent.SYNC_TIMEOUT if _is_due(rebalance.sync_deadline_ms, now):
                    rebalance.sync_deadline_ms = None
                    action = ACTIONS[ClassicGroupEvent.SYNC_TIMEOUT][rebalance.state]
                    if action is ClassicGroupAction.REMOVE_PENDING_SYNC_MEMBERS:
                        self._expire_pending_sync(now, result)
                case ClassicGroupEvent.DELAYED_HEARTBEAT_TIMEOUT:
                    action = ACTIONS[ClassicGroupEvent.DELAYED_HEARTBEAT_TIMEOUT][rebalance.state]
                    if action is ClassicGroupAction.COMPLETE_WAITING_HEARTBEATS:
                        rebalance.complete_heartbeats(NO_ERROR, result)
        rebalance.next_deadline_ms = min(self.deadlines(), default=None)
        return result

    def _due(self, now_ms: int) -> Iterator[tuple[int, tuple[str, str]]]:
        """Due deadlines, each with the name of its event and the member id. Handling one may make
        another obsolete."""
        rebalance = self._rebalance
        for member in rebalance.members.by_id.values():
            if member.deadline_ms is not None and member.deadline_ms <= now_ms:
                yield member.deadline_ms, (ClassicGroupEvent.SESSION_TIMEOUT.name, member.member_id)
        for member_id, deadline_ms in rebalance.members.pending_join_members.items():
            if deadline_ms <= now_ms:
                yield deadline_ms, (ClassicGroupEvent.PENDING_MEMBER_TIMEOUT.name, member_id)
        if rebalance.join_deadline_ms is not None and rebalance.join_deadline_ms <= now_ms:
            yield rebalance.join_deadline_ms, (ClassicGroupEvent.JOIN_TIMEOUT.name, "")
        if rebalance.sync_deadline_ms is not None and rebalance.sync_deadline_ms <= now_ms:
            yield rebalance.sync_deadline_ms, (ClassicGroupEvent.SYNC_TIMEOUT.name, "")
        if self._has_waiting_heartbeat and rebalance.heartbeat_delay_until_ms <= now_ms:
            yield (
                rebalance.heartbeat_delay_until_ms,
                (ClassicGroupEvent.DELAYED_HEARTBEAT_TIMEOUT.name, ""),
            )

    @property
    def _has_waiting_heartbeat(self) -> bool:
        members = self._rebalance.members.by_id.values()
        return any(member.waiting_heartbeat is not None for member in members)

    def deadlines(self) -> Iterator[int]:
        """All deadlines of the group, in no order."""
        rebalance = self._rebalance
        for member in rebalance.members.by_id.values():
            if member.deadline_ms is not None:
                yield member.deadline_ms
        yield from rebalance.members.pending_join_members.values()
        if rebalance.join_deadline_ms is not None:
            yield rebalance.join_deadline_ms
        if rebalance.sync_deadline_ms is not None:
            yield rebalance.sync_deadline_ms
        if self._has_waiting_heartbeat:
            yield rebalance.heartbeat_delay_until_ms

    def _expire_member(self, member_id: str, now: EventTime, result: CoordinatorResult) -> None:
        """Remove a member whose session expired."""
        rebalance = self._rebalance
        member = rebalance.members.by_id.get(member_id)
        if member is None or not _is_due(member.deadline_ms, now):
            return
        member.deadline_ms = None
        if member.is_waiting_for_coordinator:
            return  # the response to its request restarts the session
        rebalance.remove_member(member_id, result)
        match ACTIONS[ClassicGroupEvent.SESSION_TIMEOUT][rebalance.state]:
            case ClassicGroupAction.REBALANCE:
                reason = f"removing member {member_id} on heartbeat expiration"
                rebalance.start(reason, now, result)
            case ClassicGroupAction.COMPLETE_IF_ALL_JOINED if rebalance.members.all_joined:
                rebalance.complete_join(now, result)

    def _expire_pending_member(
        self, member_id: str, now: EventTime, result: CoordinatorResult
    ) -> None:
        """Remove a pending member id that did not join in time."""
        rebalance = self._rebalance
        if not _is_due(rebalance.members.pending_join_members.get(member_id), now):
            return
        rebalance.members.remove(member_id)
        action = ACTIONS[ClassicGroupEvent.PENDING_MEMBER_TIMEOUT][rebalance.state]
        if action is ClassicGroupAction.COMPLETE_IF_ALL_JOINED and rebalance.members.all_joined:
            rebalance.complete_join(now, result)

    def _expire_pending_sync(self, now: EventTime, result: CoordinatorResult) -> None:
        """Remove the members that did not send SyncGroup in time, and rebalance."""
        rebalance = self._rebalance
        member_ids = list(rebalance.members.pending_sync_members)
        for member_id in member_ids:
            rebalance.remove_member(member_id, result)
        reason = f"removing {', '.join(member_ids)} on pending sync request expiration"
        rebalance.start(reason, now, result)


def _is_due(deadline_ms: int | None, now: EventTime) -> bool:
    return deadline_ms is not None and deadline_ms <= now.monotonic_ms
