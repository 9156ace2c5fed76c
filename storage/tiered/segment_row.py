"""Packed metadata of a remote log segment, read without decoding.

A row is the body of Kafka's RemoteLogSegmentMetadataSnapshotRecord (key 3, version 0). Memory and
snapshot files have the same rows.

    0 id, 16 start offset, 24 end offset, 32 broker id, 36 max timestamp, 44 event timestamp,
    52 leader epochs: their number + 1 (uvarint), each 13 bytes: epoch, offset, no tags;
    size (4), custom metadata (its length + 1 as uvarint, or 0), state (1),
    tags: tag 0 if the transaction index is empty, and the tiered epoch (KIP-950) if it is not 0

Most rows have one epoch and two bytes of custom metadata: 78 bytes, or 75 with a transaction index.
"""

from __future__ import annotations

import struct
from struct import Struct
from uuid import UUID

from odradek.protocol.codec.primitives import append_uvarint
from odradek.protocol.errors import InvalidFrame
from odradek.protocol.framing import read_uvarint
from odradek.storage.tiered.errors import CorruptRemoteData
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

_HEAD = Struct(">16sqqiqq")
_EPOCH = Struct(">iqB")
_INT32, _INT64 = Struct(">i"), Struct(">q")
_START_AT, _END_AT, _EPOCHS_AT = 16, 24, 52
_ONE_EPOCH, _NO_TAGS, _NULL = 2, 0, 0
_SIZE_AFTER_ONE = _EPOCHS_AT + 1 + _EPOCH.size
_TXN_INDEX_EMPTY = b"\x00\x01\x01"
"""Tag, size and value of the tagged field."""
_TIERED_EPOCH = Struct(">3si")
_TIERED_EPOCH_TAG = b"\xc6\x55\x04"
"""`remote_log_records.TIERED_EPOCH_TAG` as a varint, and the size."""

Rows = bytes | bytearray


def pack(metadata: RemoteLogSegmentMetadata) -> bytes:
    """Row of a segment, without its partition."""
    row = bytearray(
        _HEAD.pack(
            metadata.id.id.bytes,
            metadata.start_offset,
            metadata.end_offset,
            metadata.broker_id,
            metadata.max_timestamp_ms,
            metadata.event_timestamp_ms,
        )
    )
    append_uvarint(row, len(metadata.epochs) + 1)
    for each in metadata.epochs:
        row += _EPOCH.pack(each.epoch, each.start_offset, _NO_TAGS)
    row += _INT32.pack(metadata.size_bytes)
    custom = metadata.custom_metadata
    if custom is None:
        row.append(_NULL)
    else:
        append_uvarint(row, len(custom) + 1)
        row += custom
    row.append(metadata.state)
    row.append(metadata.txn_index_empty + (metadata.tiered_epoch != 0))
    if metadata.txn_index_empty:
        row += _TXN_INDEX_EMPTY
    if metadata.tiered_epoch:
        row += _TIERED_EPOCH.pack(_TIERED_EPOCH_TAG, metadata.tiered_epoch)
    return bytes(row)


def unpack(data: Rows, at: int, partition: TopicIdPartition) -> RemoteLogSegmentMetadata:
    """Metadata of the segment whose row starts at `at`."""
    id_, start, end, broker, newest, event = _HEAD.unpack_from(data, at)
    size_at = _size_at(data, at)
    (size,) = _INT32.unpack_from(data, size_at)
    length, after = read_uvarint(data, size_at + 4)
    custom = None
    if length:
        custom = bytes(data[after : after + length - 1])
        after += length - 1
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(partition, UUID(bytes=id_)),
        start,
        end,
        broker,
        newest,
        event,
        epochs_of(data, at),
        size,
        SegmentState(data[after]),
        custom,
        _has_empty_transaction_index(data, after + 1),
        _tiered_epoch(data, after + 1),
    )


def check(row: bytes, partition: TopicIdPartition) -> RemoteLogSegmentMetadata:
    """Metadata of a row from outside the process. Raises CorruptRemoteData for invalid bytes."""
    try:
        metadata = unpack(row, 0, partition)
        if not metadata.epochs or pack(metadata) != row:
            raise ValueError(f"invalid format of {len(row)} bytes")
        if not 0 <= metadata.start_offset <= metadata.end_offset:
            raise ValueError(f"invalid offsets {metadata.start_offset} to {metadata.end_offset}")
        return metadata
    except (InvalidFrame, ValueError, IndexError, struct.error) as error:
        raise CorruptRemoteData(f"{partition}: invalid segment metadata: {error}") from None


