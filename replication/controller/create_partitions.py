"""CreatePartitions: adding partitions to topics (KIP-195)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller_result import (
    MAX_RECORDS,
    ControllerResult,
    ItemRefused,
    MutationCharge,
    TooManyRecords,
    check_size,
    no_mutation_quota,
)
from odradek.replication.controller.diskless_topics import (
    coordinator_count,
    diskless_partitions,
    no_replicas,
)
from odradek.replication.controller.image import (
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.replication.controller.partition_registration import partition_record
from odradek.replication.controller.replica_assignment import (
    ALL_FENCED,
    StripedReplicaPlacer,
    cannot_replicate,
    check_manual_assignment,
    initial_partition,
    no_active_replica,
)
from odradek.seams.entropy import Entropy
from odradek.seams.values import value_class


@value_class
class NewPartitions:
    """`count` is the new total; `assignments` are the replicas of the new partitions, or None."""

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
    """Results per topic, in request order (KIP-195)."""
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
    if topic.is_diskless:
        if wanted.assignments is not None:
            raise no_replicas()
        partitions = diskless_partitions(more, coordinator_count(image), entropy)
    elif wanted.assignments is None:
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
