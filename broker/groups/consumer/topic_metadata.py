"""Topic metadata and configs for consumer groups.

The metadata hash of a group is in its record, so that a coordinator that loads the group detects
whether its topics have changed. As in Kafka it is XXH3 over the topics' ids, names, partitions and
racks, in the byte order of the library that Kafka uses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from uuid import UUID

from odradek.broker.groups.assignors import ASSIGNORS
from odradek.broker.groups.assignors.spec import Assign
from odradek.broker.groups.config import ConsumerGroupConfig, GroupConfig
from odradek.replication.controller.image import MetadataImage, TopicImage

_INT = struct.Struct("<i")
MAGIC = b"\x00"
"""Version of the topic hash."""


class TopicMetadata:
    """Topics of one metadata image. Reuses the hashes of `before`."""

    def __init__(self, image: MetadataImage, before: TopicMetadata | None = None) -> None:
        self.image = image
        self._hashes: dict[str, tuple[TopicImage, int]] = {}
        if before is not None and before.image.brokers is image.brokers:
            held = before._hashes.items()
            self._hashes = {name: each for name, each in held if name in image.topics_by_name}

    @property
    def version(self) -> int:
        """Offset of the metadata log of this image."""
        return self.image.offset

    def names(self) -> Iterable[str]:
        return self.image.topics_by_name

    def id_of(self, name: str) -> UUID | None:
        topic = self.image.topics_by_name.get(name)
        return None if topic is None else topic.id

    def name_of(self, topic_id: UUID) -> str | None:
        topic = self.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def ids_of(self, names: Iterable[str]) -> frozenset[UUID]:
        """Ids of those topics that exist."""
        images = (self.image.topics_by_name.get(name) for name in names)
        return frozenset(topic.id for topic in images if topic is not None)

    def partition_count(self, topic_id: UUID) -> int:
        """Number of partitions; 0 for a topic that does not exist."""
        topic = self.image.topics_by_id.get(topic_id)
        return 0 if topic is None else len(topic.partitions)

    def metadata_hash(self, names: Iterable[str]) -> int:
        """The metadata hash of a group that subscribes to these topics; signed, 64 bits."""
        hashes = [self._hash(name) for name in sorted(names) if name in self.image.topics_by_name]
        if not hashes:
            return 0
        return _xxh3(b"".join(struct.pack("<q", each) for each in hashes))

    def _hash(self, name: str) -> int:
        topic = self.image.topics_by_name[name]
        held = self._hashes.get(name)
        if held is not None and held[0] is topic:
            return held[1]
        racks = {broker.id: broker.rack for broker in self.image.brokers.values()}
        topic_hash = _topic_hash(topic, racks)
        self._hashes[name] = (topic, topic_hash)
        return topic_hash


def _topic_hash(topic: TopicImage, racks: Mapping[int, str | None]) -> int:
    high, low = divmod(topic.id.int, 1 << 64)
    parts = [MAGIC, struct.pack("<QQ", high, low), _text(topic.name)]
    parts.append(_INT.pack(len(topic.partitions)))
    known: dict[tuple[int, ...], bytes] = {}
    """Encoded racks by replicas, which are the same for many partitions."""
    for index in sorted(topic.partitions):
        replicas = topic.partitions[index].replicas
        encoded_racks = known.get(replicas)
        if encoded_racks is None:
            encoded_racks = known[replicas] = _racks(replicas, racks)
        parts.append(_INT.pack(index) + encoded_racks)
    return _xxh3(b"".join(parts))


def _racks(replicas: Iterable[int], racks: Mapping[int, str | None]) -> bytes:
    rack_names = sorted(rack for each in replicas if (rack := racks.get(each)) is not None)
    return b"".join(_INT.pack(len(rack)) + _text(rack) for rack in rack_names)


@lru_cache(maxsize=1024)
def _text(text: str) -> bytes:
    """Encode a string for the hash: UTF-16 code units, then their number."""
    units = text.encode("utf-16-le", "surrogatepass")
    return units + _INT.pack(len(units) // 2)


def _xxh3(data: bytes) -> int:
    from xxhash import xxh3_64_intdigest

    (signed,) = struct.unpack("<q", struct.pack("<Q", xxh3_64_intdigest(data)))
    return int(signed)


NO_TOPICS = MetadataImage()
CHANGED_TOPICS_MAX = 10_000
"""Number of changed topics that are tracked before all count as changed."""


class ConsumerGroupEnvironment:
    """Topics and configs for all consumer groups of a node."""

    def __init__(
        self,
        config: GroupConfig,
        image: MetadataImage = NO_TOPICS,
        settings: Callable[[str], ConsumerGroupConfig] = lambda group_id: ConsumerGroupConfig(),
    ) -> None:
        """`settings` returns the current configs of a group."""
        self.config = config
        self.topics = TopicMetadata(image)
        self.settings = settings
        self.new_topics_version = image.offset
        """Offset of the metadata log at which topics were created last. Expressions that were resolved
        before may match more topics."""
        self._changed: dict[str, int] = {}
        """Topic to the offset of the metadata log at which it was created, deleted or changed."""
        self._known_since = image.offset
        """Changes up to this offset are not in `_changed`."""

    def topics_changed(
        self, image: MetadataImage, topics: Collection[str], *, created: bool
    ) -> None:
        """These topics were created, deleted or changed; `created` if any of them is new."""
        self.topics = TopicMetadata(image, self.topics)
        if len(self._changed) > CHANGED_TOPICS_MAX:
            self._changed.clear()
            self._known_since = image.offset
        self._changed.update(dict.fromkeys(topics, image.offset))
        if created:
            self.new_topics_version = image.offset

    def is_changed(self, topics: Iterable[str], version: int) -> bool:
        """Whether any of these topics may have changed since that offset of the metadata log.

        Groups check it in heartbeats, so that a change of a topic costs nothing per group.
        """
        if version >= self.topics.version:
            return False
        if version < self._known_since:
            return True
        return any(self._changed.get(name, -1) > version for name in topics)

    def assignor(self, name: str | None) -> Assign:
        """The named assignor if it is enabled, else the default one."""
        names = self.config.consumer_assignors
        return ASSIGNORS[name if name in names and name is not None else names[0]]
