"""Metadata partition of a partition, and configs of the metadata topic (T-08, T-44)."""

from uuid import UUID

import pytest

from odradek.replication.tiered.metadata_topic import MetadataTopic
from odradek.storage.tiered.metadata_records import METADATA_TOPIC, metadata_partition
from odradek.storage.tiered.segment_metadata import TopicIdPartition


@pytest.mark.parametrize(
    ("topic_id", "partition", "count", "expected"),
    [
        (UUID(int=1), 0, 50, 35),
        (UUID("00112233-4455-6677-8899-aabbccddeeff"), 7, 50, 19),
        (UUID(int=1), 0, 1, 0),
    ],
)
def test_metadata_partition_is_that_of_kafka(
    topic_id: UUID, partition: int, count: int, expected: int
) -> None:
    assert metadata_partition(TopicIdPartition(topic_id, "any", partition), count) == expected


def test_metadata_partition_depends_on_topic_id_only() -> None:
    """T-52: a recreated topic has another id."""
    places = {
        metadata_partition(TopicIdPartition(UUID(int=number), "same", 0), 50)
        for number in range(64)
    }
    assert len(places) > 25


def test_topic_is_not_compacted_and_kept_forever() -> None:
    """T-08, T-44."""
    made = MetadataTopic().new_topic()
    assert (made.name, made.partitions, made.replication_factor) == (METADATA_TOPIC, 50, 3)
    assert made.configs["cleanup.policy"] == "delete"
    assert made.configs["retention.ms"] == "-1"
    assert made.configs["remote.storage.enable"] == "false"
    assert made.configs["min.insync.replicas"] == "2"
