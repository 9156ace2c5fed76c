"""The compiled decoder and `protocol.records` return the same records and refuse the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.batch import Batch, batches
from odradek.protocol.records.crc32c import crc32c
from odradek.protocol.records.records import Record, build_batch, decode

pa = pytest.importorskip("pyarrow")

from odradek.pipeline.decoding import record_decoder  # noqa: E402
from odradek.pipeline.decoding.arrow_columns import BATCH_TYPES, TYPES  # noqa: E402
from odradek.pipeline.decoding.batch_decoder import decoder_of  # noqa: E402
from odradek.pipeline.decoding.record_decoder import (  # noqa: E402
    AbortedTransaction,
    RecordDecoder,
    RecordSelection,
)
from odradek.pipeline.errors import CorruptSegment  # noqa: E402
from tests.pipeline.log_strategies import cut, logs, small  # noqa: E402

ALL, BATCH = tuple(TYPES), tuple(BATCH_TYPES)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def decoded(
    pieces: Sequence[bytes], wanted: RecordSelection, *, in_segment: bool = False
) -> list[dict[str, Any]]:
    decoder = RecordDecoder(wanted, "a segment")
    if in_segment:
        decoder.within(0, 2**62)
    tables = [table for piece in pieces for table in decoder.feed(piece)]
    return [row for table in [*tables, *decoder.end()] for row in table.to_pylist()]


def expected(log: bytes) -> list[dict[str, Any]]:
    rows = []
    for batch in batches(memoryview(log)):
        rows += [
            {
                "key": record.key,
                "value": record.value,
                "topic": "t",
                "partition": 3,
                "offset": record.offset,
                "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
                "timestampType": batch.timestamp_type,
                "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
            }
            for record in decode(batch)
        ]
    return rows


@small
@given(logs(), st.lists(st.integers(0, 10_000), max_size=4), st.booleans())
def test_all_columns_are_decoded_for_any_split(
    log: list[bytes], places: list[int], in_segment: bool
) -> None:
    data = b"".join(log)
    found = decoded(cut(data, places), RecordSelection("t", 3, ALL), in_segment=in_segment)
    assert found == expected(data)


def read_into_one_memory(
    pieces: Sequence[bytes], wanted: RecordSelection, *, headroom: int
) -> list[dict[str, Any]]:
    """Feed all pieces in the same memory, which is overwritten after each piece."""
    memory = bytearray(headroom + max(map(len, pieces)))
    decoder, tables = decoder_of(wanted, "a segment"), []
    decoder.within(0, 2**62)
    for piece in pieces:
        memory[headroom : headroom + len(piece)] = piece
        tables += decoder.feed(memoryview(memory)[: headroom + len(piece)], headroom)
        memory[:] = b"\xff" * len(memory)
    return [row for table in [*tables, *decoder.end()] for row in table.to_pylist()]


@small
@given(
    logs(),
    st.lists(st.integers(0, 10_000), max_size=4),
    st.integers(0, 300),
    st.sampled_from([("records", ALL), ("records", ("partition", "offset")), ("batches", BATCH)]),
)
def test_decoder_does_not_refer_to_the_memory_of_a_piece(
    log: list[bytes], places: list[int], headroom: int, columns: tuple[str, tuple[str, ...]]
) -> None:
    data = b"".join(log)
    wanted = RecordSelection("t", 3, columns[1], rows=columns[0])
    decoder = decoder_of(wanted, "a segment")
    whole = [row for table in decoder.feed(data) for row in table.to_pylist()]
    assert whole
    assert read_into_one_memory(cut(data, places), wanted, headroom=headroom) == whole


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 2000))
def test_groups_are_about_as_large_as_the_limit(sizes: list[int], limit: int) -> None:
    found = list(record_decoder._groups(np.array(sizes, np.int64), limit))
    assert [size for group in found for size in sizes[group]] == sizes
    sums = [sum(sizes[group]) for group in found]
    assert all(0 < each <= 1.5 * limit + 1000 for each in sums)
    if sizes and max(sizes) * 10 < limit:
        assert min(sums) > 0.5 * min(limit, sum(sizes))


def test_rest_of_an_incomplete_batch_is_decoded_with_the_next_piece() -> None:
    log = b"".join(build_batch([Record(n, 0, None, b"x" * 50)], base_offset=n) for n in range(10))
    decoder = RecordDecoder(RecordSelection("t", 3, ("offset",)), "a segment")
    first = [table.num_rows for table in decoder.feed(memoryview(log)[:250])]
    memory = bytearray(200) + log[250:]
    assert [*first, *(table.num_rows for table in decoder.feed(memory, 200))] == [2, 8]


@small
@given(logs(), st.sets(st.sampled_from(ALL), min_size=1), st.data())
def test_unwanted_columns_offsets_and_timestamps_are_excluded(
    log: list[bytes], names: set[str], data: st.DataObject
) -> None:
    whole = b"".join(log)
    rows = expected(whole)
    offsets = st.sampled_from([row["offset"] + step for row in rows for step in (0, 1)])
    times = st.sampled_from(
        [int((row["timestamp"] - EPOCH).total_seconds() * 1000) for row in rows]
    )
    low, high = data.draw(offsets), data.draw(offsets)
    since, until = data.draw(st.none() | times), data.draw(st.none() | times)
    columns = [name for name in ALL if name in names]
    wanted = RecordSelection(
        "t",
        3,
        columns,
        low,
        high,
        **({} if since is None else {"since_ms": since}),
        **({} if until is None else {"until_ms": until}),
    )

    def is_wanted(row: dict[str, Any]) -> bool:
        time = round((row["timestamp"] - EPOCH) / timedelta(milliseconds=1))
        return (
            low <= row["offset"] < high
            and (since is None or since <= time)
            and (until is None or time < until)
        )

    assert decoded([whole], wanted) == [
        {name: row[name] for name in columns} for row in rows if is_wanted(row)
    ]


@small
@given(logs(), st.data())
def test_changed_byte_is_detected_and_located(log: list[bytes], data: st.DataObject) -> None:
    """Offsets and leader epochs are not covered by the CRC, because brokers set them."""
    number = data.draw(st.integers(0, len(log) - 1))
    batch = bytearray(log[number])
    at = data.draw(st.integers(16, len(batch) - 1))
    batch[at] ^= data.draw(st.integers(1, 255))
    log = [*log[:number], bytes(batch), *log[number + 1 :]]
    with pytest.raises(CorruptSegment, match=f"^a segment, byte {sum(map(len, log[:number]))}:"):
        decoded([b"".join(log)], RecordSelection("t", 3, ALL))


@small
@given(logs(), st.integers(1, 10_000))
def test_incomplete_last_batch_is_an_error(log: list[bytes], missing: int) -> None:
    data = b"".join(log)
    missing = (missing - 1) % (len(log[-1]) - 1) + 1
    with pytest.raises(CorruptSegment, match="the last batch is incomplete"):
        decoded([data[:-missing]], RecordSelection("t", 3, ALL))


@pytest.mark.parametrize(("byte", "bit"), [(22, 0x20), (23, 0x80), (35, 0x80)])
def test_flipped_bit_does_not_hide_a_batch(byte: int, bit: int) -> None:
    """It would make the batch a control batch, move its end before its start, or make it older than the wanted
    timestamps.
    """
    batch = bytearray(build_batch([Record(-1, 5_000, b"k", b"v")], base_offset=7))
    batch[byte] ^= bit
    with pytest.raises(CorruptSegment):
        decoded([bytes(batch)], RecordSelection("t", 3, ALL, low=7, since_ms=1))


def test_batch_with_only_later_records_is_not_decoded() -> None:
    """With LogAppendTime. With CreateTime the header has only the maximum timestamp."""
    for kind, is_looked_into in ((1, False), (0, True)):
        batch = build_batch([Record(-1, 5_000, b"k", b"v")], timestamp_type=kind)
        batch[61] = 0x7F  # not a valid record length
        batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
        assert decoded([bytes(batch)], RecordSelection("t", 3, ALL, since_ms=5_001)) == []
        if is_looked_into:
            with pytest.raises(CorruptSegment):
                decoded([bytes(batch)], RecordSelection("t", 3, ALL, until_ms=5_000))
        else:
            assert decoded([bytes(batch)], RecordSelection("t", 3, ALL, until_ms=5_000)) == []


@small
@given(st.binary(min_size=7, max_size=200), st.integers(0, 20))
def test_invalid_records_with_a_valid_crc_are_refused(body: bytes, count: int) -> None:
    batch = _with_body(build_batch([Record(-1, 0, b"k", b"v")]), body, count)
    view = Batch(memoryview(batch))
    try:
        records = decode(view)
    except (CorruptBatch, UnicodeDecodeError):
        with pytest.raises(CorruptSegment):
            decoded([bytes(batch)], RecordSelection("t", 3, ALL[:-1]))
    else:
        rows = decoded([bytes(batch)], RecordSelection("t", 3, ALL[:-1]))
        assert [row["offset"] for row in rows] == [record.offset for record in records]


@pytest.mark.parametrize("before", [0, 1, 20])
def test_negative_record_count_does_not_reduce_the_memory_of_other_batches(before: int) -> None:
    """Brokers refuse such a batch, but its CRC is valid."""
    records = [Record(-1, 5_000, b"k", b"v")] * 5
    log = [bytes(build_batch(records, base_offset=5 * number)) for number in range(before)]
    broken = bytearray(build_batch(records, base_offset=5 * before))
    broken[57:61] = (-48).to_bytes(4, "big", signed=True)
    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    with pytest.raises(
        CorruptSegment, match=f"byte {sum(map(len, log))}: the batch's record count is invalid"
    ):
        decoded([b"".join([*log, bytes(broken)])], RecordSelection("t", 3, ALL))


def _wrong_count(batch: bytearray) -> bytes:
    batch[57:61] = (2**31 - 1).to_bytes(4, "big")
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("how", ["count", "records"])
def test_batches_before_an_invalid_batch_are_decoded(how: str, codec: int) -> None:
    """Its CRC is valid. The error names this batch, not the first one that was decoded with it."""
    records = [Record(-1, 5_000, b"k", b"v")] * 5
    log = [
        bytes(build_batch(records, base_offset=5 * number, compression=codec))
        for number in range(20)
    ]
    made = build_batch(records, base_offset=100, compression=codec if how == "count" else 0)
    broken = _wrong_count(made) if how == "count" else bytes(_with_body(made, b"\xff" * 100, 5))
    decoder, offsets = RecordDecoder(RecordSelection("t", 3, ALL), "a segment"), list[int]()
    tables = decoder.feed(b"".join([*log, broken, *log]))
    with pytest.raises(CorruptSegment, match=f"byte {sum(map(len, log))}: ") as raised:
        offsets.extend(each for table in tables for each in table["offset"].to_pylist())
    assert ("record count is invalid" in str(raised.value)) == (how == "count")
    assert offsets == list(range(100))
    assert decoder.next_offset == 100


def _with_body(batch: bytearray, body: bytes, count: int) -> bytearray:
    from odradek.protocol.records.crc32c import crc32c

    made = bytearray(batch[:61]) + body
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[23:27] = (50).to_bytes(4, "big")
    made[57:61] = count.to_bytes(4, "big")
    made[17:21] = crc32c(bytes(made[21:])).to_bytes(4, "big")
    return made


def test_control_batches_and_aborted_transactions_are_excluded() -> None:
    def batch(offset: int, producer_id: int, *, transactional: bool = True) -> bytes:
        records = [Record(offset, 1, None, b"%d" % offset)]
        return bytes(
            build_batch(
                records,
                base_offset=offset,
                producer_id=producer_id,
                transactional=transactional,
            )
        )

    marker = bytes(
        build_batch(
            [Record(4, 1, b"\0\0\0\0", b"\0\0\0\0\0\0")],
            base_offset=4,
            producer_id=1,
            transactional=True,
            control=True,
        )
    )
    data = b"".join(
        (
            batch(0, 1),
            batch(1, 2),
            batch(2, 1, transactional=False),
            batch(3, 1),
            marker,
            batch(5, 1),
        )
    )
    aborted = (AbortedTransaction(1, 0, 4),)
    rows = decoded([data], RecordSelection("t", 0, ("offset",), aborted=aborted))
    assert [row["offset"] for row in rows] == [1, 2, 5]
    aborted = (AbortedTransaction(1, 0),)  # until the marker of its producer
    for pieces in ([data], cut(data, range(0, len(data), 50))):
        rows = decoded(pieces, RecordSelection("t", 0, ("offset",), aborted=aborted))
        assert [row["offset"] for row in rows] == [1, 2, 5]
    rows = decoded([data], RecordSelection("t", 0, ("offset",)))
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("columns", [["offset"], ["topic"], ALL])
def test_empty_range_within_a_batch_has_no_rows(columns: list[str]) -> None:
    records = [Record(-1, 0, b"k", b"v")] * 5
    log = bytes(build_batch(records)) + bytes(build_batch(records, base_offset=5))
    assert decoded([log], RecordSelection("t", 3, columns, 2, 2)) == []


def test_offsets_only_query_does_not_decode_records() -> None:
    """The records are invalid, but by the header there is one for each offset."""
    batch = _with_body(build_batch([Record(-1, 0, b"k", b"v")]), b"nonsense", 51)
    rows = decoded(
        [bytes(batch)], RecordSelection("t", 3, ("partition", "offset"), low=40, high=45)
    )
    assert rows == [{"partition": 3, "offset": offset} for offset in range(40, 45)]


@pytest.mark.parametrize("columns", [("topic", "offset"), ALL])
def test_topic_column_stays_within_its_32_bit_limit(
    columns: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic name is repeated for each record and may exceed the batch's size many times; Arrow counts its bytes
    in 32 bits.
    """
    assert record_decoder.TOPIC_BYTES_MAX < 2**31
    monkeypatch.setattr(record_decoder, "TOPIC_BYTES_MAX", 20)
    records = [Record(-1, each, b"k%d" % each, None, (("h", b"%d" % each),)) for each in range(8)]
    log = bytes(build_batch(records, compression=4))
    tables = list(RecordDecoder(RecordSelection("flights", 3, columns), "a segment").feed(log))
    for table in tables:
        table.validate(full=True)
    assert [table.num_rows for table in tables] == [2, 2, 2, 2]
    rows = [row for table in tables for row in table.to_pylist()]
    assert rows == [
        {**{name: row[name] for name in columns}, "topic": "flights"} for row in expected(log)
    ]


