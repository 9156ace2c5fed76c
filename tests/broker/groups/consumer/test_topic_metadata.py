"""Tests of the topic metadata of consumer groups: its hash, and the changed topics."""

from __future__ import annotations

from uuid import UUID

from odradek.broker.groups.config import (
    GroupConfig,
)
from odradek.broker.groups.consumer.topic_metadata import (
    CHANGED_TOPICS_MAX,
    ConsumerGroupEnvironment,
    TopicMetadata,
)
from odradek.replication.controller.image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)

T = UUID(int=1)


def image(partitions: int = 2, rack: str | None = None, name: str = "t") -> MetadataImage:
    partition = PartitionImage((1,), (UUID(int=9),), (1,), 1, 0, 0)
    topic = TopicImage(name, T, dict.fromkeys(range(partitions), partition))
    broker = BrokerImage(1, 1, UUID(int=2), (), {}, rack, False, False, ())
    return MetadataImage(topics_by_name={name: topic}, topics_by_id={T: topic}, brokers={1: broker})


def test_metadata_hash_depends_on_topics_partitions_and_racks() -> None:
    hashes = [
        TopicMetadata(each).metadata_hash(["t", "u", "missing"])
        for each in (image(), image(3), image(rack="r"), image(rack="s"), image(name="u"))
    ]
    assert len(set(hashes)) == len(hashes)
    assert all(-(1 << 63) <= each < 1 << 63 for each in hashes)
    assert TopicMetadata(image()).metadata_hash(["missing"]) == 0
    assert TopicMetadata(image(), TopicMetadata(image())).metadata_hash(["t"]) == TopicMetadata(
        image()
    ).metadata_hash(["t"])


def test_heartbeat_checks_changed_topics() -> None:
    environment = ConsumerGroupEnvironment(GroupConfig(), MetadataImage(offset=5))
    assert not environment.is_changed(["t"], 5)
    assert environment.is_changed(["t"], 4), "earlier changes are not tracked"
    environment.topics_changed(MetadataImage(offset=7), ["t", "u"], created=True)
    environment.topics_changed(MetadataImage(offset=9), ["u"], created=False)
    assert [environment.is_changed(["t"], version) for version in (5, 6, 7, 8, 9)] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert environment.is_changed(["t", "u"], 8)
    assert not environment.is_changed(["v"], 5)


def test_changed_topics_over_the_limit_count_as_all_changed() -> None:
    environment = ConsumerGroupEnvironment(GroupConfig(), MetadataImage(offset=0))
    many = [str(each) for each in range(CHANGED_TOPICS_MAX + 1)]
    environment.topics_changed(MetadataImage(offset=1), many, created=True)
    assert not environment.is_changed(["t"], 0)
    environment.topics_changed(MetadataImage(offset=2), ["u"], created=False)
    assert environment.is_changed(["t"], 0)
    assert not environment.is_changed(["t"], 2)
