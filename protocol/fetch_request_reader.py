"""Reads Fetch requests, versions 4 to 18, without a schema, because every poll of a consumer sends one.

As in `produce_request_reader.py`, positions are local variables. `struct` and indexing check most bounds; code checks them where
a slice would silently be too short. The tagged fields of a partition (directory id of KIP-853, high watermark
of KIP-1166) are skipped: only the leader of the metadata log uses them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from uuid import UUID

from odradek.protocol.codec.primitives import check_count, read_string, read_uuid
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.framing import read_tag_count, read_uvarint, skip_tagged_fields

MAX_PARTITIONS = 1 << 17
"""Limit of partitions in one request: it bounds the memory that a malicious request can allocate."""

LOG_START_VERSION = 5
SESSION_VERSION = 7
LEADER_EPOCH_VERSION = 9
RACK_VERSION = 11
FLEXIBLE_VERSION = 12
TOPIC_ID_VERSION = 13
REPLICA_STATE_VERSION = 15

REPLICA_STATE_TAG = 1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_REPLICA_STATE = struct.Struct(">iq")
_HEAD_V4 = struct.Struct(">iiiib")
_HEAD_V7 = struct.Struct(">iiiibii")
_HEAD_V15 = struct.Struct(">iiibii")
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqi")


class FetchPartition(NamedTuple):
    """Partition of a Fetch request. Epochs and the follower's log start offset are -1 if absent."""

    partition_index: int
    current_leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchTopic(NamedTuple):
    """Topic of a Fetch request, identified by name up to version 12 and by topic id from version 13."""

    name: str | None
    topic_id: UUID | None
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    name: str | None
    topic_id: UUID | None
    partitions: list[int]


class FetchRequest:
    """A Fetch request with the fields of all versions.

    `replica_id` is -1 for a consumer. `replica_epoch` is the follower's broker epoch, or -1 (KIP-903). `rack` is the
    consumer's `client.rack`, or "" (KIP-392). For versions without sessions, the session fields request none.
    """

    __slots__ = (
        "forgotten",
        "isolation_level",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "rack",
        "replica_epoch",
        "replica_id",
        "session_epoch",
        "session_id",
        "topics",
    )

    def __init__(self) -> None:
        self.replica_id = -1
        self.replica_epoch = -1
        self.rack = ""
        self.max_wait_ms = 0
        self.min_bytes = 0
        self.max_bytes = 0
        self.isolation_level = 0
        self.session_id = 0
        self.session_epoch = -1
        self.topics: list[FetchTopic] = []
        self.forgotten: list[ForgottenTopic] = []


def read_fetch_request(body: memoryview, version: int, position: int = 0) -> FetchRequest:
    """Read the Fetch request at `position`. Bytes after it are ignored, as in Kafka.

    Raises InvalidFrame for anything malformed.
    """
    try:
        request = FetchRequest()
        position = _read_head(request, body, version, position)
        position = _read_topics(request, body, version, position)
        if version >= SESSION_VERSION:
            position = _read_forgotten(request, body, version, position)
        if version >= RACK_VERSION:
            request.rack, position = _read_rack(body, version, position)
        if version >= FLEXIBLE_VERSION:
            _read_tags(request, body, version, position)
        return request
    except (struct.error, IndexError):
        raise InvalidFrame("a Fetch request is cut short") from None
    except UnicodeDecodeError:
        raise InvalidFrame("a Fetch request's string is not UTF-8") from None


def _read_head(request: FetchRequest, body: memoryview, version: int, position: int) -> int:
    if version >= REPLICA_STATE_VERSION:
        (
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            request.session_epoch,
        ) = _HEAD_V15.unpack_from(body, position)
        return position + _HEAD_V15.size
    if version >= SESSION_VERSION:
        (
            request.replica_id,
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            request.session_epoch,
        ) = _HEAD_V7.unpack_from(body, position)
        return position + _HEAD_V7.size
    (
        request.replica_id,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
    ) = _HEAD_V4.unpack_from(body, position)
    return position + _HEAD_V4.size


