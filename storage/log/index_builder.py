"""Builds the offset and time index entries of a segment from its batches, in memory.

From all batches in order it makes the same entries as appending them one by one. It can continue after
kept entries, those of batches below some offset.
"""

from __future__ import annotations

import logging

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import NO_TIMESTAMP
from odradek.seams.files import File
from odradek.storage.errors import CorruptRecords
from odradek.storage.log import offset_index, time_index
from odradek.storage.log.batch_scan import headers
from odradek.storage.log.offset_index import RELATIVE_MAX, OffsetIndex
from odradek.storage.log.time_index import TimeIndex

_logger = logging.getLogger("odradek.log")

_pack_offset = offset_index.ENTRY.pack
_pack_time = time_index.ENTRY.pack


class IndexBuilder:
    """`offsets` and `times` are the entries made, after `kept_offsets` and `kept_times` kept."""

    __slots__ = (
        "base_offset",
        "index_interval_bytes",
        "kept_offsets",
        "kept_times",
        "last_position",
        "last_timestamp",
        "max_timestamp",
        "offset_of_max_timestamp",
        "offsets",
        "times",
    )

    def __init__(self, base_offset: int, index_interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.kept_offsets = 0
        self.kept_times = 0
        self.last_position = 0
        self.last_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = base_offset
        self.offsets = bytearray()
        self.times = bytearray()

    def add(self, last_offset: int, max_timestamp: int, position: int) -> None:
        """Add the next batch, which ends at `last_offset` and starts at `position`."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if position - self.last_position > self.index_interval_bytes:
            self.offsets += _pack_offset(last_offset - self.base_offset, position)
            self.last_position = position
            self._add_time()

    def seal(self) -> None:
        """Add the last entry of an inactive segment's time index."""
        self._add_time()

    def _add_time(self) -> None:
        if self.max_timestamp > self.last_timestamp:
            self.times += _pack_time(
                self.max_timestamp, self.offset_of_max_timestamp - self.base_offset
            )
            self.last_timestamp = self.max_timestamp


def build(file: File, size: int, base_offset: int, interval_bytes: int) -> IndexBuilder:
    """Entries of an inactive segment with this data. If a batch is corrupt, the index ends there; reads
    past it report the corruption. Raises OSError."""
    builder = IndexBuilder(base_offset, interval_bytes)
    try:
        for batch in headers(file, 0, size):
            if not 0 <= batch.last_offset - base_offset <= RELATIVE_MAX:
                raise CorruptRecords(
                    f"offset {batch.last_offset} is out of the range of {file.path}"
                )
            builder.add(batch.last_offset, batch.max_timestamp, batch.position)
    except (CorruptRecords, CorruptBatch) as error:
        _logger.error("corruption found in segment %s, its index ends there: %s", file.path, error)
    builder.seal()
    return builder


def write_indexes(offsets: OffsetIndex, times: TimeIndex, made: IndexBuilder) -> None:
    """Write both index files, durably. Raises OSError."""
    offsets.open_raw()
    offsets.rebuild(0, made.offsets)
    offsets.sync()
    times.open_raw()
    times.rebuild(0, made.times)
    times.sync()
