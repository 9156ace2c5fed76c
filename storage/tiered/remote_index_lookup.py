"""Lookups in the indexes of a remote log segment, which have the format of the local indexes.

The formats are those of `storage/log` (offset_index.py, time_index.py, transaction_index.py).
`check_index` refuses an index that contradicts its segment before its first use. The batch at a
position of an offset index must be the one that the entry names (batch_scanner.py).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct

from odradek.seams.files import Buffer
from odradek.storage.log import offset_index, time_index, transaction_index
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.tiered.errors import CorruptRemoteData
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
    """Raise CorruptRemoteData if the bytes cannot be an index of `segment`: incomplete entries, or
    a last entry outside the segment. All entries of a transaction index are checked."""
    entry_bytes = ENTRY_BYTES[kind]
    if len(data) % entry_bytes:
        raise _corrupt(
            kind, segment, f"has {len(data)} bytes, which is not a multiple of {entry_bytes}"
        )
    if not data:
        return
    last = len(data) - entry_bytes
    offsets = segment.end_offset - segment.start_offset
    if kind is IndexType.OFFSET:
        relative, position = offset_index.ENTRY.unpack_from(data, last)
        if not (0 <= relative <= offsets and 0 < position < segment.size_bytes):
            raise _corrupt(
                kind,
                segment,
                f"has an invalid last entry: relative offset {relative}, position {position}",
            )
    elif kind is IndexType.TIMESTAMP:
        timestamp, relative = time_index.ENTRY.unpack_from(data, last)
        if timestamp < 0 or not 0 <= relative <= offsets:
            raise _corrupt(
                kind,
                segment,
                f"has an invalid last entry: timestamp {timestamp}, relative offset {relative}",
            )
    else:
        _check_transactions(data, segment)


def _check_transactions(data: Buffer, segment: RemoteLogSegmentMetadata) -> None:
    before = segment.start_offset - 1
    for version, _, first, last, _ in transaction_index.ENTRY.iter_unpack(data):
        if version != transaction_index.VERSION or not (
            first < last and before < last <= segment.end_offset
        ):
            raise _corrupt(
                IndexType.TRANSACTION,
                segment,
                f"has an invalid transaction: offsets {first} to {last}",
            )
        before = last


def _corrupt(kind: IndexType, segment: RemoteLogSegmentMetadata, text: str) -> CorruptRemoteData:
    return CorruptRemoteData(f"the {kind.value} of remote segment {segment.id} {text}")


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


def lookup_timestamp(data: Buffer, base_offset: int, timestamp: int) -> int:
    """Offset to start at for the first record at or after `timestamp` (ms), by the time index."""
    found = time_entry_at(data, base_offset, timestamp)
    return base_offset if found is None else found[1]


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
