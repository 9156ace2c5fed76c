"""Writes Produce responses, versions 3 to 13, without a schema, because they are on the hot path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from uuid import UUID

from odradek.protocol.codec.primitives import (
    append_count,
    append_string,
    append_uvarint,
    cut_error_message,
)
from odradek.protocol.leader_tags import (
    CURRENT_LEADER,
    CURRENT_LEADER_SIZE,
    NodeEndpoint,
    node_endpoints_tags,
)
from odradek.protocol.produce_request_reader import FLEXIBLE_VERSION, TOPIC_ID_VERSION

LOG_START_VERSION = 5
RECORD_ERRORS_VERSION = 8
LEADER_VERSION = 10

_INT32 = Struct(">i")
_PARTITION_V3 = Struct(">ihqq")
_PARTITION_V5 = Struct(">ihqqq")
_PARTITION_FLEXIBLE = Struct(">ihqqq3s")
_THROTTLE_FLEXIBLE = Struct(">ib")
_NO_ERRORS = b"\0\0\0\0\xff\xff"
"""Empty array of record errors, and a null error message."""
_NO_ERRORS_FLEXIBLE = b"\1\0\0"
"""Empty array of record errors, null error message, and no tagged fields: compact encoding."""
_ZERO_UUID = bytes(16)


@dataclass(slots=True)
class ProducedPartition:
    """Partition of a Produce response. Offsets and the append time (ms) are -1 if unknown."""

    index: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    """(index in the batch, error message) of each rejected record."""
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None
    """Current leader's id and epoch: tag 0 from version 10."""


ProducedTopic = tuple[str | None, UUID | None, Sequence[ProducedPartition]]
"""Topic of a Produce response, identified by name up to version 12 and by topic id from version 13."""


def write_produce_response(
    version: int,
    topics: Sequence[ProducedTopic],
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytearray:
    """Encode the body of a Produce response."""
    if version >= FLEXIBLE_VERSION:
        return _write_flexible(version, topics, throttle_time_ms, node_endpoints)
    out = bytearray()
    append_count(out, len(topics), False)
    for name, _, partitions in topics:
        append_string(out, name or "", False)
        append_count(out, len(partitions), False)
        for partition in partitions:
            _append_partition(out, partition, version, False)
    out += _INT32.pack(throttle_time_ms)
    return out


def _write_flexible(
    version: int,
    topics: Sequence[ProducedTopic],
    throttle_time_ms: int,
    node_endpoints: Sequence[NodeEndpoint],
) -> bytearray:
    """Write versions 9 and later, with a fast path for partitions that have only offsets."""
    out = bytearray()
    append_uvarint(out, len(topics) + 1)
    for name, topic_id, partitions in topics:
        if version >= TOPIC_ID_VERSION:
            out += _ZERO_UUID if topic_id is None else topic_id.bytes
        else:
            append_string(out, name or "", True)
        append_uvarint(out, len(partitions) + 1)
        for partition in partitions:
            if (
                partition.record_errors
                or partition.error_message is not None
                or partition.current_leader is not None
            ):
                _append_partition(out, partition, version, True)
                continue
            out += _PARTITION_FLEXIBLE.pack(
                partition.index,
                partition.error_code,
                partition.base_offset,
                partition.log_append_time_ms,
                partition.log_start_offset,
                _NO_ERRORS_FLEXIBLE,
            )
        out.append(0)
    if node_endpoints and version >= LEADER_VERSION:
        out += _INT32.pack(throttle_time_ms)
        out += node_endpoints_tags(node_endpoints)
    else:
        out += _THROTTLE_FLEXIBLE.pack(throttle_time_ms, 0)
    return out


def _append_partition(
    out: bytearray, partition: ProducedPartition, version: int, flexible: bool
) -> None:
    if version >= LOG_START_VERSION:
        out += _PARTITION_V5.pack(
            partition.index,
            partition.error_code,
            partition.base_offset,
            partition.log_append_time_ms,
            partition.log_start_offset,
        )
    else:
        out += _PARTITION_V3.pack(
            partition.index,
            partition.error_code,
            partition.base_offset,
            partition.log_append_time_ms,
        )
    if version < RECORD_ERRORS_VERSION:
        return
    if not flexible and not partition.record_errors and partition.error_message is None:
        out += _NO_ERRORS
        return
    append_count(out, len(partition.record_errors), flexible)
    for index, reason in partition.record_errors:
        out += _INT32.pack(index)
        append_string(out, reason and cut_error_message(reason), flexible)
        if flexible:
            out.append(0)
    message = partition.error_message
    append_string(out, message and cut_error_message(message), flexible)
    if not flexible:
        return
    if partition.current_leader is None or version < LEADER_VERSION:
        out.append(0)
    else:
        out.append(1)
        out += CURRENT_LEADER.pack(0, CURRENT_LEADER_SIZE, *partition.current_leader, 0)
