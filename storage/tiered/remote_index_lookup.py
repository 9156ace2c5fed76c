"""Lookups in the indexes of a remote log segment, which have the format of the local indexes.

The formats are those of `storage/log` (offset_index.py, time_index.py, transaction_index.py).
`check_index` refuses an index that contradicts itself or its segment before its first use. Who uses an
entry checks it against the batch to which it leads (batch_scanner.py, remote_timestamp_lookup.py).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct

from odradek.seams.files import Buffer
from odradek.storage.log import offset_index, time_index, transaction_index
from odradek.storage.log.time_index import NO_TIMESTAMP
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.tiered.errors import CorruptRemoteIndex
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata

ENTRY_BYTES = {
    IndexType.OFFSET: offset_index.ENTRY.size,
    IndexType.TIMESTAMP: time_index.ENTRY.size,
    IndexType.TRANSACTION: transaction_index.ENTRY.size,
}
_INT = Struct(">i")
_LONG = Struct(">q")
_LAST_OFFSET_AT = 18
"""Position of the last offset in a transaction index entry."""


def check_index(data: Buffer, kind: IndexType, segment: RemoteLogSegmentMetadata) -> None:
    """Raise CorruptRemoteIndex if the bytes cannot be an index of `segment`: incomplete entries,
    entries outside the segment, or entries that are not in order.

    Reads all entries, which takes tens of milliseconds for the largest index: call it in a worker
    thread.
    """
    entry_bytes = ENTRY_BYTES[kind]
    if len(data) % entry_bytes:
        raise _corrupt(
            kind, segment, f"has {len(data)} bytes, which is not a multiple of {entry_bytes}"
        )
    _CHECKS[kind](data, segment)


def _check_offsets(data: Buffer, segment: RemoteLogSegmentMetadata) -> None:
    previous, previous_position = -1, 0
    offsets, size_bytes = segment.end_offset - segment.start_offset, segment.size_bytes
    for relative, position in offset_index.ENTRY.iter_unpack(data):
        if not (previous < relative <= offsets and previous_position < position < size_bytes):
            raise _corrupt(
                IndexType.OFFSET,
                segment,
                f"has an invalid entry: relative offset {relative}, position {position}, after relative "
                f"offset {previous}, position {previous_position}",
            )
        previous, previous_position = relative, position


def _check_times(data: Buffer, segment: RemoteLogSegmentMetadata) -> None:
    previous_timestamp, previous = NO_TIMESTAMP, -1
    offsets = segment.end_offset - segment.start_offset
    for timestamp, relative in time_index.ENTRY.iter_unpack(data):
        if not (previous_timestamp < timestamp and previous < relative <= offsets):
            raise _corrupt(
                IndexType.TIMESTAMP,
                segment,
                f"has an invalid entry: timestamp {timestamp}, relative offset {relative}, after "
                f"timestamp {previous_timestamp}, relative offset {previous}",
            )
        previous_timestamp, previous = timestamp, relative


def _check_transactions(data: Buffer, segment: RemoteLogSegmentMetadata) -> None:
    before, stable = segment.start_offset - 1, 0
    for version, producer_id, first, last, stable_offset in transaction_index.ENTRY.iter_unpack(
        data
    ):
        if not (
            version == transaction_index.VERSION
            and producer_id >= 0
            and 0 <= first < last
            and before < last <= segment.end_offset
            and stable <= stable_offset <= segment.end_offset + 1
        ):
            raise _corrupt(
                IndexType.TRANSACTION,
                segment,
                f"has an invalid transaction: version {version}, producer {producer_id}, offsets {first} to "
                f"{last}, last stable offset {stable_offset}",
            )
        before, stable = last, stable_offset


_CHECKS = {
    IndexType.OFFSET: _check_offsets,
    IndexType.TIMESTAMP: _check_times,
    IndexType.TRANSACTION: _check_transactions,
}


def _corrupt(kind: IndexType, segment: RemoteLogSegmentMetadata, text: str) -> CorruptRemoteIndex:
    return CorruptRemoteIndex(f"the {kind.value} of remote segment {segment.id} {text}")


def lookup_offset(data: Buffer, base_offset: int, offset: int) -> tuple[int, int] | None:
    """Last offset and position of the last indexed batch that ends at or below `offset`. None means
    to scan from the start."""
    places = _places(data, IndexType.OFFSET)
    slot = bisect_right(places, offset - base_offset, key=lambda at: _INT.unpack_from(data, at)[0])
    if not slot:
        return None
    relative, position = offset_index.ENTRY.unpack_from(data, places[slot - 1])
    return base_offset + relative, position


def position_behind(data: Buffer, base_offset: int, offset: int) -> int | None:
    """Position behind the batch with `offset` by the offset index, or None for the segment's end."""
    places = _places(data, IndexType.OFFSET)
    slot = bisect_left(places, offset - base_offset, key=lambda at: _INT.unpack_from(data, at)[0])
    # The entry is of this batch or a later one; the next entry is behind it in any case.
    if slot + 2 >= len(places):
        return None
    position: int = offset_index.ENTRY.unpack_from(data, places[slot + 2])[1]
    return position


