"""Changes of leaders and ISRs when brokers or directories go offline or come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

from odradek.replication.controller.features import (
    SHRINKING_KEEPS_LEADER_EPOCH,
    elr_enabled,
    metadata_version,
)
from odradek.replication.controller.image import (
    BROKER,
    MIGRATING,
    UNASSIGNED,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.replication.controller.partition_change_builder import (
    ElectionType,
    PartitionChangeContext,
    PartitionTarget,
    build_partition_change,
    without_replicas,
)

MIN_ISR = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"

PartitionRef = tuple[TopicImage, int, PartitionImage]


def leader_and_isr_updates(
    image: MetadataImage,
    places: Iterable[PartitionRef],
    *,
    remove: int | None = None,
    add: int | None = None,
    unclean_shutdown: int | None = None,
    unclean_election: bool = False,
) -> list[Any]:
    """Partition changes for removed and added brokers (Kafka's `generateLeaderAndIsrUpdates`).

    `remove` leaves all ISRs; `add` may lead although it is fenced in `image`; `unclean_shutdown`
    leaves ISRs and ELRs. `unclean_election` is the default for topics without the config.
    """
    gone = frozenset(each for each in (remove, unclean_shutdown) if each is not None)

    def acceptable(broker_id: int) -> bool:
        return broker_id not in gone and (broker_id == add or image.is_active(broker_id))

    records = []
    for topic, index, partition in places:
        unclean = allows_unclean_election(image, topic.name, default=unclean_election)
        record = build_partition_change(
            topic.id,
            index,
            partition,
            PartitionTarget(
                isr=without_replicas(partition.isr, gone),
                unclean_shutdown=frozenset(() if unclean_shutdown is None else (unclean_shutdown,)),
                election=ElectionType.UNCLEAN if unclean else ElectionType.ONLINE,
            ),
            partition_change_context(image, topic, partition, acceptable),
        )
        if record is not None:
            records.append(record)
    return records


def partition_change_context(
    image: MetadataImage,
    topic: TopicImage,
    partition: PartitionImage,
    acceptable: Callable[[int], bool] | None = None,
) -> PartitionChangeContext:
    """Context of a partition change. A leader's directory must be online."""
    may_lead = image.is_active if acceptable is None else acceptable
    where = dict(zip(partition.replicas, partition.directories, strict=True))

    def acceptable_where_it_is(broker_id: int) -> bool:
        broker = image.brokers.get(broker_id)
        return (
            broker is not None
            and may_lead(broker_id)
            and broker.has_online(where.get(broker_id, UNASSIGNED))
        )

    return PartitionChangeContext(
        acceptable=acceptable_where_it_is,
        min_isr=effective_min_isr(image, topic),
        elr_enabled=elr_enabled(image.features),
        default_directory=lambda broker_id: default_directory(image, broker_id),
        shrinking_increases_leader_epoch=metadata_version(image.features)
        < SHRINKING_KEEPS_LEADER_EPOCH,
    )


def partitions_with_isr_member(image: MetadataImage, broker_id: int) -> Iterator[PartitionRef]:
    """Partitions with the broker in the ISR."""
    for place in _all_partitions(image):
        if broker_id in place[2].isr:
            yield place


def partitions_changed_by_removal(image: MetadataImage, broker_id: int) -> Iterator[PartitionRef]:
    """Partitions that change when the broker is removed. Without ELR, the last ISR member stays
    and only loses leadership."""
    with_elr = elr_enabled(image.features)
    for place in partitions_with_isr_member(image, broker_id):
        partition = place[2]
        if with_elr or len(partition.isr) > 1 or partition.leader == broker_id:
            yield place


def partitions_with_elr_member(image: MetadataImage, broker_id: int) -> Iterator[PartitionRef]:
    """Partitions with the broker in the ELR."""
    for place in _all_partitions(image):
        if broker_id in place[2].elr:
            yield place


def partitions_without_leader(image: MetadataImage) -> Iterator[PartitionRef]:
    """Offline partitions. Diskless partitions need no leader."""
    for place in _all_partitions(image):
        if place[2].leader < 0 and not place[2].is_diskless:
            yield place


def electable_partitions(image: MetadataImage) -> Iterator[PartitionRef]:
    """Leaderless partitions with an active replica in the ISR or ELR, or an active last known
    leader (KIP-966)."""
    for topic, index, partition in partitions_without_leader(image):
        eligible = partition.isr or partition.elr or partition.last_known_elr
        if any(image.is_active(each) for each in eligible):
            acceptable = partition_change_context(image, topic, partition).acceptable
            if any(acceptable(each) for each in eligible):
                yield topic, index, partition


def partitions_in_directory(
    image: MetadataImage, broker_id: int, directory: UUID
) -> Iterator[PartitionRef]:
    """Partitions of the broker in this directory."""
    for topic, index, partition in _all_partitions(image):
        if (
            directory in partition.directories
            and broker_id in partition.replicas
            and partition.directory_of(broker_id) == directory
        ):
            yield topic, index, partition


def leads_any_partition(image: MetadataImage, broker_id: int) -> bool:
    """Whether the broker leads any partition."""
    return any(
        partition.leader == broker_id
        for topic in image.topics_by_id.values()
        for partition in topic.partitions.values()
    )


def _all_partitions(image: MetadataImage) -> Iterator[PartitionRef]:
    for topic in image.topics_by_id.values():
        for index, partition in topic.partitions.items():
            yield topic, index, partition


def effective_min_isr(image: MetadataImage, topic: TopicImage) -> int:
    """`min.insync.replicas` of the topic or cluster, at most the replication factor."""
    text = image.topic_configs(topic.name).get(MIN_ISR) or image.config(BROKER, "").get(MIN_ISR)
    first = topic.partitions.get(0)
    replicas = len(first.replicas) if first is not None else 1
    return min(1 if text is None else int(text), replicas)


def allows_unclean_election(image: MetadataImage, topic: str, *, default: bool) -> bool:
    """`unclean.leader.election.enable` of the topic, else `default`."""
    text = image.topic_configs(topic).get(UNCLEAN_ELECTION)
    return default if text is None else text.strip().lower() == "true"


def default_directory(image: MetadataImage, broker_id: int) -> UUID:
    """Directory of a new replica: the broker's only one, else UNASSIGNED."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        return UNASSIGNED
    if not broker.directories:
        return MIGRATING
    return broker.directories[0] if len(broker.directories) == 1 else UNASSIGNED
