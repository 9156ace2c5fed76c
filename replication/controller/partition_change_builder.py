"""Builds partition changes: leader election, ISR, ELR, reassignment (Kafka's
`PartitionChangeBuilder`).

A function without I/O from the current state and a target to a PartitionChangeRecord. The order
matters: complete the reassignment, compute the ELR, elect, set the last known leader. Rules of
KIP-631, KIP-966 (ELR), KIP-704 (leader recovery), KIP-858 (directories), otherwise of Kafka 4.3:

- The current leader stays if it is acceptable; then the first acceptable replica in the ISR, or in the ELR
  while the ISR is empty; then the last known leader; then, in unclean elections, any replica.
- With ELR the ISR may be empty; without, its last member stays.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, field
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.replication.controller.image import NO_LEADER, PartitionImage
from odradek.replication.controller.partition_registration import (
    NO_LEADER_CHANGE,
    NO_RECOVERY_CHANGE,
)
from odradek.seams.values import state_class, value_class

if TYPE_CHECKING:
    from odradek.protocol.schemas.topic_records import PartitionChangeRecord

Replicas = tuple[int, ...]
RECOVERING = 1


class ElectionType(enum.Enum):
    PREFERRED = "preferred"  # the first replica, if it is in the ISR
    ONLINE = "online"  # any replica of the ISR, the current leader first
    UNCLEAN = "unclean"  # any live replica if no ISR member is live


@value_class
class PartitionTarget:
    """Target of a change; None leaves a field unchanged. `directories` are per replica."""

    _: KW_ONLY
    isr: Replicas | None = None
    replicas: Replicas | None = None
    removing: Replicas | None = None
    adding: Replicas | None = None
    directories: Mapping[int, UUID] = field(default_factory=dict)
    recovery_state: int | None = None
    unclean_shutdown: frozenset[int] = frozenset()  # replicas that may have lost records
    election: ElectionType = ElectionType.ONLINE


@value_class
class PartitionChangeContext:
    """Cluster state that a partition change depends on."""

    _: KW_ONLY
    acceptable: Callable[[int], bool]  # whether the replica may lead
    min_isr: int
    elr_enabled: bool
    default_directory: Callable[[int], UUID]  # of a replica without a directory
    shrinking_increases_leader_epoch: bool = False  # for brokers before 3.6 (KAFKA-15021)


def build_partition_change(
    topic_id: UUID,
    index: int,
    partition: PartitionImage,
    wanted: PartitionTarget,
    context: PartitionChangeContext,
) -> PartitionChangeRecord | None:
    """The record for the target and its consequences; None if nothing changes."""
    target = _Target(partition, wanted)
    target.complete_reassignment()
    if context.elr_enabled:
        target.compute_elr(context.min_isr)
    leader, unclean = target.elect(context)
    change = _Change(leader=leader)
    if change.leader != NO_LEADER_CHANGE and unclean:
        change.isr = (leader,)  # the other replicas may lose records
        change.recovery = (
            RECOVERING if partition.leader_recovery_state != RECOVERING else change.recovery
        )
    elif leader >= 0 and leader in target.elr:
        target.isr = (leader,)
        target.elr = tuple(each for each in target.elr if each != leader)
    if change.leader == NO_LEADER_CHANGE and not set(partition.replicas) <= set(target.replicas):
        change.leader = partition.leader  # removed replicas require a new leader epoch
    if unclean or not context.elr_enabled:
        target.elr = ()
    if target.elr != partition.elr:
        change.elr = target.elr
    if change.isr is None and target.isr != partition.isr and (target.isr or context.elr_enabled):
        change.isr = target.isr
    if context.shrinking_increases_leader_epoch and _shrinks(partition, change):
        change.leader = partition.leader
    if context.elr_enabled:
        change.last_known = _last_known_leader(partition, change.leader)
    return _record(topic_id, index, partition, target, change, context)


@state_class
class _Change:
    """Fields of the record so far; None, -2 and -1 mean unchanged."""

    leader: int
    isr: Replicas | None = None
    elr: Replicas | None = None
    last_known: Replicas | None = None
    recovery: int = NO_RECOVERY_CHANGE


def _shrinks(partition: PartitionImage, change: _Change) -> bool:
    """Whether the ISR shrinks while the leader stays."""
    stays = change.leader == NO_LEADER_CHANGE
    return stays and change.isr is not None and not set(partition.isr) <= set(change.isr)


class _Target:
    """Target state, adjusted step by step."""

    def __init__(self, partition: PartitionImage, wanted: PartitionTarget) -> None:
        self.partition = partition
        self.wanted = wanted
        self.isr = partition.isr if wanted.isr is None else wanted.isr
        self.replicas = partition.replicas if wanted.replicas is None else wanted.replicas
        self.removing = partition.removing_replicas if wanted.removing is None else wanted.removing
        self.adding = partition.adding_replicas if wanted.adding is None else wanted.adding
        self.elr = partition.elr

    def complete_reassignment(self) -> None:
        """Complete the reassignment once all added replicas are in the ISR (KIP-455). A replica
        that is both added and removed counts for neither."""
        if not (self.removing or self.adding):
            return
        isr = without_replicas(self.isr, self.removing)
        replicas = without_replicas(self.replicas, self.removing)
        if self.removing and not (isr and replicas):
            return
        added = without_replicas(self.adding, self.removing)
        removed = without_replicas(self.removing, self.adding)
        if not set(added) <= set(isr):
            return
        if len(added) < len(removed) and not set(replicas) <= set(isr):
            return  # fewer replicas: all that stay must be in sync, or the ISR shrinks needlessly
        self.isr, self.replicas, self.removing, self.adding = isr, replicas, (), ()

    def compute_elr(self, min_isr: int) -> None:
        """Replicas that leave an ISR below min.insync.replicas become eligible."""
        if len(self.isr) >= min_isr:
            self.elr = ()
            return
        not_eligible = {*self.isr, *self.wanted.unclean_shutdown}
        # a removed replica is not eligible
        eligible = {*self.elr, *self.partition.isr} & set(self.replicas)
        self.elr = tuple(sorted(eligible - not_eligible))

    def elect(self, context: PartitionChangeContext) -> tuple[int, bool]:
        """The new leader (-1: none, -2: unchanged), and whether the election is unclean."""
        leader, unclean = self._choose(context)
        return (NO_LEADER_CHANGE, False) if leader == self.partition.leader else (leader, unclean)

    def _choose(self, context: PartitionChangeContext) -> tuple[int, bool]:
        election = self.wanted.election
        order: list[int] = [self.partition.leader, *self.replicas]
        if election is ElectionType.PREFERRED:
            order = [self.replicas[0], *order]
        for candidate in order:
            if self._in_sync(candidate) and context.acceptable(candidate):
                return candidate, False
        if context.elr_enabled and self._last_known_leader_may(context):
            return self.partition.last_known_elr[0], True
        if election is ElectionType.UNCLEAN:
            for candidate in self.replicas:
                if context.acceptable(candidate):
                    return candidate, True
        return NO_LEADER, False

    def _in_sync(self, replica: int) -> bool:
        return replica in self.isr or (not self.isr and replica in self.elr)

    def _last_known_leader_may(self, context: PartitionChangeContext) -> bool:
        last_known = self.partition.last_known_elr
        return (
            not self.elr
            and not self.isr
            and len(last_known) == 1
            and context.acceptable(last_known[0])
        )


def _last_known_leader(partition: PartitionImage, leader: int) -> Replicas | None:
    """Set the last known leader when the partition becomes leaderless; clear it after an
    election."""
    if leader == NO_LEADER and partition.leader >= 0 and not partition.last_known_elr:
        return (partition.leader,)
    if leader >= 0 and partition.last_known_elr:
        return ()
    return None


def _record(
    topic_id: UUID,
    index: int,
    partition: PartitionImage,
    target: _Target,
    change: _Change,
    context: PartitionChangeContext,
) -> PartitionChangeRecord | None:
    from odradek.protocol.schemas.topic_records import PartitionChangeRecord

    wanted_recovery = target.wanted.recovery_state
    if wanted_recovery is not None and wanted_recovery != partition.leader_recovery_state:
        change.recovery = wanted_recovery
    directories = _target_directories(partition, target, context)
    record = PartitionChangeRecord(
        partition_id=index,
        topic_id=topic_id,
        isr=change.isr,
        leader=change.leader,
        replicas=target.replicas if target.replicas != partition.replicas else None,
        removing_replicas=target.removing
        if target.removing != partition.removing_replicas
        else None,
        adding_replicas=target.adding if target.adding != partition.adding_replicas else None,
        leader_recovery_state=change.recovery,
        directories=directories if directories != partition.directories else None,
        eligible_leader_replicas=change.elr,
        last_known_elr=change.last_known,
    )
    nothing = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    return None if record == nothing else record


def _target_directories(
    partition: PartitionImage, target: _Target, context: PartitionChangeContext
) -> tuple[UUID, ...]:
    known = dict(zip(partition.replicas, partition.directories, strict=True))
    known.update(target.wanted.directories)
    return tuple(
        known[each] if each in known else context.default_directory(each)
        for each in target.replicas
    )


def without_replicas(replicas: Iterable[int], gone: Iterable[int]) -> Replicas:
    """`replicas` without those in `gone`, in order."""
    left_out = set(gone)
    return tuple(each for each in replicas if each not in left_out)
