"""What lies between two images: what a node that was sent a snapshot has to tell its listeners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from odradek.replication.controller.image import MetadataDelta, MetadataImage

K = TypeVar("K")
V = TypeVar("V")


def image_delta(before: MetadataImage, image: MetadataImage) -> MetadataDelta:
    """As if all that happened in between were one step; its records are not known."""
    created = {
        id: topic for id, topic in image.topics_by_id.items() if id not in before.topics_by_id
    }
    deleted = {
        id: topic for id, topic in before.topics_by_id.items() if id not in image.topics_by_id
    }
    partitions = {}
    for id, topic in image.topics_by_id.items():
        old = before.topics_by_id.get(id)
        known = {} if old is None else old.partitions
        for index, partition in topic.partitions.items():
            if known.get(index) != partition:
                partitions[id, index] = partition
    return MetadataDelta(
        before=before,
        image=image,
        records=(),
        created_topics=created,
        deleted_topics=deleted,
        changed_partitions=partitions,
        changed_configs=_changed(before.configs, image.configs),
        changed_brokers=_changed(before.brokers, image.brokers),
        changed_features=_changed(before.features, image.features),
    )


def _changed(before: Mapping[K, V], after: Mapping[K, V]) -> frozenset[K]:
    return frozenset(key for key in (*before, *after) if before.get(key) != after.get(key))
