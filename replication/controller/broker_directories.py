"""Log directories of brokers: offline, cordoned, and assigned to replicas (KIP-858, KIP-1066)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.broker_registration import (
    check_broker_epoch,
    registration_change,
)
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.features import (
    DIRECTORY_ASSIGNMENT,
    knows_cordoned,
    metadata_version,
)
from odradek.replication.controller.image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
)
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.controller.leader_and_isr_updates import (
    PartitionRef,
    leader_and_isr_updates,
    partition_change_context,
    partitions_in_directory,
)
from odradek.replication.controller.partition_change_builder import (
    PartitionTarget,
    build_partition_change,
)


def mark_directories_offline(
    image: MetadataImage,
    broker_id: int,
    broker_epoch: int,
    offline: Sequence[UUID],
    *,
    unclean_election: bool = False,
) -> ControllerResult[None]:
    """Remove replicas in failed directories from ISRs and elect other leaders (KIP-858)."""
    broker = check_broker_epoch(image, broker_id, broker_epoch)
    newly = [each for each in broker.directories if each in offline]
    records: list[Any] = []
    for directory in newly:
        records += leader_and_isr_updates(
            image,
            partitions_in_directory(image, broker_id, directory),
            remove=broker_id,
            unclean_election=unclean_election,
        )
    if newly:
        left = tuple(each for each in broker.directories if each not in offline)
        records.append(registration_change(broker_id, broker_epoch, log_dirs=left))
    return ControllerResult(records, None, atomic=False)


def mark_directories_cordoned(
    image: MetadataImage, broker_id: int, broker_epoch: int, cordoned: Sequence[UUID]
) -> ControllerResult[None]:
    """Set the directories that accept no new replicas (KIP-1066)."""
    broker = check_broker_epoch(image, broker_id, broker_epoch)
    unchanged = broker.cordoned_directories is not None and sorted(
        broker.cordoned_directories
    ) == sorted(cordoned)
    if unchanged or not knows_cordoned(image.features):
        return ControllerResult([], None)
    return ControllerResult(
        [registration_change(broker_id, broker_epoch, cordoned_log_dirs=tuple(cordoned))], None
    )


def assign_directories(
    image: MetadataImage,
    broker_id: int,
    broker_epoch: int,
    assignments: Mapping[tuple[UUID, int], UUID],
    *,
    unclean_election: bool = False,
) -> ControllerResult[Mapping[tuple[UUID, int], ErrorCode]]:
    """Assign replicas of a broker to log directories (AssignReplicasToDirs, KIP-858).

    `assignments`: (topic id, partition) to directory id. A replica in an offline directory loses
    leadership and ISR membership. A leaderless partition whose replica moves to an online directory
    gets a leader (Kafka waits for the broker's restart). Raises KafkaError: stale_broker_epoch, or
    unsupported_version if the metadata version has no directories.
    """
    if metadata_version(image.features) < DIRECTORY_ASSIGNMENT:
        raise KafkaError(
            ErrorCode.unsupported_version, "Directory assignment is not supported yet."
        )
    broker = check_broker_epoch(image, broker_id, broker_epoch)
    responses: dict[tuple[UUID, int], ErrorCode] = {}
    records: list[Any] = []
    offline: list[tuple[UUID, int]] = []
    for (topic_id, index), directory in assignments.items():
        found = _replica(image, broker_id, topic_id, index)
        if isinstance(found, ErrorCode):
            responses[topic_id, index] = found
            continue
        topic, _, partition = found
        responses[topic_id, index] = ErrorCode.none
        record = build_partition_change(
            topic_id,
            index,
            partition,
            PartitionTarget(
                directories={broker_id: directory},
                unclean_shutdown=_lacks_records(partition, broker, directory),
            ),
            partition_change_context(image, topic, _moved(partition, broker_id, directory)),
        )
        if record is not None:
            records.append(record)
        if not broker.has_online(directory):
            offline.append((topic_id, index))
    if offline:
        records += _leave_offline(image, records, broker_id, offline, unclean_election)
    return ControllerResult(records, responses)


def _lacks_records(
    partition: PartitionImage, broker: BrokerImage, directory: UUID
) -> frozenset[int]:
    """The broker, if its replica left an offline directory and may be empty: it is removed from
    the ELR (Kafka keeps it eligible)."""
    is_left = not broker.has_online(partition.directory_of(broker.id))
    others = {*partition.isr, *partition.elr} - {broker.id}
    lacks = is_left and broker.has_online(directory) and others and broker.id in partition.elr
    return frozenset((broker.id,) if lacks else ())


def _moved(partition: PartitionImage, broker_id: int, directory: UUID) -> PartitionImage:
    pairs = zip(partition.replicas, partition.directories, strict=True)
    return replace(
        partition,
        directories=tuple(directory if replica == broker_id else at for replica, at in pairs),
    )


def _leave_offline(
    image: MetadataImage,
    records: Sequence[Any],
    broker_id: int,
    offline: Sequence[tuple[UUID, int]],
    unclean_election: bool,
) -> list[Any]:
    """Changes for replicas in offline directories, based on the new assignment."""
    assigned = apply_records(image, records, offset=image.offset).image
    places = []
    for topic_id, index in offline:
        topic = assigned.topics_by_id[topic_id]
        places.append((topic, index, topic.partitions[index]))
    return leader_and_isr_updates(
        assigned, places, remove=broker_id, unclean_election=unclean_election
    )


def _replica(
    image: MetadataImage, broker_id: int, topic_id: UUID, index: int
) -> PartitionRef | ErrorCode:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        return ErrorCode.unknown_topic_id
    partition = topic.partitions.get(index)
    if partition is None:
        return ErrorCode.unknown_topic_or_partition
    if broker_id not in partition.replicas:
        return ErrorCode.not_leader_or_follower
    return topic, index, partition
