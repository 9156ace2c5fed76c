"""Offset lookup by timestamp (KIP-79, KIP-734): time index, offset index, batch headers, and then the
records of one batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import NO_TIMESTAMP, Batch
from odradek.protocol.records.records import Record, decode_lazily
from odradek.seams.values import value_class
from odradek.storage.log.batch_scan import headers, read_batch
from odradek.storage.log.index_file import CorruptIndex
from odradek.storage.log.segment import Segment

_logger = logging.getLogger("odradek.log")


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
    position = _start_position(segment, timestamp, start_offset)
    for header in headers(segment.file, position, segment.size):
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        batch = read_batch(segment.file, header.position, header.size)
        found = first_at_or_after(batch, timestamp, start_offset, source=segment)
        if found is not None:
            return found
    return None


def _start_position(segment: Segment, timestamp: int, start_offset: int) -> int:
    """Position of a batch from which a search finds the first record at or after `timestamp`; the start of the
    segment if the time index is wrong."""
    try:
        entry_timestamp, offset = segment.time_index.entry_before(timestamp)
    except CorruptIndex as error:
        segment.rebuild_wrong_indexes(error)
        return 0
    if entry_timestamp == NO_TIMESTAMP or offset < start_offset:
        found = segment.locate(max(offset, start_offset))
        return segment.size if found is None else found.position
    found = segment.batch_with_timestamp(entry_timestamp, offset)
    if found is not None:
        return found.position
    segment.rebuild_wrong_indexes(
        CorruptIndex(
            f"the batch with offset {offset} does not have the timestamp {entry_timestamp} of its time index"
        )
    )
    return 0


def first_at_or_after(
    batch: Batch, timestamp: int, start_offset: int, *, source: object
) -> TimestampAndOffset | None:
    """The first record of a batch at or past `start_offset` whose timestamp is at or after `timestamp`.

    `source` names the segment of the batch in a warning about records that cannot be decoded.
    """
    for record in _readable_records(batch, source):
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return TimestampAndOffset(record.timestamp, record.offset, _epoch(batch))
    return None


def find_max_timestamp(segments: Sequence[Segment]) -> TimestampAndOffset | None:
    """First record with the largest timestamp; None if no record has a timestamp."""
    # max() returns the first segment with that timestamp
    latest = max(segments, key=lambda segment: segment.max_timestamp)
    timestamp = latest.max_timestamp
    if timestamp == NO_TIMESTAMP:
        return None
    found = latest.locate(latest.offset_of_max_timestamp)
    position = latest.size if found is None else found.position
    for header in headers(latest.file, position, latest.size):
        if header.max_timestamp == timestamp:
            batch = read_batch(latest.file, header.position, header.size)
            for record in _readable_records(batch, latest):
                if record.timestamp == timestamp:
                    return TimestampAndOffset(timestamp, record.offset, _epoch(header))
    return _find_max_timestamp_by_records(segments)


def _find_max_timestamp_by_records(segments: Sequence[Segment]) -> TimestampAndOffset | None:
    """`find_max_timestamp` for logs with batches whose header has a wrong largest timestamp.

    Reads batches in descending order of the headers' timestamps until no header is above what was found.
    """
    candidates = [
        (header.max_timestamp, header.base_offset, segment, header.position, header.size)
        for segment in segments
        for header in headers(segment.file, 0, segment.size)
    ]
    candidates.sort(key=lambda candidate: (-candidate[0], candidate[1]))
    largest: TimestampAndOffset | None = None
    for header_timestamp, _, segment, position, size in candidates:
        if largest is not None and header_timestamp <= largest.timestamp:
            break
        batch = read_batch(segment.file, position, size)
        for record in _readable_records(batch, segment):
            if record.timestamp > (NO_TIMESTAMP if largest is None else largest.timestamp):
                largest = TimestampAndOffset(record.timestamp, record.offset, _epoch(batch))
    return largest


def _readable_records(batch: Batch, source: object) -> Iterator[Record]:
    """The records of a batch up to the first that cannot be decoded.

    Appends refuse such batches, but logs of earlier versions may contain them.
    """
    try:
        yield from decode_lazily(batch)
    except CorruptBatch as error:
        _logger.warning(
            "skipping invalid records in the batch at offset %d of %s: %s",
            batch.base_offset,
            source,
            error,
        )


def _epoch(batch: Batch) -> int:
    return max(batch.leader_epoch, NO_TIMESTAMP)
