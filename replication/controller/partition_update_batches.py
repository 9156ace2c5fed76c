"""Splits the partition updates of a broker change into batches, with other requests in between.

A decision and its record take about 40 µs, and a broker may have thousands of partitions. So the
controller updates them in batches before or after the operation itself, which updates the rest.
Each batch uses the current image. After a failover in between, the new controller finds a valid
state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

from odradek.replication.controller.broker_registration import (
    BrokerRegistration,
    affected_by_shutdown,
    after_shutdown,
    check_registration,
    is_clean_start,
)
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.leader_and_isr_updates import (
    PartitionRef,
    electable_partitions,
    leader_and_isr_updates,
    partitions_changed_by_removal,
    partitions_in_directory,
    partitions_without_leader,
)
from odradek.seams.values import value_class

PARTITIONS_PER_BATCH: Final = 30
"""Partitions per batch: about 1 ms."""

Key = tuple[UUID, int]
"""(topic id, partition) of a partition."""


@value_class
class PartitionUpdateBatches:
    """The partitions to update, and the function that decides on a batch of them."""

    keys: Sequence[Key]
    decide: Callable[[MetadataImage, Iterator[PartitionRef]], list[Any]]

    def operations(self) -> Iterator[Callable[[MetadataImage], ControllerResult[None]]]:
        for start in range(0, len(self.keys), PARTITIONS_PER_BATCH):
            yield self._operation(self.keys[start : start + PARTITIONS_PER_BATCH])

    def _operation(self, keys: Sequence[Key]) -> Callable[[MetadataImage], ControllerResult[None]]:
        return lambda image: ControllerResult(self.decide(image, _places(image, keys)), None)


def remove_from_isrs(
    image: MetadataImage, broker_id: int, *, unclean_election: bool = False
) -> PartitionUpdateBatches:
    """Remove the broker from ISRs and elect other leaders, except where it is the last member."""

    def decide(image: MetadataImage, places: Iterator[PartitionRef]) -> list[Any]:
        still = (place for place in places if broker_id in place[2].isr)
        return leader_and_isr_updates(
            image, still, remove=broker_id, unclean_election=unclean_election
        )

    return PartitionUpdateBatches(_keys(partitions_changed_by_removal(image, broker_id)), decide)


def remove_from_offline_directories(
    image: MetadataImage,
    broker_id: int,
    directories: Iterable[UUID],
    *,
    unclean_election: bool = False,
) -> PartitionUpdateBatches:
    """Like `remove_from_isrs`, for replicas in these directories."""
    keys = [
        key
        for each in directories
        for key in _keys(partitions_in_directory(image, broker_id, each))
    ]
    whole = remove_from_isrs(image, broker_id, unclean_election=unclean_election)
    return PartitionUpdateBatches(keys, whole.decide)


def update_for_previous_incarnation(
    image: MetadataImage, registration: BrokerRegistration, *, unclean_election: bool = False
) -> PartitionUpdateBatches:
    """Partition updates before a broker registers again; none for the same incarnation.

    Raises KafkaError if the registration is not valid.
    """
    check_registration(image, registration)
    existing = image.brokers.get(registration.id)
    clean = is_clean_start(image, registration)

    def decide(image: MetadataImage, places: Iterator[PartitionRef]) -> list[Any]:
        return after_shutdown(
            image, places, registration.id, clean=clean, unclean_election=unclean_election
        )

    if existing is None or existing.incarnation_id == registration.incarnation_id:
        return PartitionUpdateBatches((), decide)
    return PartitionUpdateBatches(
        _keys(affected_by_shutdown(image, registration.id, clean=clean)), decide
    )


def elect_for_leaderless_partitions(
    image: MetadataImage, *, unclean_election: bool = False
) -> PartitionUpdateBatches:
    """Elect leaders for leaderless partitions after a broker was unfenced."""
    return _lead(partitions_without_leader(image), unclean_election)


def elect_for_electable_partitions(
    image: MetadataImage, *, unclean_election: bool = False
) -> PartitionUpdateBatches:
    """Elect leaders for leaderless partitions that have an eligible replica."""
    return _lead(electable_partitions(image), unclean_election)


def _lead(places: Iterable[PartitionRef], unclean_election: bool) -> PartitionUpdateBatches:
    def decide(image: MetadataImage, places: Iterator[PartitionRef]) -> list[Any]:
        still = (place for place in places if place[2].is_offline)
        return leader_and_isr_updates(image, still, unclean_election=unclean_election)

    return PartitionUpdateBatches(_keys(places), decide)


def _keys(places: Iterable[PartitionRef]) -> list[Key]:
    return [(topic.id, index) for topic, index, _ in places]


def _places(image: MetadataImage, keys: Iterable[Key]) -> Iterator[PartitionRef]:
    for topic_id, index in keys:
        topic = image.topics_by_id.get(topic_id)
        partition = None if topic is None else topic.partitions.get(index)
        if topic is not None and partition is not None:
            yield topic, index, partition
