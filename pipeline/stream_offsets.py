"""Where a stream is, as its checkpoint has it: the next offset of each partition, and which topics these are of.

    {"events": {"0": 42, "1": 7, "topicId": "5FQSSYkIQCiI8Cc6AOJxXg"}}

It is what Spark's own Kafka source writes, and the topics' ids (KIP-516): an offset means something in one topic
alone, and one that was deleted and made again under its name has another id. Checkpoints without ids, of that
source or of earlier versions, are read, and have them from their next batch on; brokers that know none (before
Kafka 2.8) leave it at offsets.

Spark keeps where each batch ends, and where the first one begins nowhere: its end says that, too, which is what
tells a driver that makes it again after another has died. Checkpoints whose first batch says nothing are read.

    {"events": {"0": 42, "1": 7, "topicId": "5FQSSYkIQCiI8Cc6AOJxXg", "begin": {"0": 12, "1": 0}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from odradek.client.positions import TopicPartition
from odradek.pipeline.options import BEGIN, TOPIC_ID
from odradek.protocol.uuids import uuid_from_text, uuid_to_text
from odradek.seams.values import value_class

OffsetsJson = dict[str, dict[str, Any]]
Offsets = dict[TopicPartition, int]


@value_class
class StreamOffsets:
    """See the module. Topics whose id is not known have none in `topic_ids`; `begin` is None but where the
    first batch ends. Partitions that are not in it begin at 0."""

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
        """The same offsets are the same text each time: Spark compares that."""
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
        """The topics that are others by the ids they have `now`, with what is to be said of each."""
        return {
            topic: f"{topic} was deleted and made again: offsets of the topic with id"
            f" {uuid_to_text(id)} are no offsets of the one with id {uuid_to_text(now[topic])}"
            for topic, id in sorted(self.topic_ids.items())
            if now.get(topic, id) != id
        }

    def excluding(self, topics: Mapping[str, object]) -> Offsets:
        """The offsets of all other topics."""
        return {where: at for where, at in self.offsets.items() if where.topic not in topics}


def _by_partition(given: Mapping[str, Mapping[str, Any]]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in given.items()
        for partition, offset in partitions.items()
        if partition not in (TOPIC_ID, BEGIN)
    }
