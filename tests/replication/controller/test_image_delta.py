"""The delta between two images equals the sum of the replayed deltas."""

from __future__ import annotations

from uuid import UUID

from odradek.protocol.schemas.cluster_records import FeatureLevelRecord
from odradek.protocol.schemas.topic_records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from odradek.replication.controller.image import TOPIC, MetadataImage, image_delta
from odradek.replication.controller.image_builder import apply_records

KEPT, GONE, NEW = (UUID(int=(1 << 100) + number) for number in range(3))


def partition(topic: UUID, index: int) -> PartitionRecord:
    return PartitionRecord(
        topic_id=topic,
        partition_id=index,
        replicas=(1, 2),
        isr=(1, 2),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=(UUID(int=101), UUID(int=102)),
    )


BEFORE = [
    TopicRecord(name="kept", topic_id=KEPT),
    partition(KEPT, 0),
    partition(KEPT, 1),
    TopicRecord(name="gone", topic_id=GONE),
    partition(GONE, 0),
    ConfigRecord(resource_type=TOPIC, resource_name="gone", name="a", value="1"),
    ConfigRecord(resource_type=TOPIC, resource_name="kept", name="a", value="1"),
    FeatureLevelRecord(name="metadata.version", feature_level=25),
]
AFTER = [
    PartitionChangeRecord(topic_id=KEPT, partition_id=1, leader=2),
    RemoveTopicRecord(topic_id=GONE),
    TopicRecord(name="new", topic_id=NEW),
    partition(NEW, 0),
    ConfigRecord(resource_type=TOPIC, resource_name="new", name="b", value="2"),
    FeatureLevelRecord(name="group.version", feature_level=1),
]


def test_image_delta_equals_replayed_deltas() -> None:
    before = apply_records(MetadataImage(), BEFORE, offset=7).image
    step = apply_records(before, AFTER, offset=13)
    reported = image_delta(before, step.image)
    assert reported.created_topics == step.created_topics
    assert reported.deleted_topics == step.deleted_topics
    assert reported.changed_partitions == step.changed_partitions
    assert reported.changed_configs == step.changed_configs
    assert reported.changed_features == step.changed_features
    assert (reported.before, reported.image) == (before, step.image)


def test_delta_of_equal_images_is_empty() -> None:
    image = apply_records(MetadataImage(), BEFORE, offset=7).image
    reported = image_delta(image, image)
    assert not reported.created_topics
    assert not reported.deleted_topics
    assert not reported.changed_partitions
    assert not reported.changed_configs
