"""The compiled decoder and `protocol.records` see the same records, and refuse the same bytes."""

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

from odradek.pipeline.decoding import record_decoder as decoding  # noqa: E402
from odradek.pipeline.decoding.arrow_columns import BATCH_TYPES, TYPES  # noqa: E402
from odradek.pipeline.decoding.batch_decoder import decoder_of  # noqa: E402
from odradek.pipeline.decoding.record_decoder import (  # noqa: E402
    AbortedTransaction,
    RecordDecoder,
    RecordSelection,
)
from odradek.pipeline.errors import CorruptSegment  # noqa: E402
from tests.pipeline.drawn_logs import cut, logs, small  # noqa: E402

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
def test_all_columns_of_all_records_however_the_bytes_are_cut(
    log: list[bytes], places: list[int], in_segment: bool
) -> None:
    data = b"".join(log)
    found = decoded(cut(data, places), RecordSelection("t", 3, ALL), in_segment=in_segment)
    assert found == expected(data)


def read_into_one_memory(
    pieces: Sequence[bytes], wanted: RecordSelection, *, room: int
) -> list[dict[str, Any]]:
    """All of them with the same memory, of which nothing is left once a piece was fed."""
    memory = bytearray(room + max(map(len, pieces)))
    decoder, tables = decoder_of(wanted, "a segment"), []
    decoder.within(0, 2**62)
    for piece in pieces:
        memory[room : room + len(piece)] = piece
        tables += decoder.feed(memoryview(memory)[: room + len(piece)], room)
        memory[:] = b"\xff" * len(memory)
    return [row for table in [*tables, *decoder.end()] for row in table.to_pylist()]


@small
@given(
    logs(),
    st.lists(st.integers(0, 10_000), max_size=4),
    st.integers(0, 300),
    st.sampled_from([("records", ALL), ("records", ("partition", "offset")), ("batches", BATCH)]),
)
def test_nothing_is_left_in_the_memory_of_a_piece(
    log: list[bytes], places: list[int], room: int, columns: tuple[str, tuple[str, ...]]
) -> None:
    data = b"".join(log)
    wanted = RecordSelection("t", 3, columns[1], rows=columns[0])
    decoder = decoder_of(wanted, "a segment")
    whole = [row for table in decoder.feed(data) for row in table.to_pylist()]
    assert whole
    assert read_into_one_memory(cut(data, places), wanted, room=room) == whole


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 2000))
def test_groups_are_about_as_large_as_they_may_be(sizes: list[int], limit: int) -> None:
    found = list(decoding._groups(np.array(sizes, np.int64), limit))
    assert [size for group in found for size in sizes[group]] == sizes
    sums = [sum(sizes[group]) for group in found]
    assert all(0 < each <= 1.5 * limit + 1000 for each in sums)
    if sizes and max(sizes) * 10 < limit:
        assert min(sums) > 0.5 * min(limit, sum(sizes))


def test_what_a_cut_batch_has_left_goes_into_one_table_with_the_next_piece() -> None:
    log = b"".join(build_batch([Record(n, 0, None, b"x" * 50)], base_offset=n) for n in range(10))
    decoder = RecordDecoder(RecordSelection("t", 3, ("offset",)), "a segment")
    first = [table.num_rows for table in decoder.feed(memoryview(log)[:250])]
    memory = bytearray(200) + log[250:]
    assert [*first, *(table.num_rows for table in decoder.feed(memory, 200))] == [2, 8]


