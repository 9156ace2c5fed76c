"""Converts partitions between records and state (Kafka's `PartitionRegistration`; KIP-631, 858,
966)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from odradek.replication.controller.image import MIGRATING, InvalidMetadata, PartitionImage

if TYPE_CHECKING:
    from odradek.protocol.schemas.topic_records import PartitionChangeRecord, PartitionRecord

NO_LEADER_CHANGE = -2
NO_RECOVERY_CHANGE = -1


def partition_from_record(record: PartitionRecord) -> PartitionImage:
    """State of a PartitionRecord. Raises InvalidMetadata."""
    return PartitionImage(
        replicas=tuple(record.replicas),
        directories=_directories(tuple(record.directories), len(record.replicas)),
        isr=tuple(record.isr),
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        leader_recovery_state=record.leader_recovery_state,
        removing_replicas=tuple(record.removing_replicas),
        adding_replicas=tuple(record.adding_replicas),
        elr=tuple(record.eligible_leader_replicas or ()),
        last_known_elr=tuple(record.last_known_elr or ()),
        diskless_coordinator=record.diskless_coordinator,
    )


def merge_partition_change(before: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
    """State after a change: the partition epoch increases, the leader epoch if a leader is set."""
    replicas = before.replicas if record.replicas is None else tuple(record.replicas)
    directories = before.directories if record.directories is None else tuple(record.directories)
    led = record.leader != NO_LEADER_CHANGE
    recovery = record.leader_recovery_state
    elr = record.eligible_leader_replicas
    return PartitionImage(
        replicas=replicas,
        directories=_directories(directories, len(replicas)),
        isr=before.isr if record.isr is None else tuple(record.isr),
        leader=record.leader if led else before.leader,
        leader_epoch=before.leader_epoch + led,
        partition_epoch=before.partition_epoch + 1,
        leader_recovery_state=before.leader_recovery_state
        if recovery == NO_RECOVERY_CHANGE
        else recovery,
        removing_replicas=before.removing_replicas
        if record.removing_replicas is None
        else tuple(record.removing_replicas),
        adding_replicas=before.adding_replicas
        if record.adding_replicas is None
        else tuple(record.adding_replicas),
        elr=before.elr if elr is None else tuple(elr),
        last_known_elr=before.last_known_elr
        if record.last_known_elr is None
        else tuple(record.last_known_elr),
        diskless_coordinator=before.diskless_coordinator,
    )


def _directories(directories: tuple[UUID, ...], replicas: int) -> tuple[UUID, ...]:
    """One directory per replica; records before KIP-858 have none."""
    if all(each == MIGRATING for each in directories):
        return (MIGRATING,) * replicas
    if len(directories) != replicas:
        raise InvalidMetadata(f"{len(directories)} directories for {replicas} replicas")
    return directories


def partition_record(topic_id: UUID, index: int, partition: PartitionImage) -> PartitionRecord:
    """PartitionRecord of a state. An ELR is written even if the feature is disabled."""
    from odradek.protocol.schemas.topic_records import PartitionRecord

    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=partition.replicas,
        isr=partition.isr,
        removing_replicas=partition.removing_replicas,
        adding_replicas=partition.adding_replicas,
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=partition.directories,
        eligible_leader_replicas=partition.elr or None,
        last_known_elr=partition.last_known_elr or None,
        diskless_coordinator=partition.diskless_coordinator,
    )
