"""Producer snapshots (`<offset>.snapshot`): the state of every producer of a partition.

Layout: i16 version 1, u32 CRC-32C of the bytes after it, i32 count, and 46 bytes for each entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from odradek.protocol.records.crc32c import crc32c
from odradek.protocol.schemas.serde import InvalidRecord

_VERSION = 1
_HEADER = Struct(">hIi")
_ENTRY = Struct(">qhiqiqiq")
_COUNT_AT = 6


class ProducerEntry(NamedTuple):
    """State of a producer. `last_offset` - `offset_delta` is the first offset of its last batch.

    -1 means none: no batch, no open transaction, or no known coordinator.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def encode_producer_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Encode a snapshot file with the entries in the given order."""
    body = b"".join([_ENTRY.pack(*entry) for entry in entries])
    count = len(body) // _ENTRY.size
    counted = count.to_bytes(4, "big") + body
    return _HEADER.pack(_VERSION, crc32c(counted), count) + body


def decode_producer_snapshot(data: bytes) -> list[ProducerEntry]:
    """Decode a snapshot file. Raises InvalidRecord if the version, the checksum or the size is wrong."""
    if len(data) < _HEADER.size:
        raise InvalidRecord(f"{len(data)} bytes are no producer snapshot")
    version, crc, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise InvalidRecord(f"version {version} of a producer snapshot")
    if crc32c(memoryview(data)[_COUNT_AT:]) != crc:
        raise InvalidRecord("a producer snapshot fails its checksum")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise InvalidRecord(f"{count} producers in {len(data)} bytes")
    return [ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(data[_HEADER.size :])]
