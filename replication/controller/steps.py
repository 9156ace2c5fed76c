"""Large changes in small steps: what a broker's coming or going means for thousands of partitions.

A decision about a partition takes some 20 µs, and as much again until it is in the log. So the
controller goes through the partitions concerned some at a time, with others' requests in between, and
only then through the operation itself, which decides what is left. Each step looks at the partitions as
they are by then: one that was changed or deleted meanwhile needs no decision, or another one. What the
operations say of plans that are not atomic holds here too: should the controller fail after some of the
steps, the next one finds a state to go on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

from odradek.replication.controller.brokers import (
    BrokerRegistration,
    affected_by_shutdown,
    after_shutdown,
    check_registration,
    is_clean_start,
)
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.leadership import (
    Place,
    leader_and_isr_updates,
    partitions_in_directory,
    partitions_to_lead,
    partitions_to_leave,
    partitions_without_leader,
)
from odradek.replication.controller.operations import Plan
from odradek.seams.values import value_class

AT_ONCE: Final = 30
"""Partitions of one step: about a millisecond, with what it takes to write the records."""

Key = tuple[UUID, int]
"""(topic id, partition)"""


@value_class
class Steps:
    """The partitions concerned, and what is decided for some of them."""

    keys: Sequence[Key]
    decide: Callable[[MetadataImage, Iterator[Place]], list[Any]]

    def operations(self) -> Iterator[Callable[[MetadataImage], Plan[None]]]:
        for start in range(0, len(self.keys), AT_ONCE):
            yield self._operation(self.keys[start : start + AT_ONCE])

    def _operation(self, keys: Sequence[Key]) -> Callable[[MetadataImage], Plan[None]]:
        return lambda image: Plan(self.decide(image, _places(image, keys)), None)


def leave_in_sync_sets(
    image: MetadataImage, broker_id: int, *, unclean_election: bool = False
) -> Steps:
    """Others lead what the broker leads; it is in no in-sync set any more, but where it is the last."""

    def decide(image: MetadataImage, places: Iterator[Place]) -> list[Any]:
        still = (place for place in places if broker_id in place[2].isr)
        return leader_and_isr_updates(
            image, still, remove=broker_id, unclean_election=unclean_election
        )

    return Steps(_keys(partitions_to_leave(image, broker_id)), decide)


def leave_directories(
    image: MetadataImage,
    broker_id: int,
    directories: Iterable[UUID],
    *,
    unclean_election: bool = False,
) -> Steps:
    """As `leave_in_sync_sets`, of what the broker keeps in these directories."""
    keys = [
        key
        for each in directories
        for key in _keys(partitions_in_directory(image, broker_id, each))
    ]
    whole = leave_in_sync_sets(image, broker_id, unclean_election=unclean_election)
    return Steps(keys, whole.decide)


def forget_last_incarnation(
    image: MetadataImage, registration: BrokerRegistration, *, unclean_election: bool = False
) -> Steps:
    """What a broker's last end means, before it registers again. Nothing where it is the same one.

    Raises KafkaError where it may not register as it is.
    """
    check_registration(image, registration)
    existing = image.brokers.get(registration.id)
    clean = is_clean_start(image, registration)

    def decide(image: MetadataImage, places: Iterator[Place]) -> list[Any]:
        return after_shutdown(
            image, places, registration.id, clean=clean, unclean_election=unclean_election
        )

    if existing is None or existing.incarnation_id == registration.incarnation_id:
        return Steps((), decide)
    return Steps(_keys(affected_by_shutdown(image, registration.id, clean=clean)), decide)


def lead_what_nobody_leads(image: MetadataImage, *, unclean_election: bool = False) -> Steps:
    """Somebody serves again: partitions that waited for it get a leader."""
    return _lead(partitions_without_leader(image), unclean_election)


def lead_what_was_left(image: MetadataImage, *, unclean_election: bool = False) -> Steps:
    """As `lead_what_nobody_leads`, where that came to no end: of partitions that an eligible replica could
    lead."""
    return _lead(partitions_to_lead(image), unclean_election)


def _lead(places: Iterable[Place], unclean_election: bool) -> Steps:
    def decide(image: MetadataImage, places: Iterator[Place]) -> list[Any]:
        still = (place for place in places if place[2].leader < 0)
        return leader_and_isr_updates(image, still, unclean_election=unclean_election)

    return Steps(_keys(places), decide)


def _keys(places: Iterable[Place]) -> list[Key]:
    return [(topic.id, index) for topic, index, _ in places]


def _places(image: MetadataImage, keys: Iterable[Key]) -> Iterator[Place]:
    for topic_id, index in keys:
        topic = image.topics_by_id.get(topic_id)
        partition = None if topic is None else topic.partitions.get(index)
        if topic is not None and partition is not None:
            yield topic, index, partition
