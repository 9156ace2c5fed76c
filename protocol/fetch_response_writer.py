"""Writes Fetch responses, versions 4 to 18, without a schema and without copying records.

A response is a list of parts: the encoded fields up to the records of a partition, the records as the caller
passed them (usually slices of segment files), and the fields after them. No records are read or copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from uuid import UUID

from odradek.protocol.codec.primitives import append_count, append_string
from odradek.protocol.leader_tags import (
    CURRENT_LEADER,
    CURRENT_LEADER_SIZE,
    NodeEndpoint,
    node_endpoints_tags,
)
from odradek.seams.files import Buffer, FileSlice

Part = Buffer | FileSlice

FLEXIBLE_VERSION = 12
TOPIC_ID_VERSION = 13
NODE_ENDPOINTS_VERSION = 16

_INT32 = Struct(">i")
_THROTTLE = Struct(">i")
_THROTTLE_ERROR_SESSION = Struct(">ihi")
_PARTITION_V4 = Struct(">ihqq")
_PARTITION_V5 = Struct(">ihqqq")
_PARTITION_PLAIN_V11 = Struct(">ihqqqii")
_PARTITION_PLAIN_V12 = Struct(">ihqqqbi")
"""Fields for a read_uncommitted reader: null aborted transactions, then the preferred read replica."""
_ABORTED = Struct(">qq")
_ZERO_UUID = bytes(16)


@dataclass(slots=True, kw_only=True)
class FetchedPartition:
    """Partition of a Fetch response. `records` are sent unchanged; the last batch may be incomplete."""

    index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of each aborted transaction; None for a read_uncommitted reader."""
    preferred_read_replica: int = -1
    diverging_epoch: tuple[int, int] | None = None
    """Diverging epoch and its end offset: tag 0 from version 12."""
    current_leader: tuple[int, int] | None = None
    """Current leader's id and epoch: tag 1 from version 12."""
    snapshot_id: tuple[int, int] | None = None
    """Snapshot id as (end offset, epoch): tag 2 from version 12."""
    records: Sequence[Part] = ()


@dataclass(slots=True, kw_only=True)
class FetchedTopic:
    """Topic of a Fetch response, identified by name up to version 12 and by topic id from version 13."""

    name: str
    topic_id: UUID | None
    partitions: Sequence[FetchedPartition]


def write_fetch_response(
    version: int,
    *,
    throttle_time_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    topics: Sequence[FetchedTopic] = (),
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Part]:
    """The body of a Fetch response as parts: encoded fields, and the records that the caller passed.

    A partition without records gets empty records instead of null, as in Kafka.
    """
    parts: list[Part] = []
    flexible = version >= FLEXIBLE_VERSION
    if version >= 7:
        out = bytearray(_THROTTLE_ERROR_SESSION.pack(throttle_time_ms, error_code, session_id))
    else:
        out = bytearray(_THROTTLE.pack(throttle_time_ms))
    append_count(out, len(topics), flexible)
    for topic in topics:
        if version >= TOPIC_ID_VERSION:
            out += topic.topic_id.bytes if topic.topic_id is not None else _ZERO_UUID
        else:
            append_string(out, topic.name, flexible)
        append_count(out, len(topic.partitions), flexible)
        for partition in topic.partitions:
            _append_partition(out, partition, version)
            records = partition.records
            if records:
                parts.append(out)
                parts.extend(records)
                out = bytearray()
            if flexible:
                _append_partition_tags(out, partition)
        if flexible:
            out.append(0)
    if flexible:
        if node_endpoints and version >= NODE_ENDPOINTS_VERSION:
            out += node_endpoints_tags(node_endpoints)
        else:
            out.append(0)
    if out:
        parts.append(out)
    return parts


def _append_partition(out: bytearray, partition: FetchedPartition, version: int) -> None:
    """Append the fields of a partition up to and including the size of its records."""
    flexible = version >= FLEXIBLE_VERSION
    aborted = partition.aborted_transactions
    size = 0
    for part in partition.records:
        size += part.size if isinstance(part, FileSlice) else len(part)
    if version >= 11 and aborted is None:
        plain = _PARTITION_PLAIN_V12 if flexible else _PARTITION_PLAIN_V11
        out += plain.pack(
            partition.index,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
            0 if flexible else -1,
            partition.preferred_read_replica,
        )
        append_count(out, size, flexible)
        return
    if version >= 5:
        out += _PARTITION_V5.pack(
            partition.index,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
        )
    else:
        out += _PARTITION_V4.pack(
            partition.index,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
        )
    if aborted is None:
        out += b"\xff\xff\xff\xff"
    else:
        append_count(out, len(aborted), flexible)
        for producer_id, first_offset in aborted:
            out += _ABORTED.pack(producer_id, first_offset)
            if flexible:
                out.append(0)
    if version >= 11:
        out += _INT32.pack(partition.preferred_read_replica)
    append_count(out, size, flexible)


def _append_partition_tags(out: bytearray, partition: FetchedPartition) -> None:
    diverging, leader, snapshot = (
        partition.diverging_epoch,
        partition.current_leader,
        partition.snapshot_id,
    )
    if diverging is None and leader is None and snapshot is None:
        out.append(0)
        return
    sections = []
    # tag, size in bytes, the struct, and an empty section of tagged fields in the struct
    if diverging is not None:
        sections.append(_DIVERGING.pack(0, 13, *diverging, 0))
    if leader is not None:
        sections.append(CURRENT_LEADER.pack(1, CURRENT_LEADER_SIZE, *leader, 0))
    if snapshot is not None:
        sections.append(_SNAPSHOT.pack(2, 13, *snapshot, 0))
    out.append(len(sections))
    out += b"".join(sections)


_DIVERGING = Struct(">bbiqb")
_SNAPSHOT = Struct(">bbqib")
