"""Range assignor of classic groups, and the encoding of subscriptions and assignments.

The functions have no I/O. ConsumerProtocolSubscription and ConsumerProtocolAssignment are a version (int16) and
topics. Version 0 is written; of later versions, the fields of version 0 are read, which precede all others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from odradek.protocol.errors import InvalidFrame
from odradek.protocol.topics import TopicPartition

RANGE = "range"


def assign_range(
    subscriptions: Mapping[str, Iterable[str]], partitions: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Assign the partitions of each topic as ranges of about equal size, independent of other topics.

    `subscriptions` has the topics by member id, `partitions` the number of partitions by topic (0 or
    missing: the topic does not exist). Members are sorted by id; the first ones get the larger ranges.
    """
    assignment: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    wanted = {member: set(topics) for member, topics in subscriptions.items()}
    for topic in sorted(set().union(*wanted.values())):
        members = sorted(member for member in wanted if topic in wanted[member])
        count = partitions.get(topic, 0)
        share, more = divmod(count, len(members))
        start = 0
        for number, member in enumerate(members):
            end = start + share + (1 if number < more else 0)
            assignment[member] += [TopicPartition(topic, index) for index in range(start, end)]
            start = end
    return assignment


def write_subscription(topics: Iterable[str]) -> bytes:
    """Encode the subscription of a member, its metadata in JoinGroup."""
    names = sorted(topics)
    parts = [struct.pack(">hi", 0, len(names)), *map(_string, names), struct.pack(">i", -1)]
    return b"".join(parts)


def read_subscription(data: bytes) -> list[str]:
    """Decode the subscription of a member. Raises InvalidFrame."""
    try:
        (count,) = struct.unpack_from(">i", data, 2)
        position = 6
        topics = []
        for _ in range(count):
            topic, position = _read_string(data, position)
            topics.append(topic)
    except (struct.error, UnicodeDecodeError) as error:
        raise InvalidFrame(f"invalid subscription of {len(data)} bytes: {error}") from error
    return topics


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the assignment of a member in SyncGroup."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    parts = [struct.pack(">hi", 0, len(topics))]
    for topic, indexes in sorted(topics.items()):
        parts += [_string(topic), struct.pack(f">i{len(indexes)}i", len(indexes), *sorted(indexes))]
    parts.append(struct.pack(">i", -1))
    return b"".join(parts)


def read_assignment(data: bytes) -> list[TopicPartition]:
    """Decode an assignment; empty bytes are no partitions. Raises InvalidFrame."""
    if not data:
        return []
    try:
        (count,) = struct.unpack_from(">i", data, 2)
        position = 6
        partitions = []
        for _ in range(count):
            topic, position = _read_string(data, position)
            (indexes,) = struct.unpack_from(">i", data, position)
            if not 0 <= indexes <= (len(data) - position) // 4:
                raise InvalidFrame(f"{indexes} partitions in an assignment of {len(data)} bytes")
            found = struct.unpack_from(f">{indexes}i", data, position + 4)
            partitions += [TopicPartition(topic, index) for index in found]
            position += 4 + 4 * indexes
    except (struct.error, UnicodeDecodeError) as error:
        raise InvalidFrame(f"invalid assignment of {len(data)} bytes: {error}") from error
    return partitions


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _read_string(data: bytes, position: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, position)
    (text,) = struct.unpack_from(f">{max(size, 0)}s", data, position + 2)
    return text.decode(), position + 2 + max(size, 0)