def time_entry_before(data: Buffer, base_offset: int, timestamp: int) -> tuple[int, int] | None:
    """Entry of the time index (timestamp in ms, offset) at whose offset a search for `timestamp` starts;
    None for the segment's start.

    It is the entry before the last that is not later. So the search finds the first record also if one
    of the two is wrong.
    """
    places = _places(data, IndexType.TIMESTAMP)
    slot = bisect_right(places, timestamp, key=lambda at: _LONG.unpack_from(data, at)[0])
    return _time_entry(data, base_offset, places[slot - 2]) if slot > 1 else None


def time_entry_at(data: Buffer, base_offset: int, timestamp: int) -> tuple[int, int] | None:
    """Last entry of the time index (timestamp in ms, offset) that is not later; None if all are
    later."""
    places = _places(data, IndexType.TIMESTAMP)
    slot = bisect_right(places, timestamp, key=lambda at: _LONG.unpack_from(data, at)[0])
    return _time_entry(data, base_offset, places[slot - 1]) if slot else None


def first_time_entry_from(data: Buffer, base_offset: int, timestamp: int) -> tuple[int, int] | None:
    """First entry of the time index (timestamp in ms, offset) at or after `timestamp`: a record at
    or after it exists by that offset. None if there is no such entry."""
    places = _places(data, IndexType.TIMESTAMP)
    slot = bisect_left(places, timestamp, key=lambda at: _LONG.unpack_from(data, at)[0])
    return _time_entry(data, base_offset, places[slot]) if slot < len(places) else None


def _time_entry(data: Buffer, base_offset: int, at: int) -> tuple[int, int]:
    timestamp, relative = time_index.ENTRY.unpack_from(data, at)
    return timestamp, base_offset + relative


def aborted_in(
    data: Buffer, start: int, end: int, until: int
) -> tuple[list[AbortedTransaction], bool]:
    """Aborted transactions of the index that overlap offsets [start, end), and whether later
    segments cannot have more of them. Markers at or past offset `until` are ignored."""
    found = []
    for each in _transactions_from(data, start):
        if each.last_offset >= until:
            break
        if each.first_offset < end:
            found.append(each)
        if each.last_stable_offset >= end:
            return found, True
    return found, False


def all_transactions(data: Buffer, at_most: int) -> list[AbortedTransaction]:
    """All entries of a transaction index; empty if there are more than `at_most`."""
    if len(data) > at_most * ENTRY_BYTES[IndexType.TRANSACTION]:
        return []
    return list(_transactions_from(data, 0))


def _transactions_from(data: Buffer, start: int) -> Iterator[AbortedTransaction]:
    """Transactions whose marker is at or past `start`."""
    places = _places(data, IndexType.TRANSACTION)
    slot = bisect_left(
        places, start, key=lambda at: _LONG.unpack_from(data, at + _LAST_OFFSET_AT)[0]
    )
    for at in places[slot:]:
        _, *fields = transaction_index.ENTRY.unpack_from(data, at)
        yield AbortedTransaction(*fields)


def _places(data: Buffer, kind: IndexType) -> range:
    """Positions of the entries."""
    return range(0, len(data), ENTRY_BYTES[kind])
