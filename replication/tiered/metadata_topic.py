"""`__remote_log_metadata`: what it is made like, and which of its partitions tells of which of ours.

It is made by whichever node finds it missing. It is not compacted, its records have no key, and by
default it keeps them for ever (T-08, T-44): what bounds a restart are the snapshots of each node. The
number of its partitions is part of where everything is found, so one that has another number than is
configured cannot be used, as in Kafka.
"""

from __future__ import annotations

import logging

from odradek.client.admin import NewTopic, create_topics
from odradek.client.metadata import Cluster
from odradek.client.partitioner import murmur2
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.values import value_class
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.storage.tiered.segment_metadata import TopicIdPartition

log = logging.getLogger("odradek.tiered")

_INT = 0xFFFFFFFF
_LONG = 0xFFFFFFFFFFFFFFFF


class UnusableMetadataTopic(Exception):
    """The topic is not what the configs say, and waiting does not mend it."""


@value_class
class MetadataTopic:
    """How the topic is made (T-08); `retention_ms` is -1 for ever."""

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


def metadata_partition(partition: TopicIdPartition, count: int) -> int:
    """Which of the topic's `count` partitions has the metadata of this one: murmur2 of Java's
    `Objects.hash` of the id's lower half, its upper half, and the partition's number."""
    hashed = 1
    for part in (partition.topic_id.int & _LONG, partition.topic_id.int >> 64):
        hashed = (31 * hashed + ((part ^ part >> 32) & _INT)) & _INT
    hashed = (31 * hashed + partition.partition) & _INT
    return (murmur2(hashed.to_bytes(4, "big")) & 0x7FFFFFFF) % count


async def ensure_metadata_topic(cluster: Cluster, wanted: MetadataTopic) -> None:
    """Make the topic unless it is there.

    Raises UnusableMetadataTopic if it is there with another number of partitions, and KafkaError or
    ClientError if it cannot be looked up or made now (too few brokers, for one).
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
            f"remote.log.metadata.topic.num.partitions is {wanted.partitions}: where a segment's "
            "metadata is follows from that number, it cannot be changed"
        )


async def _create(cluster: Cluster, wanted: MetadataTopic) -> None:
    try:
        await create_topics(cluster, [wanted.new_topic()])
    except KafkaError as error:
        if error.code != ErrorCode.topic_already_exists:  # another node was quicker
            raise
    else:
        log.info(
            "created topic %s with %d partitions, %d replicas each",
            METADATA_TOPIC,
            wanted.partitions,
            wanted.replication_factor,
        )
