"""Read: find the slice of a segment's file for an offset, without reading the records.

If the caller requests it (KIP-74), the first batch is returned completely even if it is too large;
otherwise only if it fits, because a part of it would be useless. Later batches may be incomplete at the
end. No byte is at or past `limit`. A slice is in one segment.
"""

from __future__ import annotations

from typing import NamedTuple

from odradek.seams.files import FileSlice
from odradek.storage.errors import OffsetOutOfRange
from odradek.storage.log.log_segments import LogSegments
from odradek.storage.log.segment import Segment


class LogRead(NamedTuple):
    """Result of a read from `offset` on: a slice that the caller must unpin, or None.

    The first batch has `first_batch_size` bytes; if that is more than requested, there may be no slice.
    `base_offset` is that batch's: at most `offset`, unless compaction left a gap.
    """

    offset: int
    slice: FileSlice | None = None
    first_batch_size: int = 0
    base_offset: int = -1


class LogEnd(NamedTuple):
    """End of the log: the next offset is written at `position` of `segment`."""

    end_offset: int
    segment: Segment
    position: int


def read_segments(
    segments: LogSegments,
    log_end: LogEnd,
    offset: int,
    max_bytes: int,
    *,
    limit: int,
    at_least_one: bool,
    nowait: bool,
) -> LogRead:
    """Slice for a read; see `PartitionLog.read`. Raises OffsetOutOfRange, WouldBlock (with `nowait`),
    CorruptRecords."""
    if offset > log_end.end_offset:
        raise OffsetOutOfRange(f"offset {offset} is past the log end offset {log_end.end_offset}")
    if offset >= limit or offset == log_end.end_offset:
        return LogRead(offset)
    found = None
    for segment in segments.from_offset(offset):
        found = segment.locate(offset, nowait=nowait)
        if found is not None:
            break
    if found is None or found.base_offset >= min(limit, log_end.end_offset):
        return LogRead(offset)
    end = _end_position(segment, log_end, limit, nowait)
    if end <= found.position:
        return LogRead(offset)  # the limit is inside the first batch
    first_batch_size = found.end - found.position
    size = min(end - found.position, max(max_bytes, first_batch_size if at_least_one else 0))
    if size < first_batch_size:
        return LogRead(offset, None, first_batch_size, found.base_offset)
    file = segment.file
    file.pin()
    return LogRead(
        offset, FileSlice(file, found.position, size), first_batch_size, found.base_offset
    )


def _end_position(segment: Segment, log_end: LogEnd, limit: int, nowait: bool) -> int:
    """End position in `segment` of the batches below `limit`."""
    if limit >= log_end.end_offset:
        return log_end.position if segment is log_end.segment else segment.size
    found = segment.locate(limit, nowait=nowait)
    if found is None:
        return segment.size
    return found.position


def read_upper_bound(
    segments: LogSegments, read: LogRead, end_offset: int, *, nowait: bool = False
) -> int:
    """Offset at or past the end of what was read, from the offset index; the data is not read."""
    part = read.slice
    if part is None:
        return read.offset
    here, *after = segments.from_offset(read.base_offset)
    found = here.offset_index.upper_bound(part.position + part.size, mapped=nowait)
    if found is not None and here.check_entry(*found, nowait=nowait):
        return found[0]
    return after[0].base_offset if after else end_offset
