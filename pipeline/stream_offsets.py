"""Offsets of a stream in its checkpoint: the next offset of each partition, and the topic ids.

    {"events": {"0": 42, "1": 7, "topicId": "5FQSSYkIQCiI8Cc6AOJxXg"}}

The format is that of Spark's Kafka source with topic ids (KIP-516), because offsets are only valid for one topic,
and a recreated topic has another id. Checkpoints without ids, of Spark's source or of earlier versions, are
accepted, and have ids from their next batch on. Brokers without topic ids (before Kafka 2.8) are supported.

Spark stores the end of each batch, but not the start of the first one. So the end of the first batch includes its
start, with which another driver can repeat the batch. Checkpoints without it are accepted.

    {"events": {"0": 42, "1": 7, "topicId": "5FQSSYkIQCiI8Cc6AOJxXg", "begin": {"0": 12, "1": 0}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from odradek.pipeline.options import BEGIN, TOPIC_ID
from odradek.protocol.topics import TopicPartition
from odradek.protocol.uuids import uuid_from_text, uuid_to_text
from odradek.seams.values import value_class

OffsetsJson = dict[str, dict[str, Any]]
Offsets = dict[TopicPartition, int]


@value_class
class StreamOffsets:
    """Offsets by partition. Topics with unknown ids are not in `topic_ids`. `begin` is the start of the first
    batch, in its end offsets only; partitions that it lacks begin at 0.
    """

    offsets: Offsets
    topic_ids: Mapping[str, UUID]
    begin: Offsets | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Mapping[str, Any]]) -> StreamOffsets:
        ids = {topic: each[TOPIC_ID] for topic, each in given.items() if TOPIC_ID in each}
        begin = {topic: each[BEGIN] for topic, each in given.items() if BEGIN in each}
        return cls(
            _by_partition(given),
            {topic: uuid_from_text(text) for topic, text in ids.items()},
            _by_partition(begin) if begin else None,
        )

    def to_json(self) -> OffsetsJson:
        """Return the offsets as JSON. Equal offsets have equal text, because Spark compares the text."""
        found: OffsetsJson = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(partition)] = offset
        for topic, partitions in found.items():
            if topic in self.topic_ids:
                partitions[TOPIC_ID] = uuid_to_text(self.topic_ids[topic])
            if self.begin is not None:
                partitions[BEGIN] = {}
        for (topic, partition), offset in sorted((self.begin or {}).items()):
            if topic in found:
                found[topic][BEGIN][str(partition)] = offset
        return found

    def recreated_topics(self, now: Mapping[str, UUID]) -> dict[str, str]:
        """Return the topics with another id in `now`, with a description for each."""
        return {
            topic: (
                f"{topic} was deleted and recreated: offsets of the topic with id"
                f" {uuid_to_text(id)} are not valid for the topic with id"
                f" {uuid_to_text(now[topic])}"
            )
            for topic, id in sorted(self.topic_ids.items())
            if now.get(topic, id) != id
        }

    def excluding(self, topics: Mapping[str, object]) -> Offsets:
        """Return the offsets of all topics but these."""
        return {tp: at for tp, at in self.offsets.items() if tp.topic not in topics}


def _by_partition(given: Mapping[str, Mapping[str, Any]]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in given.items()
        for partition, offset in partitions.items()
        if partition not in (TOPIC_ID, BEGIN)
    }