@pytest.mark.parametrize("rows", ["records", "batches"])
def test_timestamp_beyond_the_maximum_is_set_to_the_maximum(rows: str) -> None:
    """A producer may have used nanoseconds as milliseconds."""
    latest = (2**63 - 1) // 1000
    times = [5, 1_700_000_000_000_000_000, latest, -1]
    found = []
    for number, at in enumerate(times):
        log = build_batch([Record(number, at, None, b"v")], base_offset=number)
        decoder = decoder_of(
            RecordSelection("t", 3, ("timestamp",), number, rows=rows), "a segment"
        )
        found += [table.column(0)[0].value for table in decoder.feed(bytes(log))]
    assert found == [5_000, latest * 1000, latest * 1000, -1_000]


def test_header_key_that_is_not_utf8_is_decoded_as_in_java_clients() -> None:
    record = Record(0, 1000, None, b"v", (("a", b"1"), ("b????", None), ("ä", b"")))
    batch = bytearray(build_batch([record, Record(1, 1000, None, b"w", (("ö", b""),))]))
    at = batch.index(b"b????")
    batch[at : at + 5] = b"b\xff\xe2\x82c"
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    (table,) = RecordDecoder(RecordSelection("t", 0, ("offset", "headers")), "s").feed(bytes(batch))
    table.validate(full=True)
    keys = [[each["key"] for each in row] for row in table.column("headers").to_pylist()]
    assert keys == [["a", "b\ufffd\ufffdc", "ä"], ["ö"]]
