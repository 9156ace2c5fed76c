"""Where recovery begins in the segment that the recovery point lies in.

What is below the point was synced, the index entries included. How many entries there are does not
follow from the index's size after a crash (zeros follow, or entries that were not synced), but from
themselves: they grow, and end below the point.
"""

from __future__ import annotations

from odradek.protocol.errors import KafkaError
from odradek.seams.values import value_class
from odradek.storage.log import offset_index, time_index
from odradek.storage.log.index_builder import IndexBuilder
from odradek.storage.log.scan import headers
from odradek.storage.log.segment import Segment


@value_class
class ScanStart:
    """The first batch to check is at `position` and begins at or past `offset`; `builder` has seen
    those before it, and says how many index entries of theirs are kept."""

    position: int
    offset: int
    builder: IndexBuilder


def untrusted(segment: Segment) -> ScanStart:
    """From the start, with no entry kept."""
    segment.open_raw_indexes()
    return ScanStart(0, segment.base_offset, _new_builder(segment))


def trusted_prefix(segment: Segment, recovery_point: int) -> ScanStart:
    """Keep the index entries of batches below `recovery_point`, if the batches are where they say;
    and follow the headers from the last of them to the point."""
    if recovery_point <= segment.base_offset:
        return untrusted(segment)
    segment.open_raw_indexes()
    builder = _new_builder(segment)
    last_offset = _keep_offsets(segment, builder, recovery_point)
    _keep_times(segment, builder, last_offset)
    position, offset = builder.last_position, segment.base_offset
    try:
        for batch in headers(segment.file, position, segment.size):
            is_indexed = builder.kept_offsets and batch.position == builder.last_position
            if is_indexed and batch.last_offset != last_offset:
                return untrusted(segment)
            if batch.last_offset >= recovery_point:
                break
            if batch.base_offset < offset:
                return untrusted(segment)
            builder.add(batch.last_offset, batch.max_timestamp, batch.position)
            position, offset = batch.position + batch.size, batch.last_offset + 1
    except KafkaError:
        return untrusted(segment)
    return ScanStart(position, offset, builder)


def _new_builder(segment: Segment) -> IndexBuilder:
    return IndexBuilder(segment.base_offset, segment.index_interval_bytes)


def _keep_offsets(segment: Segment, builder: IndexBuilder, recovery_point: int) -> int:
    """Count the entries to keep; the offset of the last."""
    file = segment.offset_index.file
    size = offset_index.ENTRY.size
    data = file.read_at(0, file.size // size * size)
    bound = recovery_point - segment.base_offset
    relative = -1
    for entry_offset, position in offset_index.ENTRY.iter_unpack(data):
        if not (
            relative < entry_offset < bound and builder.last_position < position < segment.size
        ):
            break
        relative, builder.last_position = entry_offset, position
        builder.kept_offsets += 1
    return segment.base_offset + relative


def _keep_times(segment: Segment, builder: IndexBuilder, last_offset: int) -> None:
    """Count the entries to keep: those at or before the last batch that the offset index keeps."""
    file = segment.time_index.file
    size = time_index.ENTRY.size
    data = file.read_at(0, file.size // size * size)
    relative = -1
    for timestamp, entry_offset in time_index.ENTRY.iter_unpack(data):
        if not (
            timestamp > builder.last_timestamp
            and relative < entry_offset <= last_offset - segment.base_offset
        ):
            break
        relative, builder.last_timestamp = entry_offset, timestamp
        builder.kept_times += 1
    builder.max_timestamp = builder.last_timestamp
    if builder.kept_times:
        builder.offset_of_max_timestamp = segment.base_offset + relative