def row_at(data: Rows, at: int) -> bytes:
    return bytes(data[at : _end_of(data, at)])


def id_of(data: Rows, at: int) -> bytes:
    return bytes(data[at : at + _START_AT])


def order_of(data: bytearray, at: int) -> bytearray:
    """Sort key by start offset, then id. It compares as bytes, since offsets are never negative."""
    return data[at + _START_AT : at + _END_AT] + data[at : at + _START_AT]


def end_offset_of(data: Rows, at: int) -> int:
    (end,) = _INT64.unpack_from(data, at + _END_AT)
    return int(end)


def max_timestamp_of(data: Rows, at: int) -> int:
    (timestamp,) = _INT64.unpack_from(data, at + 36)
    return int(timestamp)


def event_timestamp_of(data: Rows, at: int) -> int:
    (timestamp,) = _INT64.unpack_from(data, at + 44)
    return int(timestamp)


def size_of(data: Rows, at: int) -> int:
    (size,) = _INT32.unpack_from(data, _size_at(data, at))
    return int(size)


def epochs_of(data: Rows, at: int) -> tuple[EpochStart, ...]:
    count, entry = read_uvarint(data, at + _EPOCHS_AT)
    found = []
    for _ in range(count - 1):
        epoch, start, _tags = _EPOCH.unpack_from(data, entry)
        found.append(EpochStart(epoch, start))
        entry += _EPOCH.size
    return tuple(found)


def spans_epochs(data: Rows, at: int) -> bool:
    return data[at + _EPOCHS_AT] != _ONE_EPOCH


def epoch_start_of(data: Rows, at: int, epoch: int) -> int:
    """First offset of an epoch that the row has."""
    if data[at + _EPOCHS_AT] == _ONE_EPOCH:
        (start,) = _INT64.unpack_from(data, at + _EPOCHS_AT + 5)
        return int(start)
    return next(each.start_offset for each in epochs_of(data, at) if each.epoch == epoch)


def epoch_end_of(data: Rows, at: int, epoch: int) -> int:
    """Last offset of that epoch in the row."""
    if data[at + _EPOCHS_AT] == _ONE_EPOCH:
        return end_offset_of(data, at)
    following = (each.start_offset for each in epochs_of(data, at) if each.epoch > epoch)
    return next(following, end_offset_of(data, at) + 1) - 1


def state_of(data: Rows, at: int) -> SegmentState:
    return SegmentState(data[_state_at(data, at)])


def tiered_epoch_of(data: Rows, at: int) -> int:
    return _tiered_epoch(data, _state_at(data, at) + 1)


def has_transactions(data: Rows, at: int) -> bool:
    return not _has_empty_transaction_index(data, _state_at(data, at) + 1)


def _size_at(data: Rows, at: int) -> int:
    if data[at + _EPOCHS_AT] == _ONE_EPOCH:
        return at + _SIZE_AFTER_ONE
    count, entry = read_uvarint(data, at + _EPOCHS_AT)
    return entry + (count - 1) * _EPOCH.size


def _state_at(data: Rows, at: int) -> int:
    length, after = read_uvarint(data, _size_at(data, at) + 4)
    return after + max(length - 1, 0)


def _has_empty_transaction_index(data: Rows, tags_at: int) -> bool:
    return data[tags_at] > 0 and data[tags_at + 1] == 0


def _tiered_epoch_at(data: Rows, tags_at: int) -> int:
    return tags_at + 1 + len(_TXN_INDEX_EMPTY) * _has_empty_transaction_index(data, tags_at)


def _tiered_epoch(data: Rows, tags_at: int) -> int:
    has_empty_index = _has_empty_transaction_index(data, tags_at)
    if data[tags_at] == has_empty_index:
        return 0
    _, epoch = _TIERED_EPOCH.unpack_from(data, _tiered_epoch_at(data, tags_at))
    return int(epoch)


def _end_of(data: Rows, at: int) -> int:
    tags_at = _state_at(data, at) + 1
    end = _tiered_epoch_at(data, tags_at)
    has_epoch = data[tags_at] > _has_empty_transaction_index(data, tags_at)
    return end + _TIERED_EPOCH.size if has_epoch else end
