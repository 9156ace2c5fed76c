"""Batch headers: reading fields, setting them in place, and rejecting malformed batches."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.errors import CorruptBatch, ErrorCode
from odradek.protocol.records.batch import (
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    Batch,
    UnsupportedMagic,
    batches,
)
from odradek.protocol.records.records import Record, build_batch, decode


def a_batch(**changes: int | bool) -> bytearray:
    records = [Record(-1, 1000, b"k1", b"v1"), Record(-1, 1005, b"k2", None)]
    return build_batch(records, **changes)  # type: ignore[arg-type]


def test_header_has_61_bytes() -> None:
    assert HEADER.size == HEADER_SIZE == 61


def test_header_fields_are_read() -> None:
    raw = a_batch(
        base_offset=42,
        leader_epoch=7,
        producer_id=9,
        producer_epoch=3,
        base_sequence=11,
        transactional=True,
    )
    batch = Batch(memoryview(raw))
    assert batch.base_offset == 42
    assert batch.size == len(raw)
    assert batch.leader_epoch == 7
    assert batch.magic == 2
    assert batch.crc == crc32c(raw[21:])
    assert batch.last_offset_delta == 1
    assert batch.last_offset == 43
    assert batch.next_offset == 44
    assert (batch.base_timestamp, batch.max_timestamp) == (1000, 1005)
    assert (batch.producer_id, batch.producer_epoch) == (9, 3)
    assert (batch.base_sequence, batch.last_sequence) == (11, 12)
    assert batch.record_count == 2
    assert batch.compression == 0
    assert batch.timestamp_type == 0
    assert batch.is_transactional
    assert not batch.is_control
    assert batch.delete_horizon_ms is None
    assert batch.view == raw
    batch.check()


def test_header_defaults_mean_none() -> None:
    batch = Batch(memoryview(a_batch()))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert batch.last_sequence == -1
    assert batch.leader_epoch == -1


def test_sequence_after_the_maximum_is_zero() -> None:
    batch = Batch(memoryview(a_batch(base_sequence=2**31 - 1, producer_id=1)))
    assert batch.last_sequence == 0


def test_delete_horizon_is_the_base_timestamp() -> None:
    raw = a_batch()
    struct.pack_into(">h", raw, 21, 0x40)
    batch = Batch(memoryview(raw))
    assert batch.delete_horizon_ms == 1000


def test_setting_base_offset_and_epoch_keeps_the_crc() -> None:
    raw = a_batch()
    batch = Batch(memoryview(raw))
    batch.stamp(2**40, 12)
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (2**40, 2**40 + 1, 12)
    again = Batch(memoryview(raw))
    again.check()
    assert (again.base_offset, again.leader_epoch, again.size) == (2**40, 12, len(raw))
    assert [record.offset for record in decode(again)] == [2**40, 2**40 + 1]


def test_log_append_time_applies_to_every_record() -> None:
    raw = a_batch()
    batch = Batch(memoryview(raw))
    batch.set_max_timestamp(LOG_APPEND_TIME, 5000)
    again = Batch(memoryview(raw))
    again.check()
    assert again.crc == batch.crc
    assert (again.timestamp_type, again.max_timestamp) == (LOG_APPEND_TIME, 5000)
    assert [record.timestamp for record in decode(again)] == [5000, 5000]
    again.set_max_timestamp(0, 1005)
    assert Batch(memoryview(raw)).attributes == 0


def test_consecutive_batches_are_iterated() -> None:
    raw = a_batch(base_offset=0) + a_batch(base_offset=2) + a_batch(base_offset=9)
    found = list(batches(memoryview(raw), check=True))
    assert [batch.base_offset for batch in found] == [0, 2, 9]
    assert [batch.position for batch in found] == [0, len(raw) // 3, 2 * len(raw) // 3]
    assert list(batches(memoryview(b""))) == []


def test_truncated_batch_is_corrupt_or_partial() -> None:
    raw = a_batch() + a_batch()
    for end in range(len(raw) // 2 + 1, len(raw)):
        with pytest.raises(CorruptBatch):
            list(batches(memoryview(raw)[:end]))
        assert len(list(batches(memoryview(raw)[:end], allow_partial=True))) == 1


def test_header_without_records_can_be_read() -> None:
    raw = a_batch()
    batch = Batch(memoryview(raw)[:61])
    assert batch.size == len(raw)
    assert len(batch.view) == 61
    with pytest.raises(CorruptBatch):
        batch.check()
    with pytest.raises(CorruptBatch):
        decode(batch)


@pytest.mark.parametrize("at", [17, 21, 30, 57, 61, -1])
def test_flipped_bit_fails_the_crc(at: int) -> None:
    raw = a_batch()
    raw[at] ^= 0x10
    with pytest.raises(CorruptBatch) as refused:
        list(batches(memoryview(raw), check=True))
    assert refused.value.code is ErrorCode.corrupt_message


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_invalid_batch_length_is_corrupt(length: int) -> None:
    raw = a_batch()
    struct.pack_into(">i", raw, 8, length)
    for allow_partial in (False, True):
        with pytest.raises(CorruptBatch):
            list(batches(memoryview(raw), allow_partial=allow_partial))


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
@pytest.mark.parametrize("size", [17, 34, 80])
def test_other_magic_is_unsupported(magic: int, size: int) -> None:
    raw = bytearray(size)
    struct.pack_into(">qiib", raw, 0, 0, size - 12, 0, magic)
    with pytest.raises(UnsupportedMagic):
        Batch(memoryview(raw))


@given(raw=st.binary(max_size=200), allow_partial=st.booleans())
def test_random_bytes_are_batches_or_corrupt(raw: bytes, allow_partial: bool) -> None:
    with suppress(CorruptBatch):
        for batch in batches(memoryview(raw), check=True, allow_partial=allow_partial):
            decode(batch)


@given(
    fields=st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        st.integers(40, 200),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(1, 3),
        st.integers(0, 2**32 - 1),
        st.integers(-(2**15), 2**15 - 1),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(-(2**15), 2**15 - 1),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(-(2**31), 2**31 - 1) | st.integers(0, 3),
    ),
    body=st.binary(max_size=150),
)
def test_random_header_is_a_batch_or_corrupt(fields: tuple[int, ...], body: bytes) -> None:
    with suppress(CorruptBatch):
        batch = Batch(memoryview(HEADER.pack(*fields) + body))
        decode(batch)
