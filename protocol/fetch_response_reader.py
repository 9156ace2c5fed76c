"""Reads Fetch responses, versions 13 to 18, one partition at a time, for followers.

A response for a follower may be large. The fetcher appends it partition by partition and yields to other tasks in
between, so partitions are decoded only when they are requested. As in `fetch_request_reader.py`, `struct` and indexing
check most bounds; code checks them where a slice would silently be too short.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from odradek.protocol.codec.primitives import check_count, read_uuid
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.framing import read_tag_count, read_uvarint, skip_tagged_fields

OLDEST_VERSION = 13
"""First version that identifies topics by topic id."""

_HEAD = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_INT32 = struct.Struct(">i")
_DIVERGING_TAG = 0
_DIVERGING = struct.Struct(">iq")
_PARTITION_LEAST_BYTES = 37
_TOPIC_LEAST_BYTES = 18
_ABORTED_BYTES = 17


class PartitionData(NamedTuple):
    """Partition of a Fetch response. `records` are a slice of the response's buffer."""

    topic_id: UUID
    partition_index: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging_epoch: tuple[int, int] | None
    """Diverging epoch and its end offset."""
    records: memoryview


class FetchResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int
    session_id: int
    partitions: Iterator[PartitionData]
    """Partitions, decoded during the iteration, which raises InvalidFrame for malformed bytes."""


def read_fetch_response(body: memoryview) -> FetchResponse:
    """Read the head of a Fetch response. Raises InvalidFrame for malformed bytes."""
    try:
        throttle_time_ms, error_code, session_id = _HEAD.unpack_from(body)
    except struct.error:
        raise InvalidFrame("a Fetch response is cut short") from None
    return FetchResponse(throttle_time_ms, error_code, session_id, _partitions(body, _HEAD.size))


def _partitions(body: memoryview, position: int) -> Iterator[PartitionData]:
    try:
        topics, position = _read_count(body, position, _TOPIC_LEAST_BYTES)
        for _ in range(topics):
            topic_id = read_uuid(body, position)
            partitions, position = _read_count(body, position + 16, _PARTITION_LEAST_BYTES)
            for _ in range(partitions):
                data, position = _read_partition(body, position, topic_id)
                yield data
            position = skip_tagged_fields(body, position)
    except (struct.error, IndexError):
        raise InvalidFrame("a Fetch response is cut short") from None


def _read_partition(body: memoryview, position: int, topic_id: UUID) -> tuple[PartitionData, int]:
    index, error_code, high_watermark, _, start = _PARTITION.unpack_from(body, position)
    aborted, position = _read_count(body, position + _PARTITION.size, _ABORTED_BYTES)
    for _ in range(aborted):
        position = skip_tagged_fields(body, position + _ABORTED_BYTES - 1)
    size, position = read_uvarint(body, position + _INT32.size)
    end = position + max(0, size - 1)
    if end > len(body):
        raise IndexError
    records = body[position:end]
    diverging, position = _read_tags(body, end)
    data = PartitionData(topic_id, index, error_code, high_watermark, start, diverging, records)
    return data, position


def _read_tags(body: memoryview, position: int) -> tuple[tuple[int, int] | None, int]:
    """The diverging epoch, and the position after the tagged fields."""
    if body[position] == 0:
        return None, position + 1
    diverging = None
    count, position = read_tag_count(body, position)
    for _ in range(count):
        tag, position = read_uvarint(body, position)
        size, position = read_uvarint(body, position)
        if tag == _DIVERGING_TAG:
            epoch, end_offset = _DIVERGING.unpack_from(body, position)
            diverging = (epoch, end_offset) if epoch >= 0 else None
        position += size
        if position > len(body):
            raise IndexError
    return diverging, position


def _read_count(body: memoryview, position: int, least: int) -> tuple[int, int]:
    """The count of an array whose items have at least `least` bytes (0 for null), and the position after it."""
    count, position = read_uvarint(body, position)
    count = max(0, count - 1)
    check_count(count, least, len(body) - position)
    return count, position
