"""Views of record batches, which decode the 61-byte header but no records.

Layout (big-endian): 0 base offset i64, 8 length i32 (of what follows), 12 partition leader epoch
i32, 16 magic i8, 17 CRC u32 (CRC-32C of byte 21 to the end), 21 attributes i16, 23 last offset
delta i32, 27 base timestamp i64, 35 max timestamp i64, 43 producer id i64, 51 producer epoch i16,
53 base sequence i32, 57 record count i32, 61 records. The CRC does not cover
base offset and leader epoch, so that a broker sets them in place.

Attributes: bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon (the base
timestamp is then the time from which the log cleaner may remove tombstones, KIP-534).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.crc32c import crc32c

HEADER_SIZE = 61
"""Size in bytes of a batch's header."""
LOG_OVERHEAD = 12
"""Size in bytes of the fields up to and including the length, which the length does not include."""
CRC_START = 21
"""Position of the first byte that the CRC covers."""
MAGIC = 2

CREATE_TIME = 0
LOG_APPEND_TIME = 1

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

NO_TIMESTAMP = -1
NO_SEQUENCE = -1
MAX_SEQUENCE = 2**31 - 1

HEADER = Struct(">qiibIhiqqqhii")
_PREFIX = Struct(">qiib")
_BASE_OFFSET_LENGTH_EPOCH = Struct(">qii")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_MAX_TIMESTAMP = Struct(">q")
_MAX_TIMESTAMP_AT = 35
_CRC_AT = 17

_unpack_header = HEADER.unpack_from


class UnsupportedMagic(CorruptBatch):
    """A batch or message whose magic is older (0 or 1, before Kafka 0.11) or newer than 2."""


class Batch:
    """View of one record batch, whose header is read when the view is created.

    `position` is the position of the batch in the buffer, and `size` its size in bytes. `view` has the bytes of the
    batch that are in the buffer, which are all of them for a batch from `batches`.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "last_offset",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "position",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size",
        "view",
    )

    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    size: int

    def __init__(self, buffer: memoryview, position: int = 0) -> None:
        """View the batch at `position` of `buffer`.

        Raises CorruptBatch if the header is truncated or its length or magic is invalid.
        """
        if len(buffer) - position < HEADER_SIZE:
            raise _too_short(buffer, position)
        (
            self.base_offset,
            length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = _unpack_header(buffer, position)
        if self.magic != MAGIC:
            raise UnsupportedMagic(f"magic {self.magic} at position {position}")
        if length < HEADER_SIZE - LOG_OVERHEAD:
            raise CorruptBatch(f"length {length} of the batch at position {position}")
        self.position = position
        self.size = size = length + LOG_OVERHEAD
        self.last_offset = self.base_offset + self.last_offset_delta
        whole = position == 0 and size == len(buffer)
        self.view = buffer if whole else buffer[position : position + size]

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, which wraps from 2^31 - 1 to 0, or -1 if the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def compression(self) -> int:
        """Number of the compression codec. Kafka does not define 5 to 7."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> int:
        """Timestamp type of the batch: CREATE_TIME or LOG_APPEND_TIME."""
        return LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_MASK else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_MASK != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_MASK != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON_MASK else None

    def check(self) -> None:
        """Raises CorruptBatch unless the batch is complete and its CRC is correct."""
        view = self.view
        if len(view) != self.size:
            raise CorruptBatch(f"{len(view)} bytes of a batch of {self.size}")
        computed = crc32c(view[CRC_START:])
        if computed != self.crc:
            raise CorruptBatch(
                f"Record is corrupt (stored crc = {self.crc}, computed crc = {computed}) "
                f"in the batch at offset {self.base_offset}"
            )

    def stamp(self, base_offset: int, leader_epoch: int) -> None:
        """Set base offset and leader epoch in place, which the CRC does not cover."""
        _BASE_OFFSET_LENGTH_EPOCH.pack_into(
            self.view, 0, base_offset, self.size - LOG_OVERHEAD, leader_epoch
        )
        self.base_offset = base_offset
        self.last_offset = base_offset + self.last_offset_delta
        self.leader_epoch = leader_epoch

    def set_max_timestamp(self, timestamp_type: int, max_timestamp: int) -> None:
        """Set timestamp type and max timestamp (ms) of a complete batch in place, and update its CRC."""
        if timestamp_type == self.timestamp_type and max_timestamp == self.max_timestamp:
            return
        view = self.view
        self.attributes &= ~TIMESTAMP_TYPE_MASK
        if timestamp_type == LOG_APPEND_TIME:
            self.attributes |= TIMESTAMP_TYPE_MASK
        self.max_timestamp = max_timestamp
        _ATTRIBUTES.pack_into(view, CRC_START, self.attributes)
        _MAX_TIMESTAMP.pack_into(view, _MAX_TIMESTAMP_AT, max_timestamp)
        self.crc = crc32c(view[CRC_START:])
        _CRC.pack_into(view, _CRC_AT, self.crc)

    def __repr__(self) -> str:
        return f"Batch({self.base_offset}..{self.last_offset}, {self.size} bytes)"


def batches(
    view: memoryview, *, check: bool = False, allow_partial: bool = False
) -> Iterator[Batch]:
    """Iterate over the batches in `view`. Raises CorruptBatch at the first that is not complete.

    `check` verifies the CRC of each batch. `allow_partial` ignores an incomplete batch at the end, because a Fetch
    response may end in the middle of a batch.
    """
    position, end = 0, len(view)
    while position < end:
        if allow_partial and not _whole(view, position):
            return
        batch = Batch(view, position)
        position += batch.size
        if position > end:
            raise CorruptBatch(f"{len(batch.view)} bytes of a batch of {batch.size}")
        if check:
            batch.check()
        yield batch


def _whole(view: memoryview, position: int) -> bool:
    """Whether the batch at `position` is complete, or is invalid so that `Batch` raises the error."""
    left = len(view) - position
    if left < _PREFIX.size:
        return False
    length: int = _PREFIX.unpack_from(view, position)[1]
    return length + LOG_OVERHEAD <= left


def _too_short(buffer: memoryview, position: int) -> CorruptBatch:
    """The error for a truncated header. A message of an old format may be shorter than the header."""
    left = len(buffer) - position
    if left >= _PREFIX.size:
        magic = _PREFIX.unpack_from(buffer, position)[3]
        if magic != MAGIC:
            return UnsupportedMagic(f"magic {magic} at position {position}")
    return CorruptBatch(f"{left} bytes at position {position} are too few for a batch")
