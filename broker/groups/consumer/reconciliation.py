"""Reconciles a member's assignment with its target (KIP-848, Kafka's CurrentAssignmentBuilder).

A member first revokes partitions outside its target (UNREVOKED_PARTITIONS) and keeps its epoch
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
    """What is done for a member that is heard of."""

    STAY = "it goes on as it is"
    REVOKE_UNSUBSCRIBED = "it has to give up the topics that it no longer subscribes to"
    RECONCILE = "it goes on towards its target"
    RESTART = "it begins again with nothing, in the target's epoch"
    FENCE = "FENCED_MEMBER_EPOCH: it has to give up everything and join again"


class ReconciliationCase(enum.Enum):
    """What a step depends on beside the state: (still holds, is behind, subscribes to less).

    "Holds": it says that it owns some of what it has to give up, or does not say what it owns.
    "Behind": its epoch is not the target's.
    """

    RECONCILED = (False, False, False)
    RECONCILED_SUBSCRIPTION_REDUCED = (False, False, True)
    BEHIND = (False, True, False)
    BEHIND_SUBSCRIPTION_REDUCED = (False, True, True)
    HOLDS = (True, False, False)
    REVOKING_SUBSCRIPTION_REDUCED = (True, False, True)
    REVOKING_BEHIND = (True, True, False)
    REVOKING_BEHIND_SUBSCRIPTION_REDUCED = (True, True, True)


def _table() -> Mapping[ReconciliationCase, Mapping[MemberState, ReconciliationAction]]:
    s, on = ReconciliationCase, ReconciliationAction
    # fmt: off
    rows = {
        #                                   STABLE      UNREVOKED   UNRELEASED  UNKNOWN
        s.RECONCILED:                         (on.STAY,    on.RECONCILE, on.RECONCILE, on.RESTART),
        s.RECONCILED_SUBSCRIPTION_REDUCED:      (on.REVOKE_UNSUBSCRIBED,   on.RECONCILE, on.RECONCILE, on.RESTART),
        s.BEHIND:                          (on.RECONCILE, on.RECONCILE, on.RECONCILE, on.RESTART),
        s.BEHIND_SUBSCRIPTION_REDUCED:       (on.RECONCILE, on.RECONCILE, on.RECONCILE, on.RESTART),
        s.HOLDS:                           (on.STAY,    on.STAY,    on.RECONCILE, on.FENCE),
        s.REVOKING_SUBSCRIPTION_REDUCED:        (on.REVOKE_UNSUBSCRIBED,   on.REVOKE_UNSUBSCRIBED,   on.RECONCILE, on.FENCE),
        s.REVOKING_BEHIND:                    (on.RECONCILE, on.STAY,    on.RECONCILE, on.FENCE),
        s.REVOKING_BEHIND_SUBSCRIPTION_REDUCED: (on.RECONCILE, on.REVOKE_UNSUBSCRIBED,   on.RECONCILE, on.FENCE),
    }
    # fmt: on
    return {situation: dict(zip(MemberState, row, strict=True)) for situation, row in rows.items()}


RECONCILIATION_ACTIONS = _table()
"""Situation, then state: what is done."""


class FencedMemberEpoch(KafkaError):
    code = ErrorCode.fenced_member_epoch


@value_class
class TargetAssignment:
    """What a member should have, and the epoch of that."""

    epoch: int
    partitions: Partitions


def reconcile(
    member: ConsumerGroupMember,
    target: TargetAssignment,
    *,
    owned: Partitions | None,
    subscribed: frozenset[UUID],
    subscribes_to_less: bool,
    owned_partitions: Callable[[UUID], Set[int]],
) -> ConsumerGroupMember:
    """The member after the next step; itself if it can't take one.

    `owned` is what it says that it has, None if it did not say; `subscribed` are the topics that it
    may have, `subscribes_to_less` whether those may lack some that it has. `owned_partitions` tells which
    partitions of a topic any member has, or has yet to give up. Raises FencedMember.
    """
    holds = _holds(owned, member.revoking)
    situation = ReconciliationCase((holds, member.epoch != target.epoch, subscribes_to_less))
    match RECONCILIATION_ACTIONS[situation][member.state]:
        case ReconciliationAction.STAY:
            return member
        case ReconciliationAction.REVOKE_UNSUBSCRIBED:
            return _strip(member, owned, subscribed)
        case ReconciliationAction.RECONCILE:
            return _advance(member, target, owned, subscribed, owned_partitions)
        case ReconciliationAction.RESTART:
            return _advance(member, target, owned, subscribed, owned_partitions, target.epoch)
        case ReconciliationAction.FENCE:
            raise FencedMemberEpoch("the member is in an unknown state and has to join again")


def _holds(owned: Partitions | None, revoking: AssignedPartitions) -> bool:
    if owned is None:
        return True
    return any(
        partition in revoking.get(topic, {})
        for topic, partitions in owned.items()
        for partition in partitions
    )


def _strip(
    member: ConsumerGroupMember, owned: Partitions | None, subscribed: frozenset[UUID]
) -> ConsumerGroupMember:
    """Take away topics that it does not subscribe to, without looking for more."""
    dropped = {topic: each for topic, each in member.assigned.items() if topic not in subscribed}
    if not dropped:
        return member
    kept = {topic: each for topic, each in member.assigned.items() if topic in subscribed}
    revoking = dict(member.revoking)
    for topic, partitions in dropped.items():
        revoking[topic] = {**revoking.get(topic, {}), **partitions}
    if not _holds(owned, revoking):
        return _moved(member, member.state, member.epoch, kept, member.revoking)
    return _moved(member, MemberState.UNREVOKED_PARTITIONS, member.epoch, kept, revoking)


def _advance(
    member: ConsumerGroupMember,
    target: TargetAssignment,
    owned: Partitions | None,
    subscribed: frozenset[UUID],
    owned_partitions: Callable[[UUID], Set[int]],
    epoch: int | None = None,
) -> ConsumerGroupMember:
    """`epoch` is the one that it stays in if it has to give something up first; its own if None."""
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    gained: dict[UUID, list[int]] = {}
    waits = False
    for topic in dict.fromkeys((*target.partitions, *member.assigned)):
        wanted = target.partitions.get(topic, frozenset()) if topic in subscribed else frozenset()
        has = member.assigned.get(topic, {})
        keeps = {partition: epoch for partition, epoch in has.items() if partition in wanted}
        gives = {partition: epoch for partition, epoch in has.items() if partition not in wanted}
        was_revoking = member.revoking.get(topic, {})
        missing = wanted - keeps.keys()
        # What it had to give up itself is free: nobody else can have got it.
        elsewhere = (missing & owned_partitions(topic)) - was_revoking.keys()
        waits = waits or bool(elsewhere)
        free = sorted(missing - elsewhere)
        for found, part in ((kept, keeps), (revoking, gives)):
            if part:
                found[topic] = part
        if free:
            gained[topic] = free
    if revoking and _holds(owned, revoking):
        epoch = member.epoch if epoch is None else epoch
        return _moved(member, MemberState.UNREVOKED_PARTITIONS, epoch, kept, revoking)
    for topic, partitions in gained.items():
        kept.setdefault(topic, {}).update(dict.fromkeys(partitions, target.epoch))
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return _moved(member, state, target.epoch, kept, NO_ASSIGNED_PARTITIONS)


def _moved(
    member: ConsumerGroupMember,
    state: MemberState,
    epoch: int,
    assigned: AssignedPartitions,
    revoking: AssignedPartitions,
) -> ConsumerGroupMember:
    """The same member one step further on; its previous epoch is that of the step before."""
    return replace(
        member,
        state=state,
        epoch=epoch,
        previous_epoch=member.epoch,
        assigned=assigned,
        revoking=revoking,
    )
