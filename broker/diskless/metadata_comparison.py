"""Comparison of a coordinator's partitions with the metadata image (KIP-1164, D-14, D-25).

The metadata image decides which diskless topics exist, and which coordinator a partition has. The leader compares the
whole image when it begins to serve, and what changes afterwards. It creates the partitions that it lacks, and deletes
the topics that the image lacks.

The image of a leader is never older than that of an earlier leader when it created a partition: the earlier one had not
seen the election yet. So a topic that the image lacks was deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

import trio

from odradek.protocol.errors import KafkaError
from odradek.protocol.schemas.diskless_apis import (
    DisklessCreatablePartitions,
    DisklessCreatePartitionsRequest,
    DisklessCreatePartitionsResponse,
    DisklessDeletableTopicState,
    DisklessDeleteTopicsRequest,
    DisklessDeleteTopicsResponse,
)
from odradek.replication.controller.image import MetadataDelta, MetadataImage
from odradek.replication.diskless.coordinator_state_machine import ImageTopic
from odradek.storage.diskless.state import DisklessState

if TYPE_CHECKING:
    from odradek.seams.clock import Clock

log = logging.getLogger("odradek.diskless")

RETRY_SECONDS: Final = 1.0
CREATED_PARTITIONS_MAX: Final = 1000
"""Partitions of one operation that creates those of the metadata image; a topic is not divided."""


class ComparedCoordinator(Protocol):
    """The part of DisklessCoordinator that is used."""

    coordinator_id: int
    name: str

    @property
    def serves(self) -> bool: ...

    async def query_strictly(self, fn: Callable[[DisklessState], Any]) -> Any: ...

    async def create_partitions(
        self, request: DisklessCreatePartitionsRequest
    ) -> DisklessCreatePartitionsResponse: ...

    async def delete_topics(
        self, request: DisklessDeleteTopicsRequest
    ) -> DisklessDeleteTopicsResponse: ...


class MetadataComparison:
    """Comparison of one coordinator."""

    def __init__(
        self,
        coordinator: ComparedCoordinator,
        image: Callable[[], MetadataImage],
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._image = image
        self._clock = clock
        self._to_compare: dict[UUID, None] | None = None
        """Topics to compare with the metadata image; None is all."""
        self._wanted = trio.Event()

    def begin(self) -> None:
        """Compare everything: the coordinator has begun to serve."""
        self._to_compare = None
        self._wanted.set()

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Compare the diskless topics that were created, extended or deleted."""
        if not self._coordinator.serves:
            return  # `begin` follows
        topics = self._to_compare
        if topics is not None:
            for topic_id, _ in delta.changed_partitions:
                if topic_id in delta.image.diskless_topics:
                    topics[topic_id] = None
            for topic_id in delta.deleted_topics:
                if topic_id in delta.before.diskless_topics:
                    topics[topic_id] = None
        if topics is None or topics:
            self._wanted.set()

    async def run(self) -> None:
        """Compare what has changed, while this broker leads, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if not self._coordinator.serves:
                continue
            topics, self._to_compare = self._to_compare, {}
            try:
                await self._compare_topics(topics)
            except KafkaError as error:
                log.info(
                    "%s: topics are compared with the metadata again: %s",
                    self._coordinator.name,
                    error,
                )
                self._to_compare = None
                await self._clock.sleep(RETRY_SECONDS)
                self._wanted.set()

    async def _compare_topics(self, topic_ids: Mapping[UUID, None] | None) -> None:
        """Compare these topics, or all topics of the image and the state. Raises KafkaError."""
        if topic_ids is None:
            known = await self._coordinator.query_strictly(
                lambda state: {partition.topic_id for partition in state.partitions()}
            )
            topic_ids = dict.fromkeys([*sorted(known), *self._image().diskless_topics])
        image = self._image()
        deleted = [each for each in topic_ids if each not in image.topics_by_id]
        if deleted:
            topics = tuple([DisklessDeletableTopicState(topic_id=each) for each in deleted])
            await self._coordinator.delete_topics(DisklessDeleteTopicsRequest(topics=topics))
        created: dict[UUID, ImageTopic] = {}
        partitions = 0
        for topic_id, topic in self.topics(topic_ids).items():
            created[topic_id] = topic
            partitions += len(topic.indexes)
            if partitions >= CREATED_PARTITIONS_MAX:
                await self._coordinator.create_partitions(creation_of(created))
                created, partitions = {}, 0
        if created:
            await self._coordinator.create_partitions(creation_of(created))

    def topics(self, topic_ids: Iterable[UUID]) -> dict[UUID, ImageTopic]:
        """Those of the topics that the image assigns partitions of to this coordinator (D-14)."""
        image = self._image()
        found: dict[UUID, ImageTopic] = {}
        for topic_id in topic_ids:
            topic = image.topics_by_id.get(topic_id)
            if topic is not None:
                indexes = [
                    index
                    for index, partition in topic.partitions.items()
                    if partition.diskless_coordinator == self._coordinator.coordinator_id
                ]
                if indexes:
                    found[topic_id] = ImageTopic(topic.name, indexes)
        return found


def creation_of(topics: Mapping[UUID, ImageTopic]) -> DisklessCreatePartitionsRequest:
    """Request to create the partitions of these topics that the coordinator lacks."""
    return DisklessCreatePartitionsRequest(
        topics=tuple(
            [
                DisklessCreatablePartitions(
                    topic_id=topic_id, name=topic.name, num_partitions=max(topic.indexes) + 1
                )
                for topic_id, topic in topics.items()
            ]
        )
    )
