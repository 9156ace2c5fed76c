"""The cluster's topics as consumer groups look at them: names, ids, partitions, and a hash of all that.

The hash stands in a group's record, so that a coordinator that has just loaded the group can tell
whether its topics changed meanwhile. It is Kafka's: XXH3 over the topic's id, name, partitions and
the racks of those, in the byte order of the library that Kafka takes it from.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from uuid import UUID

from odradek.replication.controller.image import MetadataImage, TopicImage

_INT = struct.Struct("<i")
MAGIC = b"\x00"
"""The version of the hash of a topic."""


class TopicMetadata:
    """One image's topics. What was hashed in the one `before` is not hashed again."""

    def __init__(self, image: MetadataImage, before: TopicMetadata | None = None) -> None:
        self.image = image
        self._hashes: dict[str, tuple[TopicImage, int]] = {}
        if before is not None and before.image.brokers is image.brokers:
            held = before._hashes.items()
            self._hashes = {name: each for name, each in held if name in image.topics_by_name}

    @property
    def version(self) -> int:
        """The offset of the metadata log that this is the state at."""
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
        """The ids of those that exist."""
        found = (self.image.topics_by_name.get(name) for name in names)
        return frozenset(topic.id for topic in found if topic is not None)

    def partition_count(self, topic_id: UUID) -> int:
        """0 for a topic that does not exist."""
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
        found = _topic_hash(topic, racks)
        self._hashes[name] = (topic, found)
        return found


def _topic_hash(topic: TopicImage, racks: Mapping[int, str | None]) -> int:
    high, low = divmod(topic.id.int, 1 << 64)
    parts = [MAGIC, struct.pack("<QQ", high, low), _text(topic.name)]
    parts.append(_INT.pack(len(topic.partitions)))
    known: dict[tuple[int, ...], bytes] = {}
    """What each set of replicas adds: many partitions, but few of those."""
    for index in sorted(topic.partitions):
        replicas = topic.partitions[index].replicas
        found = known.get(replicas)
        if found is None:
            found = known[replicas] = _racks(replicas, racks)
        parts.append(_INT.pack(index) + found)
    return _xxh3(b"".join(parts))


def _racks(replicas: Iterable[int], racks: Mapping[int, str | None]) -> bytes:
    found = sorted(rack for each in replicas if (rack := racks.get(each)) is not None)
    return b"".join(_INT.pack(len(rack)) + _text(rack) for rack in found)


@lru_cache(maxsize=1024)
def _text(text: str) -> bytes:
    """As the hash takes in a string: UTF-16 code units, then how many."""
    units = text.encode("utf-16-le", "surrogatepass")
    return units + _INT.pack(len(units) // 2)


def _xxh3(data: bytes) -> int:
    from xxhash import xxh3_64_intdigest

    (signed,) = struct.unpack("<q", struct.pack("<Q", xxh3_64_intdigest(data)))
    return int(signed)