def _read_topics(request: FetchRequest, body: memoryview, version: int, position: int) -> int:
    flexible = version >= FLEXIBLE_VERSION
    end = len(body)
    count, position = _read_count(body, position, flexible, 3)
    remaining = MAX_PARTITIONS
    for _ in range(count):
        name, topic_id, position = _read_topic(body, version, position)
        partition_count, position = _read_count(body, position, flexible, 16)
        remaining -= partition_count + 1
        if remaining < 0:
            raise InvalidFrame(f"more than {MAX_PARTITIONS} partitions in a Fetch request")
        partitions = []
        for _ in range(partition_count):
            partition, position = _read_partition(body, version, position)
            partitions.append(partition)
            if flexible:
                position = _skip_tags(body, position)
        if flexible:
            position = _skip_tags(body, position)
        request.topics.append(FetchTopic(name, topic_id, partitions))
    if position > end:
        raise IndexError
    return position


def _read_partition(body: memoryview, version: int, position: int) -> tuple[FetchPartition, int]:
    if version >= FLEXIBLE_VERSION:
        found = FetchPartition._make(_PARTITION_V12.unpack_from(body, position))
        return found, position + _PARTITION_V12.size
    if version >= LEADER_EPOCH_VERSION:
        index, epoch, offset, start, size = _PARTITION_V9.unpack_from(body, position)
        return FetchPartition(index, epoch, offset, -1, start, size), position + _PARTITION_V9.size
    if version >= LOG_START_VERSION:
        index, offset, start, size = _PARTITION_V5.unpack_from(body, position)
        return FetchPartition(index, -1, offset, -1, start, size), position + _PARTITION_V5.size
    index, offset, size = _PARTITION_V4.unpack_from(body, position)
    return FetchPartition(index, -1, offset, -1, -1, size), position + _PARTITION_V4.size


def _read_forgotten(request: FetchRequest, body: memoryview, version: int, position: int) -> int:
    flexible = version >= FLEXIBLE_VERSION
    count, position = _read_count(body, position, flexible, 3)
    remaining = MAX_PARTITIONS
    for _ in range(count):
        name, topic_id, position = _read_topic(body, version, position)
        partition_count, position = _read_count(body, position, flexible, 4)
        remaining -= partition_count + 1
        if remaining < 0:
            raise InvalidFrame(f"more than {MAX_PARTITIONS} forgotten partitions")
        partitions = [
            index
            for (index,) in _INT32.iter_unpack(body[position : position + 4 * partition_count])
        ]
        position += 4 * partition_count
        if flexible:
            position = _skip_tags(body, position)
        request.forgotten.append(ForgottenTopic(name, topic_id, partitions))
    return position


def _read_topic(
    body: memoryview, version: int, position: int
) -> tuple[str | None, UUID | None, int]:
    """Name or id of a topic, and the position after it."""
    if version >= TOPIC_ID_VERSION:
        return None, read_uuid(body, position), position + 16
    if version >= FLEXIBLE_VERSION:
        length, position = read_uvarint(body, position)
        length -= 1
    else:
        (length,) = _INT16.unpack_from(body, position)
        position += 2
    name, position = read_string(body, position, length)
    return name, None, position


def _read_count(body: memoryview, position: int, flexible: bool, least: int) -> tuple[int, int]:
    """The count of an array whose items have at least `least` bytes, and the position after it."""
    if flexible:
        count = body[position] - 1  # usually one byte
        position += 1
        if count >= 0x7F:
            count, position = read_uvarint(body, position - 1)
            count -= 1
    else:
        (count,) = _INT32.unpack_from(body, position)
        position += 4
    check_count(count, least, len(body) - position)
    return count, position


def _skip_tags(body: memoryview, position: int) -> int:
    return position + 1 if body[position] == 0 else skip_tagged_fields(body, position)


def _read_rack(body: memoryview, version: int, position: int) -> tuple[str, int]:
    if version >= FLEXIBLE_VERSION:
        length, position = read_uvarint(body, position)
        length -= 1
    else:
        (length,) = _INT16.unpack_from(body, position)
        position += 2
    if length == 0:
        return "", position
    rack, position = read_string(body, position, length)
    return rack or "", position


def _read_tags(request: FetchRequest, body: memoryview, version: int, position: int) -> None:
    """Read the tagged fields of the request: from version 15 they hold the replica id and epoch."""
    if body[position] == 0:
        return
    count, position = read_tag_count(body, position)
    for _ in range(count):
        tag, position = read_uvarint(body, position)
        size, position = read_uvarint(body, position)
        if position + size > len(body):
            raise IndexError
        if tag == REPLICA_STATE_TAG and version >= REPLICA_STATE_VERSION:
            request.replica_id, request.replica_epoch = _REPLICA_STATE.unpack_from(body, position)
        position += size
