"""Leader elections: ElectLeaders requests (KIP-460), preferred leader balancing, unclean
elections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller_result import (
    ControllerResult,
    ItemRefused,
    check_size,
)
from odradek.replication.controller.image import (
    NO_LEADER,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.replication.controller.leader_and_isr_updates import (
    allows_unclean_election,
    partition_change_context,
    partitions_without_leader,
)
from odradek.replication.controller.partition_change_builder import (
    ElectionType,
    PartitionTarget,
    build_partition_change,
)
from odradek.seams.values import value_class

ELECTIONS: Final = {0: ElectionType.PREFERRED, 1: ElectionType.UNCLEAN}
"""Election types of ElectLeaders."""

PARTITIONS_PER_BATCH: Final = 20
"""Elections per operation of a periodic task: about 1 ms."""


@value_class
class ElectedPartition:
    topic: str
    partition: int
    error: KafkaError | None = None


def elect_leaders(
    image: MetadataImage,
    election: ElectionType,
    wanted: Sequence[tuple[str, int]] | None,
) -> ControllerResult[list[ElectedPartition]]:
    """Results per requested partition. None requests all; partitions without need are then
    omitted."""
    everything = wanted is None
    partitions: Iterable[tuple[str, int]] = wanted if wanted is not None else _all(image)
    records: list[Any] = []
    responses: list[ElectedPartition] = []
    for topic, index in partitions:
        try:
            records.append(_elected(image, election, topic, index))
        except KafkaError as error:
            if not (everything and error.code is ErrorCode.election_not_needed):
                responses.append(ElectedPartition(topic, index, error))
        else:
            responses.append(ElectedPartition(topic, index))
    check_size(records)
    return ControllerResult(records, responses)


def _all(image: MetadataImage) -> Iterable[tuple[str, int]]:
    for name, topic in image.topics_by_name.items():
        for index in topic.partitions:
            yield name, index


def _elected(image: MetadataImage, election: ElectionType, name: str, index: int) -> Any:
    """The record that elects a leader. Raises ItemRefused."""
    topic = image.topics_by_name.get(name)
    if topic is None:
        raise ItemRefused(ErrorCode.unknown_topic_or_partition, f"No such topic as {name}")
    partition = topic.partitions.get(index)
    if partition is None:
        raise ItemRefused(
            ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}"
        )
    if not partition.replicas:
        raise ItemRefused(
            ErrorCode.election_not_needed,
            f"{name}-{index} is a partition of a diskless topic, which has no leader to elect.",
        )
    if _is_content(partition, election):
        raise ItemRefused(ErrorCode.election_not_needed)
    record = build_partition_change(
        topic.id,
        index,
        partition,
        PartitionTarget(election=election),
        partition_change_context(image, topic, partition),
    )
    if record is not None:
        return record
    if election is ElectionType.PREFERRED:
        raise ItemRefused(ErrorCode.preferred_leader_not_available)
    raise ItemRefused(ErrorCode.eligible_leaders_not_available)


def _is_content(partition: PartitionImage, election: ElectionType) -> bool:
    if election is ElectionType.PREFERRED:
        return partition.leader == partition.replicas[0]
    return partition.leader != NO_LEADER


# Periodic elections


def balance_leaders(
    image: MetadataImage, *, at_once: int = PARTITIONS_PER_BATCH
) -> ControllerResult[bool]:
    """Elect preferred leaders that are eligible; returns whether more may follow."""
    unbalanced = (
        (topic, index, partition)
        for topic in image.topics_by_id.values()
        for index, partition in topic.partitions.items()
        if partition.replicas  # a diskless partition has none
        and partition.leader != partition.replicas[0]
        and partition.replicas[0] in (partition.isr or partition.elr)
    )
    return _elect_some(image, unbalanced, ElectionType.PREFERRED, at_once)


def elect_uncleanly(
    image: MetadataImage, *, unclean_election: bool, at_once: int = PARTITIONS_PER_BATCH
) -> ControllerResult[bool]:
    """Elect unclean leaders for leaderless partitions where topics allow it; returns
    whether more may follow.

    `unclean_election` is the default for topics without the config.
    """
    allowed = (
        (topic, index, partition)
        for topic, index, partition in partitions_without_leader(image)
        if allows_unclean_election(image, topic.name, default=unclean_election)
    )
    return _elect_some(image, allowed, ElectionType.UNCLEAN, at_once)


def _elect_some(
    image: MetadataImage,
    partitions: Iterable[tuple[TopicImage, int, PartitionImage]],
    election: ElectionType,
    at_once: int,
) -> ControllerResult[bool]:
    """Elect leaders for the first `at_once` partitions that can change."""
    records: list[Any] = []
    for topic, index, partition in partitions:
        record = build_partition_change(
            topic.id,
            index,
            partition,
            PartitionTarget(election=election),
            partition_change_context(image, topic, partition),
        )
        if record is not None:
            records.append(record)
            if len(records) == at_once:
                return ControllerResult(records, True, atomic=False)
    return ControllerResult(records, False, atomic=False)
