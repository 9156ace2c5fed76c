"""A record batch is bytes: a view of its 61-byte header, and no record decoded.

Layout (big-endian): 0 base offset i64, 8 length i32 (of what follows), 12 partition leader epoch
i32, 16 magic i8, 17 CRC u32 (CRC-32C of byte 21 to the end), 21 attributes i16, 23 last offset
delta i32, 27 base timestamp i64, 35 max timestamp i64, 43 producer id i64, 51 producer epoch i16,
53 base sequence i32, 57 record count i32, 61 records. Base offset and leader epoch lie outside the
CRC, so that a broker sets them in place.
"""

from __future__ import annotations

from collections.abc import Iterator

HEADER_SIZE = 61
"""Bytes of a batch before its records."""
LOG_OVERHEAD = 12
"""Bytes before and with the length field: what `length` does not count."""
MAGIC = 2

CREATE_TIME = 0
LOG_APPEND_TIME = 1


class Batch:
    """A view of one record batch; its fields are read once, when it is made."""

    __slots__ = ()

    view: memoryview
    base_offset: int
    size: int
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

    @property
    def last_offset(self) -> int:
        raise NotImplementedError

    @property
    def last_sequence(self) -> int:
        """The last record's sequence, which wraps from 2^31 - 1 to 0; -1 without a sequence."""
        raise NotImplementedError

    @property
    def compression(self) -> int:
        raise NotImplementedError

    @property
    def timestamp_type(self) -> int:
        raise NotImplementedError

    @property
    def is_transactional(self) -> bool:
        raise NotImplementedError

    @property
    def is_control(self) -> bool:
        raise NotImplementedError

    @property
    def has_delete_horizon(self) -> bool:
        raise NotImplementedError

    @property
    def has_producer_id(self) -> bool:
        raise NotImplementedError

    def check(self) -> None:
        """Raise CorruptBatch if the CRC or the header's numbers are wrong."""
        raise NotImplementedError

    def stamp(self, base_offset: int, leader_epoch: int) -> None:
        """Set base offset and leader epoch in place; the CRC does not cover them."""
        raise NotImplementedError

    def set_max_timestamp(self, timestamp_type: int, max_timestamp: int) -> None:
        """Set timestamp type and max timestamp (ms) in place, with a new CRC."""
        raise NotImplementedError


def read_header(view: memoryview, position: int = 0) -> Batch:
    """The batch that starts at `position`; only its header needs to be there.

    Raises CorruptBatch if there are fewer than 61 bytes, or the length or the magic is impossible.
    `Batch.view` is what of the batch lies in `view`.
    """
    raise NotImplementedError


def batches(view: memoryview, *, check: bool = False) -> Iterator[Batch]:
    """Every batch in `view`, one after the other; CorruptBatch at the first that is not whole.

    `check` also verifies each batch's CRC.
    """
    raise NotImplementedError
