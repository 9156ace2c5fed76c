"""Partitions of diskless topics, and the topic of their coordinators (KIP-1164).

A diskless partition has no replicas and no leader. Its only state is its coordinator, a partition of
`__diskless_metadata`, which is chosen when the partition is created and does not change (D-14). The partitions of a
topic are assigned to the coordinators in turn, from a random one on. Partitions that are added to
`__diskless_metadata` serve partitions that are created later.

Whether a topic is diskless is fixed when it is created: its config `diskless.enable` cannot change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import DISKLESS_METADATA
from odradek.replication.controller.controller_result import ItemRefused
from odradek.replication.controller.image import NO_LEADER, MetadataImage, PartitionImage
from odradek.seams.entropy import Entropy
from odradek.seams.values import value_class

ENABLE: Final = "diskless.enable"


@value_class
class DisklessMetadataTopic:
    """Settings of `__diskless_metadata`, which is created with the first diskless topic (D-13, D-15)."""

    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


def is_diskless(configs: Mapping[str, str]) -> bool:
    """Whether a topic that is created with these configs is diskless."""
    return configs.get(ENABLE, "").strip().lower() == "true"


def check_unchanged(image: MetadataImage, topic: str, configs: Mapping[str, str]) -> None:
    """Check that an existing topic may have these configs. Raises ItemRefused if `diskless.enable` changes."""
    found = image.topics_by_name.get(topic)
    if found is None or is_diskless(configs) == found.is_diskless:
        return
    now, later = ("diskless", "classic") if found.is_diskless else ("classic", "diskless")
    raise ItemRefused(
        ErrorCode.invalid_config,
        f"{ENABLE} is fixed when a topic is created: topic {topic} is {now} and cannot become {later}.",
    )


def coordinator_count(image: MetadataImage) -> int:
    """Number of coordinators of diskless topics; 0 before `__diskless_metadata` is created."""
    topic = image.topics_by_name.get(DISKLESS_METADATA)
    return 0 if topic is None else len(topic.partitions)


def diskless_partitions(count: int, coordinators: int, entropy: Entropy) -> list[PartitionImage]:
    """New partitions, assigned to the coordinators in turn."""
    first = entropy.below(coordinators)
    return [
        PartitionImage(
            replicas=(),
            directories=(),
            isr=(),
            leader=NO_LEADER,
            leader_epoch=0,
            partition_epoch=0,
            diskless_coordinator=(first + index) % coordinators,
        )
        for index in range(count)
    ]


def no_replicas() -> ItemRefused:
    """Error of an operation that assigns replicas to a diskless partition."""
    return ItemRefused(
        ErrorCode.invalid_replica_assignment,
        f"Partitions of diskless topics ({ENABLE}=true) have no replicas that could be assigned to brokers.",
    )


def invalid_replication_factor() -> ItemRefused:
    return ItemRefused(
        ErrorCode.invalid_replication_factor,
        f"The replication factor of diskless topics ({ENABLE}=true) must be 1 or -1: their records are in the "
        "object store, and any broker serves them.",
    )
