"""Reads Produce requests, versions 3 to 13, without a schema; records are slices of the frame.

This is the hot path, so positions are local variables. `struct` and indexing check most bounds by raising; code
checks them where a slice would silently be too short. A varint usually has one byte, which is decoded inline; a call
decodes longer ones. Records are not decoded.
"""

from __future__ import annotations

import struct
from uuid import UUID

from odradek.protocol.codec.primitives import (
    MAX_STRING_BYTES,
    check_count,
    read_string,
    read_uuid,
)
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.framing import read_uvarint, skip_tagged_fields

MAX_PARTITIONS = 1 << 17
"""Limit of partitions in one request: it bounds the memory that a malicious request can allocate."""

FLEXIBLE_VERSION = 9
TOPIC_ID_VERSION = 13

_LENGTH_MAX = MAX_STRING_BYTES + 1
"""Largest encoded length of a string in flexible versions, which is its length plus 1."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ACKS_TIMEOUT_TOPICS = struct.Struct(">hii")
_ACKS_TIMEOUT_COUNT = struct.Struct(">hiB")
_INDEX_LENGTH = struct.Struct(">iBB")
"""Partition index and two bytes of the compact length. A length of one byte is always followed by a byte."""
_INDEX_SIZE = struct.Struct(">ii")

Partition = tuple[int, "memoryview | None"]


class ProduceTopic:
    """Topic of a Produce request, identified by name up to version 12 and by topic id from version 13.

    `partitions` are (index, records). Records are None if the client sent null.
    """

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(
        self, name: str | None, topic_id: UUID | None, partitions: list[Partition]
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions


class ProduceRequest:
    """A Produce request. `acks` is not checked here; the handler returns INVALID_REQUIRED_ACKS."""

    __slots__ = ("acks", "timeout_ms", "topics", "transactional_id")

    def __init__(
        self, transactional_id: str | None, acks: int, timeout_ms: int, topics: list[ProduceTopic]
    ) -> None:
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topics = topics


def read_produce_request(body: memoryview, version: int, offset: int = 0) -> ProduceRequest:
    """Read the Produce request at `offset`. Its records are slices of `body`.

    Raises InvalidFrame if it is malformed. Bytes after the request are ignored, as in Kafka.
    """
    try:
        if version >= FLEXIBLE_VERSION:
            return _read_flexible(body, offset, version >= TOPIC_ID_VERSION)
        return _read_legacy(body, offset)
    except (struct.error, IndexError):
        raise InvalidFrame("a Produce request is cut short") from None
    except UnicodeDecodeError:
        raise InvalidFrame("a Produce request's string is not UTF-8") from None


def _read_legacy(body: memoryview, position: int) -> ProduceRequest:
    """Read versions 3 to 8: int16 lengths of strings, int32 counts of arrays and sizes of records."""
    end = len(body)
    (length,) = _INT16.unpack_from(body, position)
    position += 2
    transactional_id = None
    if length >= 0:  # any negative length is null, as in Kafka
        transactional_id, position = read_string(body, position, length)
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_TOPICS.unpack_from(body, position)
    position += 10
    check_count(topic_count, 6, end - position)
    topics = []
    remaining = MAX_PARTITIONS
    for _ in range(topic_count):
        (length,) = _INT16.unpack_from(body, position)
        name, position = read_string(body, position + 2, length)
        (count,) = _INT32.unpack_from(body, position)
        position += 4
        check_count(count, 8, end - position)
        remaining -= count + 1
        if remaining < 0:
            raise InvalidFrame(f"more than {MAX_PARTITIONS} partitions in a Produce request")
        partitions: list[Partition] = []
        for _ in range(count):
            index, size = _INDEX_SIZE.unpack_from(body, position)
            position += 8
            if size < 0:
                partitions.append((index, None))
                continue
            after = position + size
            if after > end:
                raise InvalidFrame(f"records of {size} bytes, {end - position} are left")
            partitions.append((index, body[position:after]))
            position = after
        topics.append(ProduceTopic(name, None, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_flexible(body: memoryview, position: int, by_id: bool) -> ProduceRequest:
    """Read versions 9 to 13: compact lengths and counts, and tagged fields in every struct."""
    end = len(body)
    transactional_id = None
    if body[position]:
        length, position = read_uvarint(body, position)
        transactional_id, position = read_string(body, position, length - 1)
    else:
        position += 1
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT.unpack_from(body, position)
    position += 7
    if topic_count > 0x7F:
        topic_count, position = read_uvarint(body, position - 1)
    check_count(topic_count - 1, 3, end - position)
    topics = []
    remaining = MAX_PARTITIONS
    for _ in range(topic_count - 1):
        name = topic_id = None
        if by_id:
            topic_id = read_uuid(body, position)
            position += 16
        else:
            length = body[position]
            position += 1
            if length > 0x7F:
                length, position = read_uvarint(body, position - 1)
            after = position + length - 1
            if not 1 <= length <= _LENGTH_MAX or after > end:
                raise InvalidFrame(f"a string of {length - 1} bytes, {end - position} are left")
            name = str(body[position:after], "utf-8")
            position = after
        count = body[position]
        position += 1
        if count > 0x7F:
            count, position = read_uvarint(body, position - 1)
        check_count(count - 1, 6, end - position)
        remaining -= count
        if remaining < 0:
            raise InvalidFrame(f"more than {MAX_PARTITIONS} partitions in a Produce request")
        partitions: list[Partition] = []
        for _ in range(count - 1):
            index, size, high = _INDEX_LENGTH.unpack_from(body, position)
            position += 5
            if size > 0x7F:
                if high > 0x7F:
                    size, position = read_uvarint(body, position - 1)
                else:
                    size += (high - 1) << 7
                    position += 1
            records = None
            if size:
                after = position + size - 1
                if after > end:
                    raise InvalidFrame(f"records of {size - 1} bytes, {end - position} are left")
                records = body[position:after]
                position = after
            position = position + 1 if body[position] == 0 else skip_tagged_fields(body, position)
            partitions.append((index, records))
        position = position + 1 if body[position] == 0 else skip_tagged_fields(body, position)
        topics.append(ProduceTopic(name, topic_id, partitions))
    if body[position]:
        skip_tagged_fields(body, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)
