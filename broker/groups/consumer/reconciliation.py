"""Reconciles a member's assignment with its target (KIP-848, Kafka's CurrentAssignmentBuilder).

A member first revokes partitions outside its target (UNREVOKED_PARTITIONS) and retained its epoch
until its heartbeat confirms it. It then takes the target epoch and the free partitions of its
target. It is UNRELEASED_PARTITIONS while other members still own some, and STABLE when it has all.
`RECONCILIATION_ACTIONS` is the action for every case and state.

Invariant: no partition is assigned that another member owns.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from uuid import UUID

from odradek.broker.groups.consumer.member import (
    NO_ASSIGNED_PARTITIONS,
    AssignedPartitions,
    ConsumerGroupMember,
    MemberState,
    Partitions,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.values import value_class


class ReconciliationAction(enum.Enum):
    """Actions for a member that sends a heartbeat or JoinGroup."""

    STAY = "keep the assignment"
    REVOKE_UNSUBSCRIBED = "revoke the topics that it no longer subscribes to"
    RECONCILE = "reconcile with the target assignment"
    RESTART = "reconcile, starting from the target assignment epoch"
    FENCE = "return FENCED_MEMBER_EPOCH: revoke all partitions and rejoin"


class ReconciliationCase(enum.Enum):
    """Cases of a member: (owns partitions to revoke, is behind the target epoch, subscription changed).

    A member owns partitions to revoke if its heartbeat lists some of them, or has no owned
    partitions. It is behind if its epoch differs from the target assignment epoch.
    """

    RECONCILED = (False, False, False)
    RECONCILED_SUBSCRIPTION_REDUCED = (False, False, True)
    BEHIND = (False, True, False)
    BEHIND_SUBSCRIPTION_REDUCED = (False, True, True)
    REVOKING = (True, False, False)
    REVOKING_SUBSCRIPTION_REDUCED = (True, False, True)
    REVOKING_BEHIND = (True, True, False)
    REVOKING_BEHIND_SUBSCRIPTION_REDUCED = (True, True, True)


def _table() -> Mapping[ReconciliationCase, Mapping[MemberState, ReconciliationAction]]:
    s, on = ReconciliationCase, ReconciliationAction
    # fmt: off
    rows = {
        #                                        STABLE                  UNREVOKED               UNRELEASED    UNKNOWN
        s.RECONCILED:                           (on.STAY,                on.RECONCILE,           on.RECONCILE, on.RESTART),
        s.RECONCILED_SUBSCRIPTION_REDUCED:      (on.REVOKE_UNSUBSCRIBED, on.RECONCILE,           on.RECONCILE, on.RESTART),
        s.BEHIND:                               (on.RECONCILE,           on.RECONCILE,           on.RECONCILE, on.RESTART),
        s.BEHIND_SUBSCRIPTION_REDUCED:          (on.RECONCILE,           on.RECONCILE,           on.RECONCILE, on.RESTART),
        s.REVOKING:                             (on.STAY,                on.STAY,                on.RECONCILE, on.FENCE),
        s.REVOKING_SUBSCRIPTION_REDUCED:        (on.REVOKE_UNSUBSCRIBED, on.REVOKE_UNSUBSCRIBED, on.RECONCILE, on.FENCE),
        s.REVOKING_BEHIND:                      (on.RECONCILE,           on.STAY,                on.RECONCILE, on.FENCE),
        s.REVOKING_BEHIND_SUBSCRIPTION_REDUCED: (on.RECONCILE,           on.REVOKE_UNSUBSCRIBED, on.RECONCILE, on.FENCE),
    }
    # fmt: on
    return {case: dict(zip(MemberState, row, strict=True)) for case, row in rows.items()}


RECONCILIATION_ACTIONS = _table()
"""Action by case and member state."""


class FencedMemberEpoch(KafkaError):
    code = ErrorCode.fenced_member_epoch


@value_class
class TargetAssignment:
    """Target assignment of a member and its epoch."""

    epoch: int
    partitions: Partitions


def reconcile(
    member: ConsumerGroupMember,
    target: TargetAssignment,
    *,
    owned: Partitions | None,
    subscribed: frozenset[UUID],
    subscription_changed: bool,
    owned_partitions: Callable[[UUID], Set[int]],
) -> ConsumerGroupMember:
    """The member after its next reconciliation step; unchanged if there is none.

    `owned` are the partitions that the member reports, None if it reports none. `subscribed` are the
    ids of its topics; `subscription_changed` if it may no longer subscribe to some that it owns.
    `owned_partitions` returns the partitions of a topic that any member owns or has to revoke.
    Raises FencedMemberEpoch.
    """
    owns_revoking = _owns_revoking(owned, member.revoking)
    case = ReconciliationCase((owns_revoking, member.epoch != target.epoch, subscription_changed))
    match RECONCILIATION_ACTIONS[case][member.state]:
        case ReconciliationAction.STAY:
            return member
        case ReconciliationAction.REVOKE_UNSUBSCRIBED:
            return _revoke_unsubscribed(member, owned, subscribed)
        case ReconciliationAction.RECONCILE:
            return _reconcile_with_target(member, target, owned, subscribed, owned_partitions)
        case ReconciliationAction.RESTART:
            return _reconcile_with_target(
                member, target, owned, subscribed, owned_partitions, target.epoch
            )
        case ReconciliationAction.FENCE:
            raise FencedMemberEpoch("The member is in an unknown state and must rejoin.")


def _owns_revoking(owned: Partitions | None, revoking: AssignedPartitions) -> bool:
    if owned is None:
        return True
    return any(
        partition in revoking.get(topic, {})
        for topic, partitions in owned.items()
        for partition in partitions
    )


def _revoke_unsubscribed(
    member: ConsumerGroupMember, owned: Partitions | None, subscribed: frozenset[UUID]
) -> ConsumerGroupMember:
    """Revoke topics that the member no longer subscribes to; assign nothing new."""
    dropped = {topic: each for topic, each in member.assigned.items() if topic not in subscribed}
    if not dropped:
        return member
    kept = {topic: each for topic, each in member.assigned.items() if topic in subscribed}
    revoking = dict(member.revoking)
    for topic, partitions in dropped.items():
        revoking[topic] = {**revoking.get(topic, {}), **partitions}
    if not _owns_revoking(owned, revoking):
        return _updated(member, member.state, member.epoch, kept, member.revoking)
    return _updated(member, MemberState.UNREVOKED_PARTITIONS, member.epoch, kept, revoking)


def _reconcile_with_target(
    member: ConsumerGroupMember,
    target: TargetAssignment,
    owned: Partitions | None,
    subscribed: frozenset[UUID],
    owned_partitions: Callable[[UUID], Set[int]],
    epoch: int | None = None,
) -> ConsumerGroupMember:
    """Compare the assignment with the target: revoke partitions first, then assign the free ones.

    `epoch` is the epoch of the member while it revokes; None is its current one.
    """
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    assigned: dict[UUID, list[int]] = {}
    is_waiting = False
    for topic in dict.fromkeys((*target.partitions, *member.assigned)):
        target_partitions = (
            target.partitions.get(topic, frozenset()) if topic in subscribed else frozenset()
        )
        has = member.assigned.get(topic, {})
        retained = {
            partition: epoch for partition, epoch in has.items() if partition in target_partitions
        }
        revoked = {
            partition: epoch
            for partition, epoch in has.items()
            if partition not in target_partitions
        }
        was_revoking = member.revoking.get(topic, {})
        missing = target_partitions - retained.keys()
        # Partitions that this member revokes itself are free: no other member can own them.
        owned_by_others = (missing & owned_partitions(topic)) - was_revoking.keys()
        is_waiting = is_waiting or bool(owned_by_others)
        free = sorted(missing - owned_by_others)
        for partitions_by_topic, part in ((kept, retained), (revoking, revoked)):
            if part:
                partitions_by_topic[topic] = part
        if free:
            assigned[topic] = free
    if revoking and _owns_revoking(owned, revoking):
        epoch = member.epoch if epoch is None else epoch
        return _updated(member, MemberState.UNREVOKED_PARTITIONS, epoch, kept, revoking)
    for topic, partitions in assigned.items():
        kept.setdefault(topic, {}).update(dict.fromkeys(partitions, target.epoch))
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    return _updated(member, state, target.epoch, kept, NO_ASSIGNED_PARTITIONS)


def _updated(
    member: ConsumerGroupMember,
    state: MemberState,
    epoch: int,
    assigned: AssignedPartitions,
    revoking: AssignedPartitions,
) -> ConsumerGroupMember:
    """The member with a new state, epoch and assignment; its current epoch becomes the previous one."""
    return replace(
        member,
        state=state,
        epoch=epoch,
        previous_epoch=member.epoch,
        assigned=assigned,
        revoking=revoking,
    )
