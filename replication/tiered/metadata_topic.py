"""The topic `__remote_log_metadata`: its creation, and the mapping of partitions to its partitions.

The first node that does not find the topic creates it. The topic is not compacted, its records have no keys, and by
default it keeps them forever (T-08, T-44). Each node bounds its restart by snapshots. A metadata partition is
computed from the number of partitions, so a topic with another number than configured is refused, as in Kafka.
"""

from __future__ import annotations

import logging

from odradek.client.admin import NewTopic, create_topics
from odradek.client.metadata import Cluster
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.values import value_class
from odradek.storage.tiered.metadata_records import METADATA_TOPIC

log = logging.getLogger("odradek.tiered")


class UnusableMetadataTopic(Exception):
    """The topic differs from its configs, and retrying does not help."""


@value_class
class MetadataTopic:
    """Configs of the topic (T-08). `retention_ms` -1 is unlimited."""

    partitions: int = 50
    replication_factor: int = 3
    retention_ms: int = -1
    min_in_sync: int = 2

    def new_topic(self) -> NewTopic:
        return NewTopic(
            METADATA_TOPIC,
            self.partitions,
            self.replication_factor,
            {
                "cleanup.policy": "delete",
                "retention.ms": str(self.retention_ms),
                "remote.storage.enable": "false",
                "min.insync.replicas": str(self.min_in_sync),
            },
        )


async def ensure_metadata_topic(cluster: Cluster, wanted: MetadataTopic) -> None:
    """Create the topic unless it exists.

    Raises UnusableMetadataTopic if it exists with another number of partitions. Raises KafkaError or ClientError if
    it cannot be found or created now, for example because of too few brokers.
    """
    try:
        found = await cluster.topic(METADATA_TOPIC)
    except KafkaError as error:
        if error.code != ErrorCode.unknown_topic_or_partition:
            raise
        await _create(cluster, wanted)
        return
    if len(found.partitions) != wanted.partitions:
        raise UnusableMetadataTopic(
            f"topic {METADATA_TOPIC} has {len(found.partitions)} partitions, and "
            f"remote.log.metadata.topic.num.partitions is {wanted.partitions}: the number of partitions "
            "cannot be changed, because it determines the metadata partition of each segment"
        )


async def _create(cluster: Cluster, wanted: MetadataTopic) -> None:
    try:
        await create_topics(cluster, [wanted.new_topic()])
    except KafkaError as error:
        if error.code != ErrorCode.topic_already_exists:  # another node created it
            raise
    else:
        log.info(
            "created topic %s with %d partitions, %d replicas each",
            METADATA_TOPIC,
            wanted.partitions,
            wanted.replication_factor,
        )
