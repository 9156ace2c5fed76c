"""Encoding and decoding of records, compared with kio's reader, and rejection of malformed records."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import HEADER_SIZE, Batch, batches
from odradek.protocol.records.compression import NAMES
from odradek.protocol.records.records import Record, build_batch, decode

timestamps = st.integers(0, 2**45)
keys = st.none() | st.binary(max_size=200)
headers = st.lists(
    st.tuples(st.text(max_size=40), st.none() | st.binary(max_size=100)), max_size=3
).map(tuple)
records = st.lists(
    st.builds(Record, st.just(-1), timestamps, keys, keys, headers), min_size=1, max_size=5
)


def numbered(drawn: list[Record], base_offset: int) -> list[Record]:
    return [record._replace(offset=base_offset + i) for i, record in enumerate(drawn)]


def view(raw: bytearray) -> Batch:
    return Batch(memoryview(raw))


@given(
    drawn=records,
    base_offset=st.integers(0, 2**50),
    compression=st.integers(0, 4),
    producer_id=st.integers(-1, 2**40),
)
def test_built_batch_is_decoded(
    drawn: list[Record], base_offset: int, compression: int, producer_id: int
) -> None:
    raw = build_batch(
        drawn, base_offset=base_offset, compression=compression, producer_id=producer_id
    )
    batch = view(raw)
    batch.check()
    assert batch.size == len(raw)
    assert batch.compression == compression
    assert batch.max_timestamp == max(record.timestamp for record in drawn)
    assert decode(batch) == numbered(drawn, base_offset)


BATCHES: dict[str, str] = json.loads((Path(__file__).parent / "kafka_vectors.json").read_text())[
    "batches"
]


@pytest.mark.parametrize("codec", NAMES)
def test_batches_of_java_producer_are_decoded(codec: str) -> None:
    """A batch of each codec from Kafka 4.3's MemoryRecordsBuilder, written by `kafka_codec.py`."""
    (batch,) = batches(memoryview(bytes.fromhex(BATCHES[codec])), check=True)
    assert NAMES[batch.compression] == codec
    assert (batch.base_offset, batch.leader_epoch) == (1000, 9)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 3, 5)
    assert batch.is_transactional
    assert decode(batch) == [
        Record(1000 + i, 5002 + i, bytes([2 + i]), value, (("none", None), ("", bytes([2 + i]))))
        for i, value in enumerate([b"", b"value", b"x" * 200])
    ]


@given(drawn=records)
def test_kio_reads_built_batches(drawn: list[Record]) -> None:
    batch, size = read_batch(bytes(build_batch(drawn, base_offset=5)), 0)
    assert size == batch.batch_length + 12
    assert [(r.offset, r.key, r.value) for r in batch.records] == [
        (r.offset, r.key, r.value) for r in numbered(drawn, 5)
    ]
    assert [
        tuple((h.key.decode(), h.value) for h in r.headers if h.key is not None)
        for r in batch.records
    ] == [r.headers for r in drawn]


def test_record_offsets_may_have_gaps() -> None:
    kept = [Record(100, 1, b"a", b"1"), Record(107, 2, b"b", None), Record(-1, 3, b"c", b"")]
    batch = view(build_batch(kept, base_offset=98))
    assert batch.last_offset == 108
    assert [record.offset for record in decode(batch)] == [100, 107, 108]


def test_record_offsets_must_increase() -> None:
    for offsets in ((5, 5), (5, 4), (1, 9)):
        with pytest.raises(ValueError, match="offset"):
            build_batch([Record(o, 0, None, None) for o in offsets], base_offset=2)
    with pytest.raises(ValueError, match="needs a record"):
        build_batch([])


def test_batch_attributes_are_set() -> None:
    batch = view(build_batch([Record(-1, 7, None, b"")], transactional=True, timestamp_type=1))
    assert batch.is_transactional
    assert batch.timestamp_type == 1
    assert decode(batch)[0].timestamp == 7
    assert view(build_batch([Record(-1, 7, None, b"")], control=True)).is_control


def test_record_timestamps_may_decrease() -> None:
    batch = view(build_batch([Record(-1, 1000, None, b""), Record(-1, 3, None, b"")]))
    assert [record.timestamp for record in decode(batch)] == [1000, 3]
    assert (batch.base_timestamp, batch.max_timestamp) == (1000, 1000)


def raw_batch(body: bytes, *, count: int = 1, last_delta: int = 0, attributes: int = 0) -> Batch:
    """Return a batch with these bytes as records, and a correct CRC."""
    tail = struct.pack(">hiqqqhii", attributes, last_delta, 0, 0, -1, -1, -1, count) + body
    head = struct.pack(">qiibI", 0, len(tail) + 9, 0, 2, crc32c(tail))
    return Batch(memoryview(head + tail))


def a_record(body: bytes) -> bytes:
    return bytes([len(body) * 2]) + body


GOOD = a_record(b"\0\0\0\1\1\0")


def test_smallest_record_is_decoded() -> None:
    assert decode(raw_batch(GOOD)) == [Record(0, 0, None, None)]


