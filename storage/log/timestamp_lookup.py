"""Offset lookup by timestamp (KIP-79, KIP-734): time index, offset index, batch headers, and then the
records of one batch."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.protocol.records.batch import NO_TIMESTAMP, Batch
from odradek.protocol.records.records import decode_lazily
from odradek.seams.values import value_class
from odradek.storage.log.batch_scan import headers, read_batch
from odradek.storage.log.segment import Segment


@value_class
class TimestampAndOffset:
    """Timestamp (ms) and offset of a record, and the leader epoch of its batch (-1: none)."""

    timestamp: int
    offset: int
    leader_epoch: int


def find_timestamp(
    segments: Sequence[Segment], timestamp: int, start_offset: int
) -> TimestampAndOffset | None:
    """First record at or past `start_offset` with a timestamp of at least `timestamp` ms."""
    for segment in segments:
        if segment.max_timestamp >= timestamp:
            found = _find_in(segment, timestamp, start_offset)
            if found is not None:
                return found
    return None


def _find_in(segment: Segment, timestamp: int, start_offset: int) -> TimestampAndOffset | None:
    hint = max(segment.time_index.lookup(timestamp, mapped=False), start_offset)
    _, position = segment.offset_index.lookup(hint, mapped=False)
    for header in headers(segment.file, position, segment.size):
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        for record in decode_lazily(read_batch(segment.file, header.position, header.size)):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return TimestampAndOffset(record.timestamp, record.offset, _epoch(header))
    return None


def find_max_timestamp(segments: Sequence[Segment]) -> TimestampAndOffset | None:
    """First record with the largest timestamp; None if no record has a timestamp."""
    latest = max(
        segments, key=lambda segment: segment.max_timestamp
    )  # the first one with that timestamp
    timestamp = latest.max_timestamp
    if timestamp == NO_TIMESTAMP:
        return None
    _, position = latest.offset_index.lookup(latest.offset_of_max_timestamp, mapped=False)
    for header in headers(latest.file, position, latest.size):
        if header.max_timestamp == timestamp:
            for record in decode_lazily(read_batch(latest.file, header.position, header.size)):
                if record.timestamp == timestamp:
                    return TimestampAndOffset(timestamp, record.offset, _epoch(header))
    return None


def _epoch(batch: Batch) -> int:
    return max(batch.leader_epoch, NO_TIMESTAMP)
