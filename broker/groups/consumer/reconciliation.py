"""From what a member has to what it should have, one step at a time: the heart of KIP-848.

A member goes through three states. It first gives up what its target does not have
(UNREVOKED_PARTITIONS), for as long as it says, or does not deny, that it still owns some of it; it
stays in its epoch meanwhile. Then it takes the target's epoch and whatever of the target is free. It
waits in UNRELEASED_PARTITIONS while others have yet to give up the rest, and is STABLE when it has
everything. `TABLE` says what is done in every state; `advance` is that step.

Invariant: nothing is assigned that `owned_of` says another member has; so a partition has one owner.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from uuid import UUID

from odradek.broker.groups.consumer.members import (
    NOTHING,
    Assigned,
    Member,
    MemberState,
    Partitions,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.values import value_class


class Step(enum.Enum):
    """What is done for a member that is heard of."""

    STAY = "it goes on as it is"
    STRIP = "it has to give up the topics that it no longer subscribes to"
    ADVANCE = "it goes on towards its target"
    RESTART = "it begins again with nothing, in the target's epoch"
    FENCE = "FENCED_MEMBER_EPOCH: it has to give up everything and join again"


class Situation(enum.Enum):
    """What a step depends on beside the state: (still holds, is behind, subscribes to less).

    "Holds": it says that it owns some of what it has to give up, or does not say what it owns.
    "Behind": its epoch is not the target's.
    """

    SETTLED = (False, False, False)
    SETTLED_SUBSCRIBES_TO_LESS = (False, False, True)
    BEHIND = (False, True, False)
    BEHIND_SUBSCRIBES_TO_LESS = (False, True, True)
    HOLDS = (True, False, False)
    HOLDS_SUBSCRIBES_TO_LESS = (True, False, True)
    HOLDS_BEHIND = (True, True, False)
    HOLDS_BEHIND_SUBSCRIBES_TO_LESS = (True, True, True)


def _table() -> Mapping[Situation, Mapping[MemberState, Step]]:
    s, on = Situation, Step
    # fmt: off
    rows = {
        #                                   STABLE      UNREVOKED   UNRELEASED  UNKNOWN
        s.SETTLED:                         (on.STAY,    on.ADVANCE, on.ADVANCE, on.RESTART),
        s.SETTLED_SUBSCRIBES_TO_LESS:      (on.STRIP,   on.ADVANCE, on.ADVANCE, on.RESTART),
        s.BEHIND:                          (on.ADVANCE, on.ADVANCE, on.ADVANCE, on.RESTART),
        s.BEHIND_SUBSCRIBES_TO_LESS:       (on.ADVANCE, on.ADVANCE, on.ADVANCE, on.RESTART),
        s.HOLDS:                           (on.STAY,    on.STAY,    on.ADVANCE, on.FENCE),
        s.HOLDS_SUBSCRIBES_TO_LESS:        (on.STRIP,   on.STRIP,   on.ADVANCE, on.FENCE),
        s.HOLDS_BEHIND:                    (on.ADVANCE, on.STAY,    on.ADVANCE, on.FENCE),
        s.HOLDS_BEHIND_SUBSCRIBES_TO_LESS: (on.ADVANCE, on.STRIP,   on.ADVANCE, on.FENCE),
    }
    # fmt: on
    return {situation: dict(zip(MemberState, row, strict=True)) for situation, row in rows.items()}


TABLE = _table()
"""Situation, then state: what is done."""


class FencedMember(KafkaError):
    code = ErrorCode.fenced_member_epoch


@value_class
class Target:
    """What a member should have, and the epoch of that."""

    epoch: int
    partitions: Partitions


def reconcile(
    member: Member,
    target: Target,
    *,
    owned: Partitions | None,
    subscribed: frozenset[UUID],
    subscribes_to_less: bool,
    owned_of: Callable[[UUID], Set[int]],
) -> Member:
    """The member after the next step; itself if it can't take one.

    `owned` is what it says that it has, None if it did not say; `subscribed` are the topics that it
    may have, `subscribes_to_less` whether those may lack some that it has. `owned_of` tells which
    partitions of a topic any member has, or has yet to give up. Raises FencedMember.
    """
    holds = _holds(owned, member.revoking)
    situation = Situation((holds, member.epoch != target.epoch, subscribes_to_less))
    match TABLE[situation][member.state]:
        case Step.STAY:
            return member
        case Step.STRIP:
            return _strip(member, owned, subscribed)
        case Step.ADVANCE:
            return _advance(member, target, owned, subscribed, owned_of)
        case Step.RESTART:
            return _advance(member, target, owned, subscribed, owned_of, target.epoch)
        case Step.FENCE:
            raise FencedMember("the member is in an unknown state and has to join again")


def _holds(owned: Partitions | None, revoking: Assigned) -> bool:
    if owned is None:
        return True
    return any(
        partition in revoking.get(topic, {})
        for topic, partitions in owned.items()
        for partition in partitions
    )


def _strip(member: Member, owned: Partitions | None, subscribed: frozenset[UUID]) -> Member:
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
    member: Member,
    target: Target,
    owned: Partitions | None,
    subscribed: frozenset[UUID],
    owned_of: Callable[[UUID], Set[int]],
    epoch: int | None = None,
) -> Member:
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
        elsewhere = (missing & owned_of(topic)) - was_revoking.keys()
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
    return _moved(member, state, target.epoch, kept, NOTHING)


def _moved(
    member: Member, state: MemberState, epoch: int, assigned: Assigned, revoking: Assigned
) -> Member:
    """The same member one step further on; its previous epoch is that of the step before."""
    return replace(
        member,
        state=state,
        epoch=epoch,
        previous_epoch=member.epoch,
        assigned=assigned,
        revoking=revoking,
    )
