"""Partition reassignments: start, cancel, list (KIP-455, KIP-860).

`adding_replicas` join, and `removing_replicas` leave once all added ones are in the ISR;
`build_partition_change` completes this. A new reassignment replaces the current one. A replica
added by the old one and not wanted by the new one is both adding and removing: it is removed at the
end and not waited for. (Kafka 4.3 waits for it, and may remove replicas of the old reassignment.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller_result import (
    ControllerResult,
    ItemRefused,
    check_size,
)
from odradek.replication.controller.diskless_topics import no_replicas
from odradek.replication.controller.image import MetadataImage, PartitionImage, TopicImage
from odradek.replication.controller.leader_and_isr_updates import (
    allows_unclean_election,
    partition_change_context,
)
from odradek.replication.controller.partition_change_builder import (
    ElectionType,
    PartitionTarget,
    build_partition_change,
    without_replicas,
)
from odradek.replication.controller.replica_assignment import check_manual_assignment
from odradek.seams.values import value_class


@value_class
class Reassignment:
    """`replicas` is the target; None cancels the current reassignment."""

    topic: str
    partition: int
    replicas: Sequence[int] | None


def alter_reassignments(
    image: MetadataImage,
    wanted: Sequence[Reassignment],
    *,
    allow_replication_factor_change: bool = True,
    unclean_election: bool = False,
) -> ControllerResult[list[KafkaError | None]]:
    """Errors per partition; None if it is in progress or complete.

    `unclean_election` is the default for topics without the config.
    """
    records: list[Any] = []
    responses: list[KafkaError | None] = []
    for each in wanted:
        try:
            topic, partition = _find(image, each)
            if each.replicas is None:
                changed = _cancelled(image, topic, each.partition, partition, unclean_election)
            elif partition.is_diskless:
                raise no_replicas()
            else:
                check_manual_assignment(image, each.replicas, None)
                if not allow_replication_factor_change:
                    _check_factor_kept(partition, each.replicas)
                changed = _begun(image, topic, each.partition, partition, each.replicas)
        except KafkaError as error:
            responses.append(error)
            continue
        responses.append(None)
        if changed is not None:
            records.append(changed)
    check_size(records)
    return ControllerResult(records, responses)


def _find(image: MetadataImage, wanted: Reassignment) -> tuple[TopicImage, PartitionImage]:
    topic = image.topics_by_name.get(wanted.topic)
    if topic is None:
        raise ItemRefused(
            ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {wanted.topic}."
        )
    partition = topic.partitions.get(wanted.partition)
    if partition is None:
        raise ItemRefused(
            ErrorCode.unknown_topic_or_partition,
            f"Unable to find partition {wanted.topic}:{wanted.partition}.",
        )
    return topic, partition


def _begun(
    image: MetadataImage,
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    target: Sequence[int],
) -> Any:
    """Start a reassignment. Replicas of an earlier one stay in `adding`, so that a cancellation
    can revert them."""
    removing = without_replicas(partition.replicas, target)
    adding = without_replicas(target, partition.replicas)
    return build_partition_change(
        topic.id,
        index,
        partition,
        PartitionTarget(
            replicas=(*target, *sorted(removing)),
            removing=tuple(sorted(removing)),
            adding=tuple(sorted((*partition.adding_replicas, *adding))),
        ),
        partition_change_context(image, topic, partition),
    )


def _check_factor_kept(partition: PartitionImage, target: Sequence[int]) -> None:
    """Compare with the replication factor after the current reassignment."""
    present = {*partition.replicas, *partition.adding_replicas} - {*partition.removing_replicas}
    if len(present) != len(target):
        raise ItemRefused(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(present)} to {len(target)}",
        )


def _cancelled(
    image: MetadataImage,
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    unclean_election: bool,
) -> Any:
    """Revert to the original replicas. Raises ItemRefused."""
    if not partition.is_reassigning:
        raise ItemRefused(ErrorCode.no_reassignment_in_progress)
    replicas = without_replicas(partition.replicas, partition.adding_replicas)
    isr = without_replicas(partition.isr, partition.adding_replicas)
    unclean = allows_unclean_election(image, topic.name, default=unclean_election)
    if not isr:
        if not unclean:
            raise ItemRefused(
                ErrorCode.invalid_replica_assignment,
                f"Unable to revert partition assignment for {topic.name}:{index} because it would "
                "require an unclean leader election.",
            )
        isr = replicas[:1]
    return build_partition_change(
        topic.id,
        index,
        partition,
        PartitionTarget(
            isr=isr,
            replicas=replicas,
            removing=(),
            adding=(),
            election=ElectionType.UNCLEAN if unclean else ElectionType.ONLINE,
        ),
        partition_change_context(image, topic, partition),
    )


def list_reassignments(
    image: MetadataImage, wanted: Iterable[tuple[str, Sequence[int]]] | None
) -> list[tuple[str, dict[int, PartitionImage]]]:
    """Partitions in reassignment by topic; None requests all topics."""
    if wanted is None:
        wanted = [(name, list(topic.partitions)) for name, topic in image.topics_by_name.items()]
    found = []
    for name, indexes in wanted:
        topic = image.topics_by_name.get(name)
        moving = {
            index: topic.partitions[index]
            for index in indexes
            if topic is not None
            and index in topic.partitions
            and topic.partitions[index].is_reassigning
        }
        if moving:
            found.append((name, moving))
    return found