@small
@given(logs(), st.sets(st.sampled_from(ALL), min_size=1), st.data())
def test_fewer_columns_offsets_and_times_leave_out_the_rest(
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
def test_a_changed_byte_is_noticed_and_named(log: list[bytes], data: st.DataObject) -> None:
    """Offsets and leader epochs are not under the CRC: brokers write them."""
    number = data.draw(st.integers(0, len(log) - 1))
    batch = bytearray(log[number])
    at = data.draw(st.integers(16, len(batch) - 1))
    batch[at] ^= data.draw(st.integers(1, 255))
    log = [*log[:number], bytes(batch), *log[number + 1 :]]
    with pytest.raises(CorruptSegment, match=f"^a segment, byte {sum(map(len, log[:number]))}:"):
        decoded([b"".join(log)], RecordSelection("t", 3, ALL))


@small
@given(logs(), st.integers(1, 10_000))
def test_a_batch_cut_short_at_the_end_is_no_silent_gap(log: list[bytes], missing: int) -> None:
    data = b"".join(log)
    missing = (missing - 1) % (len(log[-1]) - 1) + 1
    with pytest.raises(CorruptSegment, match="the last batch is incomplete"):
        decoded([data[:-missing]], RecordSelection("t", 3, ALL))


@pytest.mark.parametrize(("byte", "bit"), [(22, 0x20), (23, 0x80), (35, 0x80)])
def test_a_wrong_bit_does_not_hide_a_batch(byte: int, bit: int) -> None:
    """It would make the batch a marker, or end before it begins, or be too old for what is wanted."""
    batch = bytearray(build_batch([Record(-1, 5_000, b"k", b"v")], base_offset=7))
    batch[byte] ^= bit
    with pytest.raises(CorruptSegment):
        decoded([bytes(batch)], RecordSelection("t", 3, ALL, low=7, since_ms=1))


def test_a_batch_whose_records_are_all_too_late_is_not_looked_into() -> None:
    """As LogAppendTime has it; of CreateTime the header says only how late they are at most."""
    for kind, is_looked_into in ((1, False), (0, True)):
        batch = build_batch([Record(-1, 5_000, b"k", b"v")], timestamp_type=kind)
        batch[61] = 0x7F  # no length of a record
        batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
        assert decoded([bytes(batch)], RecordSelection("t", 3, ALL, since_ms=5_001)) == []
        if is_looked_into:
            with pytest.raises(CorruptSegment):
                decoded([bytes(batch)], RecordSelection("t", 3, ALL, until_ms=5_000))
        else:
            assert decoded([bytes(batch)], RecordSelection("t", 3, ALL, until_ms=5_000)) == []


@small
@given(st.binary(min_size=7, max_size=200), st.integers(0, 20))
def test_garbage_with_a_good_crc_is_refused_as_the_protocol_refuses_it(
    body: bytes, count: int
) -> None:
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
def test_a_batch_of_less_than_no_records_takes_no_room_from_others(before: int) -> None:
    """Brokers refuse it; its CRC does not."""
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
def test_what_lies_before_a_batch_that_makes_no_sense_is_decoded(how: str, codec: int) -> None:
    """Though its CRC is right. It is that batch that is told, and not the first that was decoded with it."""
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


def test_control_batches_and_aborted_transactions_are_left_out() -> None:
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
    aborted = (AbortedTransaction(1, 0),)  # up to its producer's marker
    for pieces in ([data], cut(data, range(0, len(data), 50))):
        rows = decoded(pieces, RecordSelection("t", 0, ("offset",), aborted=aborted))
        assert [row["offset"] for row in rows] == [1, 2, 5]
    rows = decoded([data], RecordSelection("t", 0, ("offset",)))
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("columns", [["offset"], ["topic"], ALL])
def test_of_no_offsets_within_a_batch_there_are_no_rows(columns: list[str]) -> None:
    records = [Record(-1, 0, b"k", b"v")] * 5
    log = bytes(build_batch(records)) + bytes(build_batch(records, base_offset=5))
    assert decoded([log], RecordSelection("t", 3, columns, 2, 2)) == []


def test_no_record_is_looked_at_for_offsets_alone() -> None:
    """The records are no records at all here; but there is one for each offset, says the header."""
    batch = _with_body(build_batch([Record(-1, 0, b"k", b"v")]), b"nonsense", 51)
    rows = decoded(
        [bytes(batch)], RecordSelection("t", 3, ("partition", "offset"), low=40, high=45)
    )
    assert rows == [{"partition": 3, "offset": offset} for offset in range(40, 45)]


@pytest.mark.parametrize("columns", [("topic", "offset"), ALL])
def test_the_topics_name_is_never_more_than_a_column_has_room_for(
    columns: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a record it may be far more than the batch was; Arrow counts these bytes in 32 bits."""
    assert decoding.TOPIC_BYTES_MAX < 2**31
    monkeypatch.setattr(decoding, "TOPIC_BYTES_MAX", 20)
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
def test_a_time_that_no_column_holds_is_the_latest_that_one_does(rows: str) -> None:
    """Nanoseconds that were taken for milliseconds, by whoever produced them: not another time."""
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


def test_a_headers_key_that_is_no_text_is_read_as_clients_in_java_read_it() -> None:
    record = Record(0, 1000, None, b"v", (("a", b"1"), ("b????", None), ("ä", b"")))
    batch = bytearray(build_batch([record, Record(1, 1000, None, b"w", (("ö", b""),))]))
    at = batch.index(b"b????")
    batch[at : at + 5] = b"b\xff\xe2\x82c"
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    (table,) = RecordDecoder(RecordSelection("t", 0, ("offset", "headers")), "s").feed(bytes(batch))
    table.validate(full=True)
    keys = [[each["key"] for each in row] for row in table.column("headers").to_pylist()]
    assert keys == [["a", "b\ufffd\ufffdc", "ä"], ["ö"]]
