"""Looking things up in the indexes of a remote segment, which are the bytes of its local ones.

The formats are those of `storage/log` (offset_index.py, time_index.py, transaction_index.py). Nothing is
believed: `check_index` refuses what contradicts the segment, before it is used for the first time, and
where an offset index points to, the batch there must be the one it names (batch_walk.py).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct

from odradek.seams.files import Buffer
from odradek.storage.log import offset_index, time_index, transaction_index
from odradek.storage.log.transaction_index import AbortedTransaction
from odradek.storage.tiered.errors import CorruptRemoteData
from odradek.storage.tiered.metadata import RemoteLogSegmentMetadata
from odradek.storage.tiered.remote_storage_manager import IndexType

ENTRY_BYTES = {
    IndexType.OFFSET: offset_index.ENTRY.size,
    IndexType.TIMESTAMP: time_index.ENTRY.size,
    IndexType.TRANSACTION: transaction_index.ENTRY.size,
}
_INT = Struct(">i")
_LONG = Struct(">q")
_LAST_OFFSET_AT = 18
"""Of a transaction index's entry."""


def check_index(data: Buffer, kind: IndexType, segment: RemoteLogSegmentMetadata) -> None:
    """Raises CorruptRemoteData for what can't be an index of `segment`: not whole entries, or a last
    one that points out of it. Of transactions, each entry is looked at."""
    entry_bytes = ENTRY_BYTES[kind]
    if len(data) % entry_bytes:
        raise _corrupt(kind, segment, f"has {len(data)} bytes, not entries of {entry_bytes}")
    if not data:
        return
    last = len(data) - entry_bytes
    offsets = segment.end_offset - segment.start_offset
    if kind is IndexType.OFFSET:
        relative, position = offset_index.ENTRY.unpack_from(data, last)
        if not (0 <= relative <= offsets and 0 < position < segment.size_bytes):
            raise _corrupt(kind, segment, f"ends with relative offset {relative} at {position}")
    elif kind is IndexType.TIMESTAMP:
        timestamp, relative = time_index.ENTRY.unpack_from(data, last)
        if timestamp < 0 or not 0 <= relative <= offsets:
            raise _corrupt(kind, segment, f"ends with {timestamp} at relative offset {relative}")
    else:
        _check_transactions(data, segment)


def _check_transactions(data: Buffer, segment: RemoteLogSegmentMetadata) -> None:
    before = segment.start_offset - 1
    for version, _, first, last, _ in transaction_index.ENTRY.iter_unpack(data):
        if version != transaction_index.VERSION or not (
            first < last and before < last <= segment.end_offset
        ):
            raise _corrupt(
                IndexType.TRANSACTION, segment, f"has a transaction from {first} to {last}"
            )
        before = last


def _corrupt(kind: IndexType, segment: RemoteLogSegmentMetadata, text: str) -> CorruptRemoteData:
    return CorruptRemoteData(f"the {kind.value} of remote segment {segment.id} {text}")


def lookup_offset(data: Buffer, base_offset: int, offset: int) -> tuple[int, int] | None:
    """The last batch in an offset index that ends at or below `offset`: its last offset, and the
    position where it begins. None if there is none: look from the start."""
    places = _places(data, IndexType.OFFSET)
    slot = bisect_right(places, offset - base_offset, key=lambda at: _INT.unpack_from(data, at)[0])
    if not slot:
        return None
    relative, position = offset_index.ENTRY.unpack_from(data, places[slot - 1])
    return base_offset + relative, position


def position_behind(data: Buffer, base_offset: int, offset: int) -> int | None:
    """A position by which the batch with `offset` has ended, and the one behind it, by an offset index; None: the
    segment's end."""
    places = _places(data, IndexType.OFFSET)
    slot = bisect_left(places, offset - base_offset, key=lambda at: _INT.unpack_from(data, at)[0])
    # That entry is of the batch, or of one behind it; the next one is behind it for sure.
    if slot + 2 >= len(places):
        return None
    position: int = offset_index.ENTRY.unpack_from(data, places[slot + 2])[1]
    return position


def lookup_timestamp(data: Buffer, base_offset: int, timestamp: int) -> int:
    """The offset to look from for the first record at or after `timestamp` (ms), by a time index."""
    found = time_entry_at(data, base_offset, timestamp)
    return base_offset if found is None else found[1]


def time_entry_at(data: Buffer, base_offset: int, timestamp: int) -> tuple[int, int] | None:
    """The last of a time index's entries (timestamp in ms, offset) that is not later; None if all are."""
    places = _places(data, IndexType.TIMESTAMP)
    slot = bisect_right(places, timestamp, key=lambda at: _LONG.unpack_from(data, at)[0])
    return _time_entry(data, base_offset, places[slot - 1]) if slot else None


def first_time_entry_from(data: Buffer, base_offset: int, timestamp: int) -> tuple[int, int] | None:
    """The first of a time index's entries (timestamp in ms, offset) that is as late: by that offset there has been
    a record at or after `timestamp`. None if it does not say."""
    places = _places(data, IndexType.TIMESTAMP)
    slot = bisect_left(places, timestamp, key=lambda at: _LONG.unpack_from(data, at)[0])
    return _time_entry(data, base_offset, places[slot]) if slot < len(places) else None


def _time_entry(data: Buffer, base_offset: int, at: int) -> tuple[int, int]:
    timestamp, relative = time_index.ENTRY.unpack_from(data, at)
    return timestamp, base_offset + relative


def aborted_in(
    data: Buffer, start: int, end: int, until: int
) -> tuple[list[AbortedTransaction], bool]:
    """The transactions in a transaction index that overlap offsets [start, end), and whether later
    segments can have no more of them. Markers at or past offset `until` are passed over."""
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
    """Those whose marker is at or past `start`."""
    places = _places(data, IndexType.TRANSACTION)
    slot = bisect_left(
        places, start, key=lambda at: _LONG.unpack_from(data, at + _LAST_OFFSET_AT)[0]
    )
    for at in places[slot:]:
        _, *fields = transaction_index.ENTRY.unpack_from(data, at)
        yield AbortedTransaction(*fields)


def _places(data: Buffer, kind: IndexType) -> range:
    """Where its entries begin."""
    return range(0, len(data), ENTRY_BYTES[kind])
