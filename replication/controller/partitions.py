"""Adding partitions to topics, and telling in which directory a replica is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.broker_registration import check_broker_epoch
from odradek.replication.controller.controller_result import (
    MAX_RECORDS,
    ControllerResult,
    ItemRefused,
    MutationCharge,
    TooManyRecords,
    check_size,
    no_mutation_quota,
)
from odradek.replication.controller.features import DIRECTORY_ASSIGNMENT, metadata_version
from odradek.replication.controller.image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.controller.leader_and_isr import (
    PartitionRef,
    leader_and_isr_updates,
    partition_change_context,
)
from odradek.replication.controller.partition_change_builder import (
    PartitionTarget,
    build_partition_change,
)
from odradek.replication.controller.partition_registration import partition_record
from odradek.replication.controller.replica_assignment import (
    ALL_FENCED,
    cannot_replicate,
    check_manual_assignment,
    initial_partition,
    no_active_replica,
)
from odradek.replication.controller.striped_replica_placer import StripedReplicaPlacer
from odradek.seams.entropy import Entropy
from odradek.seams.values import value_class


@value_class
class NewPartitions:
    """`count` is the new total; `assignments` the replicas of each new one, or None."""

    topic: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@value_class
class PartitionsResult:
    topic: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


def create_partitions(
    image: MetadataImage,
    wanted: Sequence[NewPartitions],
    *,
    entropy: Entropy,
    validate_only: bool = False,
    charge: MutationCharge = no_mutation_quota,
) -> ControllerResult[list[PartitionsResult]]:
    """One answer for each topic, in the order asked (KIP-195)."""
    counts: dict[str, int] = {}
    for each in wanted:
        counts[each.topic] = counts.get(each.topic, 0) + 1
    responses: dict[str, PartitionsResult] = {}
    records: list[Any] = []
    for each in wanted:
        if counts[each.topic] > 1:
            responses[each.topic] = PartitionsResult(
                each.topic, ErrorCode.invalid_request, "Duplicate topic name."
            )
            continue
        try:
            added = _added_partitions(image, each, entropy)
            check_size([*records, *added])
            charge(len(added))
        except KafkaError as error:
            responses[each.topic] = PartitionsResult(each.topic, error.code, error.message or None)
        else:
            records += added
            responses[each.topic] = PartitionsResult(each.topic)
    return ControllerResult([] if validate_only else records, list(responses.values()))


def _added_partitions(image: MetadataImage, wanted: NewPartitions, entropy: Entropy) -> list[Any]:
    topic = image.topics_by_name.get(wanted.topic)
    if topic is None:
        raise ItemRefused(ErrorCode.unknown_topic_or_partition)
    present = len(topic.partitions)
    more = _how_many_more(wanted, present)
    if more > MAX_RECORDS:
        raise TooManyRecords
    if wanted.assignments is None:
        partitions = _placed(image, topic, more, entropy)
    else:
        partitions = _assigned(image, topic, wanted.assignments)
    return [
        partition_record(topic.id, index, partition)
        for index, partition in enumerate(partitions, start=present)
    ]


def _how_many_more(wanted: NewPartitions, present: int) -> int:
    if wanted.count == present:
        raise ItemRefused(
            ErrorCode.invalid_partitions, f"Topic already has {present} partition(s)."
        )
    if wanted.count < present:
        raise ItemRefused(
            ErrorCode.invalid_partitions,
            f"The topic {wanted.topic} currently has {present} partition(s); {wanted.count} would "
            "not be an increase.",
        )
    more = wanted.count - present
    if wanted.assignments is not None and len(wanted.assignments) != more:
        raise ItemRefused(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {more} additional partition(s), but only {len(wanted.assignments)} "
            "assignment(s) were specified.",
        )
    return more


def _replication_factor(topic: TopicImage) -> int:
    return len(next(iter(topic.partitions.values())).replicas)


def _placed(
    image: MetadataImage, topic: TopicImage, count: int, entropy: Entropy
) -> list[PartitionImage]:
    factor = _replication_factor(topic)
    placer = StripedReplicaPlacer(image, entropy)
    placer.check(factor)
    partitions = []
    for _ in range(count):
        partition = initial_partition(image, placer.place(factor))
        if partition is None:
            raise cannot_replicate(factor, ALL_FENCED)
        partitions.append(partition)
    return partitions


def _assigned(
    image: MetadataImage, topic: TopicImage, assignments: Sequence[Sequence[int]]
) -> list[PartitionImage]:
    factor = _replication_factor(topic)
    partitions = []
    for index, replicas in enumerate(assignments, start=len(topic.partitions)):
        check_manual_assignment(image, replicas, factor)
        partition = initial_partition(image, replicas)
        if partition is None:
            raise no_active_replica(index)
        partitions.append(partition)
    return partitions


def assign_directories(
    image: MetadataImage,
    broker_id: int,
    broker_epoch: int,
    assignments: Mapping[tuple[UUID, int], UUID],
    *,
    unclean_election: bool = False,
) -> ControllerResult[Mapping[tuple[UUID, int], ErrorCode]]:
    """In which of its log directories a broker keeps its replicas (AssignReplicasToDirs, KIP-858).

    `assignments`: (topic id, partition) to directory id. What is assigned to a directory that is
    offline loses its leader and its place in the in-sync set; what has no leader and turns up in one
    that is online gets it (Kafka has it wait for the broker's next start). Raises KafkaError:
    stale_broker_epoch, or unsupported_version under a metadata.version without directories.
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
    """The broker, where its replica may have been made anew: a directory that it was in is not there, and
    others have the records. It is in another one, and no leader before it has them again (Kafka leaves it
    eligible)."""
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
    """What follows for replicas that turned out to be offline, decided on what was just assigned."""
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
