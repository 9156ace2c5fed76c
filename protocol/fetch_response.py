"""Fetch responses, versions 13 to 18, read by hand, one partition after the other: for followers.

A follower's answer may be large, and is dealt with partition by partition, with turns of others in
between: so it is read that way too. As in `fetch_request.py`, bounds are left to `struct` and to
indexing, and checked by hand where a slice would come out short.
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
"""Since then topics go by their ids."""

_HEAD = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_INT32 = struct.Struct(">i")
_DIVERGING_TAG = 0
_DIVERGING = struct.Struct(">iq")
_PARTITION_LEAST_BYTES = 37
_TOPIC_LEAST_BYTES = 18
_ABORTED_BYTES = 17


class PartitionData(NamedTuple):
    """A partition's part of an answer; `records` are a slice of what was read."""

    topic_id: UUID
    partition_index: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging_epoch: tuple[int, int] | None
    """(epoch, end offset) where the logs part."""
    records: memoryview


class FetchResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int
    session_id: int
    partitions: Iterator[PartitionData]
    """Read as they are asked for. Raises InvalidFrame for anything malformed."""


def read_fetch_response(body: memoryview) -> FetchResponse:
    """The response that `body` is. Raises InvalidFrame for anything malformed."""
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
    """The diverging epoch, and the position after all tags."""
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
    """How many items follow, each of `least` bytes at least; none where there is no array."""
    count, position = read_uvarint(body, position)
    count = max(0, count - 1)
    check_count(count, least, len(body) - position)
    return count, position
