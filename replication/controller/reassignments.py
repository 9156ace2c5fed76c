"""Moving partitions to other brokers: begun, cancelled and listed (KIP-455, KIP-860).

A reassignment is a state of the partition: `adding_replicas` are to join, `removing_replicas` go once
all that are added are in sync. It completes with the change that fulfils it, which `build_partition_change`
sees to; where there is nothing to add, that is at once.

A reassignment takes the place of the one before. Who was being added and is not wanted any more is both,
added and to be removed: removed at the end, and not waited for. (Kafka 4.3 waits for it, in vain. And
where nothing is to be removed any more, it removes what it was to remove before.)
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
from odradek.replication.controller.image import MetadataImage, PartitionImage, TopicImage
from odradek.replication.controller.leader_and_isr import (
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
    """`replicas` is where the partition is to be; None cancels what is under way."""

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
    """One answer for each partition, None where it is under way or done.

    `unclean_election` is what holds for topics that set nothing.
    """
    records: list[Any] = []
    responses: list[KafkaError | None] = []
    for each in wanted:
        try:
            topic, partition = _find(image, each)
            if each.replicas is None:
                changed = _cancelled(image, topic, each.partition, partition, unclean_election)
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
    """What is not in the target goes, also what an earlier reassignment was adding: that stays among
    the added ones, too, so that cancelling still knows what there was at first."""
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
    """A reassignment under way counts as done: what it adds is there, what it removes is not."""
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
    """Back to the replicas there were. Raises ItemRefused."""
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
    """The partitions under way, of those asked for or (None) of all, by topic."""
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
