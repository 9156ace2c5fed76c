"""Map from keys to their last offset, in a fixed amount of memory (Kafka's SkimpyOffsetMap).

The map reads the keys from the records of a batch, and filters the records of a batch by the offsets that it has. A
key is identified by 128 bits of a hash with a random and secret seed: two keys with equal bits would lose a record,
and the probability of that is 2^-128 for any two keys, even if an attacker chooses them.

The log cleaner reads every record twice with this map, so there is an extension module in C (`_offset_map.c`), which
processes several million records per second. An installation without a C compiler uses the class in Python, which
processes some hundred thousand and stores fewer keys in the same memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.records import read_varint, read_varlong
from odradek.seams.files import Buffer

FilteredRecords = tuple[int, bool, int, int, bytes | None]
"""Number of records that are kept; whether one of them is a tombstone; their largest timestamp delta in ms (-2^63 if
none is kept); number of records that were removed because they have no key; the bytes of the kept records, or None if
all are kept."""

_INT64_MIN = -(2**63)


class OffsetMap(Protocol):
    """Offset map that is full at `slots` keys; it has `size` keys. Methods raise ValueError if a record is invalid:
    if it exceeds the batch, or its fields exceed it, or if its offset does not increase or is outside the batch."""

    @property
    def slots(self) -> int: ...
    @property
    def size(self) -> int: ...

    def put(
        self,
        body: Buffer,
        record_count: int,
        base_offset: int,
        last_offset: int,
        first_offset: int,
        keys_max: int,
        /,
    ) -> int | None:
        """Store the offsets of the keys in a batch's decompressed records, from `first_offset` on.

        If the map has `keys_max` keys before the end, returns the last offset that it covers.
        """

    def filter(
        self,
        body: Buffer,
        record_count: int,
        base_offset: int,
        last_offset: int,
        covered_to: int,
        removes_tombstones: bool,
        /,
    ) -> FilteredRecords:
        """Remove those of a batch's decompressed records that have no key, or are not the last of their key, or are
        tombstones if `removes_tombstones`. Records past `covered_to` are kept."""


class _Record(NamedTuple):
    start: int
    end: int
    timestamp_delta: int
    offset: int
    key: bytes | None
    has_value: bool


class OffsetMapInPython:
    """The same map as the one in C, as a dict."""

    def __init__(self, slots: int, seed: bytes, /) -> None:
        self.slots = max(slots, 2)
        self._seed = seed
        self._offsets: dict[bytes, int] = {}

    @property
    def size(self) -> int:
        return len(self._offsets)

    def put(
        self,
        body: Buffer,
        record_count: int,
        base_offset: int,
        last_offset: int,
        first_offset: int,
        keys_max: int,
        /,
    ) -> int | None:
        limit = min(keys_max, self.slots - 1)
        offsets = self._offsets
        for record in _records(bytes(body), record_count, base_offset, last_offset):
            if record.key is not None and record.offset >= first_offset:
                if len(offsets) >= limit:
                    return record.offset - 1
                offsets[self._hash(record.key)] = record.offset
        return None

    def filter(
        self,
        body: Buffer,
        record_count: int,
        base_offset: int,
        last_offset: int,
        covered_to: int,
        removes_tombstones: bool,
        /,
    ) -> FilteredRecords:
        data = bytes(body)
        kept: list[bytes] = []
        without_key = 0
        has_tombstone = False
        latest = _INT64_MIN
        for record in _records(data, record_count, base_offset, last_offset):
            if record.offset > covered_to or self._is_needed(record, removes_tombstones):
                kept.append(data[record.start : record.end])
                has_tombstone = has_tombstone or not record.has_value
                latest = max(latest, record.timestamp_delta)
            else:
                without_key += record.key is None
        rest = None if len(kept) == record_count else b"".join(kept)
        return len(kept), has_tombstone, latest, without_key, rest

    def _is_needed(self, record: _Record, removes_tombstones: bool) -> bool:
        if record.key is None or (removes_tombstones and not record.has_value):
            return False
        return record.offset >= self._offsets.get(self._hash(record.key), -1)

    def _hash(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=16, key=self._seed).digest()


def _records(
    data: bytes, record_count: int, base_offset: int, last_offset: int
) -> Iterator[_Record]:
    position = 0
    previous = base_offset - 1
    for index in range(record_count):
        start = position
        try:
            size, position = read_varint(data, start)
        except (IndexError, CorruptBatch):
            size = 0
        end = position + size
        if size <= 0 or end > len(data):
            raise ValueError(f"record {index} of {record_count} is cut off")
        try:
            record = _read_record(data[position:end])
        except (IndexError, CorruptBatch):
            raise ValueError(f"record {index} of {record_count} is malformed") from None
        timestamp_delta, offset_delta, key, has_value = record
        offset = base_offset + offset_delta
        if offset_delta < 0 or not previous < offset <= last_offset:
            raise ValueError(f"record {index} of {record_count} has an invalid offset")
        yield _Record(start, end, timestamp_delta, offset, key, has_value)
        previous, position = offset, end
    if position < len(data):
        raise ValueError(f"{len(data) - position} bytes after the last record")


def _read_record(record: bytes) -> tuple[int, int, bytes | None, bool]:
    """Timestamp delta, offset delta, key and whether there is a value. Raises IndexError or CorruptBatch."""
    timestamp_delta, position = read_varlong(record, 1)
    offset_delta, position = read_varint(record, position)
    key_size, position = read_varint(record, position)
    key = record[position : position + key_size] if key_size >= 0 else None
    position += max(key_size, 0)
    value_size, position = read_varint(record, position)
    if position + value_size > len(record):
        raise CorruptBatch
    return timestamp_delta, offset_delta, key, value_size >= 0


def _load() -> tuple[Callable[[int, bytes], OffsetMap], int]:
    try:
        from odradek.storage.compaction._offset_map import OffsetMap as OffsetMapInC
    except ImportError:
        return OffsetMapInPython, 200
    return OffsetMapInC, 24


create_offset_map, SLOT_BYTES = _load()
"""Creates a map of about `slots` keys from `(slots, seed)`, where the seed has 16 to 64 bytes; and the memory in bytes
that a key needs."""
