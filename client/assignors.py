"""Who of a classic group reads what: Kafka's range assignor, and the bytes the members exchange.

Pure functions. The bytes are ConsumerProtocolSubscription and ConsumerProtocolAssignment: a version
(i16), then topics; we write version 0 and read of any version what version 0 has, which all later
ones begin with.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from odradek.client.consumer import TopicPartition
from odradek.protocol.errors import InvalidFrame

RANGE = "range"


def assign_range(
    subscriptions: Mapping[str, Iterable[str]], partitions: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Each topic by itself: its partitions, in order, in as equal runs as can be.

    `subscriptions` are topics by member, `partitions` how many each topic has (0 or missing: it does
    not exist). Members are taken in the order of their ids; the first ones get one more.
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
    """A member's metadata in JoinGroup: the topics it wants."""
    names = sorted(topics)
    parts = [struct.pack(">hi", 0, len(names)), *map(_string, names), struct.pack(">i", -1)]
    return b"".join(parts)


def read_subscription(data: bytes) -> list[str]:
    """The topics in a member's metadata; InvalidFrame for garbage."""
    try:
        (count,) = struct.unpack_from(">i", data, 2)
        position = 6
        topics = []
        for _ in range(count):
            topic, position = _read_string(data, position)
            topics.append(topic)
    except (struct.error, UnicodeDecodeError) as error:
        raise InvalidFrame(f"a subscription of {len(data)} bytes that is none: {error}") from error
    return topics


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """A member's assignment in SyncGroup."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    parts = [struct.pack(">hi", 0, len(topics))]
    for topic, indexes in sorted(topics.items()):
        parts += [_string(topic), struct.pack(f">i{len(indexes)}i", len(indexes), *sorted(indexes))]
    parts.append(struct.pack(">i", -1))
    return b"".join(parts)


def read_assignment(data: bytes) -> list[TopicPartition]:
    """The partitions in an assignment (none if it is empty); InvalidFrame for garbage."""
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
        raise InvalidFrame(f"an assignment of {len(data)} bytes that is none: {error}") from error
    return partitions


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _read_string(data: bytes, position: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, position)
    (text,) = struct.unpack_from(f">{max(size, 0)}s", data, position + 2)
    return text.decode(), position + 2 + max(size, 0)
