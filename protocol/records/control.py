"""Control batches: transaction markers and KRaft's control records.

The key of a control record is i16 version 0 and i16 type. The value of a transaction marker is i16 version 0 and the
coordinator epoch. The value of a KRaft control record is the body of its schema, which starts with the version.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import Batch
from odradek.protocol.records.records import Record, build_batch, decode
from odradek.seams.files import Buffer

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")


class ControlType(IntEnum):
    """Type of a control record. Readers skip unknown types."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


def control_key(control_type: ControlType) -> bytes:
    return _KEY.pack(0, control_type)


def control_type(key: Buffer | None) -> ControlType:
    """The type in the key of a control record. Raises CorruptBatch if the key is invalid."""
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch(f"a control record's key of {0 if key is None else len(key)} bytes")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatch(f"version {version} of a control record")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def end_marker(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """Build the control batch that ends the transaction of a producer in a partition."""
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    record = Record(-1, timestamp_ms, control_key(kind), _MARKER.pack(0, coordinator_epoch))
    return build_batch(
        [record],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        transactional=True,
        control=True,
    )


def marker_coordinator_epoch(value: Buffer | None) -> int:
    """The coordinator epoch in the value of a transaction marker. Raises CorruptBatch if it is invalid."""
    try:
        version, epoch = _MARKER.unpack_from(value or b"")
    except struct.error:
        raise CorruptBatch("a transaction marker's value is cut short") from None
    if version < 0:
        raise CorruptBatch(f"version {version} of a transaction marker")
    return int(epoch)


def read_end_marker(batch: Batch) -> tuple[bool, int]:
    """Read a transaction marker: whether it commits, and the coordinator epoch.

    Raises CorruptBatch if the batch is not a transaction marker.
    """
    record = decode(batch)[0] if batch.record_count == 1 and batch.is_control else None
    kind = control_type(record.key) if record is not None else ControlType.UNKNOWN
    if record is None or kind not in (ControlType.COMMIT, ControlType.ABORT):
        raise CorruptBatch(f"the batch at offset {batch.base_offset} ends no transaction")
    return kind is ControlType.COMMIT, marker_coordinator_epoch(record.value)


def kraft_control_batch(
    records: list[tuple[ControlType, Any]],
    *,
    timestamp_ms: int,
    base_offset: int,
    leader_epoch: int,
) -> bytearray:
    """Build a control batch of KRaft: LeaderChangeMessage, SnapshotHeaderRecord, VotersRecord, ….

    Each record is encoded in the version of its `version` field.
    """
    from odradek.protocol.schemas.serde import encode

    return build_batch(
        [
            Record(-1, timestamp_ms, control_key(kind), encode(message, message.version))
            for kind, message in records
        ],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        control=True,
    )