@pytest.mark.parametrize(
    ("body", "count", "last_delta"),
    [
        (b"", 1, 0),  # too few bytes
        (GOOD, 2, 1),  # too few records
        (GOOD, 0, 0),  # too many bytes
        (GOOD + b"\0", 1, 0),
        (GOOD, -1, 0),
        (GOOD, 2**31 - 1, 2**31 - 1),
        (GOOD, 1, -1),  # a delta above the last one
        (a_record(b"\0\0\2\1\1\0"), 1, 0),
        (a_record(b"\0\0\1\1\1\0"), 1, 5),  # a delta of -1
        (GOOD + GOOD, 2, 1),  # the same delta twice
        (b"\x0a\0\0\0\1\1\0", 1, 0),  # one byte shorter than its size
        (b"\x0e\0\0\0\1\1\0", 1, 0),  # longer than the batch
        (a_record(b"\0\0\0\1\1\0\0"), 1, 0),  # a byte after the headers
        (a_record(b"\0\0\0\x08\1\0"), 1, 0),  # a key longer than the record
        (a_record(b"\0\0\0\1\1\1"), 1, 0),  # -1 headers
        (a_record(b"\0\0\0\1\1\xfe\xff\xff\xff\x0f"), 1, 0),  # 2^31 - 1 headers
        (a_record(b"\0\0\0\1\1\2\1\1"), 1, 0),  # a header without a key
        (a_record(b"\0\0\xff\xff\xff\xff\xff\xff\1\1\1\0"), 1, 0),  # a varint too long
        (a_record(b"\0\0\xff\xff\xff\xff\x1f\1\1\0"), 1, 0),  # of 33 bits
        (a_record(b"\0" + b"\xff" * 10 + b"\0\1\1\0"), 1, 0),  # a varlong too long
        (a_record(b"\0" + b"\xff" * 9 + b"\x02\0\1\1\0"), 1, 0),  # of 65 bits
        (b"\x0c" + b"\x80" * 6, 1, 0),  # cut short in a varint
        (b"\1" + GOOD, 1, 0),  # a size of -1
    ],
)
def test_malformed_records_are_corrupt(body: bytes, count: int, last_delta: int) -> None:
    with pytest.raises(CorruptBatch):
        decode(raw_batch(body, count=count, last_delta=last_delta))


@pytest.mark.parametrize("length", [b"\3", b"\5", b"\xff\xff\xff\xff\x0f"])
def test_negative_length_is_null(length: bytes) -> None:
    """-2, -3 and the smallest int, as in Kafka's Utils.readBytes."""
    body = a_record(b"\0\0\0" + length + length + b"\2\0" + length)
    assert decode(raw_batch(body)) == [Record(0, 0, None, None, (("", None),))]


def test_headers_that_kafka_accepts_are_decoded() -> None:
    """Headers with null values, empty keys and duplicate keys; records with empty keys and values."""
    body = a_record(b"\0\0\0\0\0\6" + b"\0\1" + b"\0\0" + b"\0\2x")
    assert decode(raw_batch(body)) == [
        Record(0, 0, b"", b"", (("", None), ("", b""), ("", b"x"))),
    ]


def test_header_key_that_is_not_utf_8_is_kept() -> None:
    batch = raw_batch(a_record(b"\0\0\0\1\1\2\4\xff\xfe\1"))
    assert build_batch(decode(batch))[HEADER_SIZE:] == batch.view[HEADER_SIZE:]


def test_batch_emptied_by_compaction_has_no_records() -> None:
    assert decode(raw_batch(b"", count=0, last_delta=5)) == []
    assert decode(raw_batch(b"", count=0, last_delta=5, attributes=4)) == []


def test_record_attributes_are_ignored() -> None:
    assert len(decode(raw_batch(a_record(b"\xff\0\0\1\1\0")))) == 1


def test_unknown_codec_is_corrupt() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(CorruptBatch):
            decode(raw_batch(GOOD, attributes=codec))


def test_decompressed_size_is_limited() -> None:
    batch = view(build_batch([Record(-1, 0, None, bytes(1 << 20))], compression=4))
    assert batch.size < 1000
    assert decode(batch)[0].value == bytes(1 << 20)
    with pytest.raises(CorruptBatch, match="more than"):
        decode(batch, max_bytes=1 << 19)


@given(
    body=st.binary(max_size=80),
    count=st.integers(0, 5),
    codec=st.integers(0, 7),
    last_delta=st.integers(0, 5),
)
def test_random_bytes_are_records_or_corrupt(
    body: bytes, count: int, codec: int, last_delta: int
) -> None:
    with suppress(CorruptBatch):
        decode(raw_batch(body, count=count, attributes=codec, last_delta=last_delta))


@given(drawn=records, codec=st.integers(0, 4), data=st.data())
def test_batch_with_changed_byte_is_decoded_or_corrupt(
    drawn: list[Record], codec: int, data: st.DataObject
) -> None:
    raw = build_batch(drawn, compression=codec)
    at = data.draw(st.integers(HEADER_SIZE - 4, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    with suppress(CorruptBatch):
        decode(view(raw))
