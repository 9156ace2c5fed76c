"""The scan of records, in C and in Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.protocol.records.batch import HEADER_SIZE
from odradek.protocol.records.record_scan import (
    is_compiled,
    scan_records,
    scan_records_in_python,
)
from odradek.protocol.records.records import Record, build_batch

needs_compiler = pytest.mark.skipif(not is_compiled, reason="installed without a C compiler")
either = pytest.mark.parametrize(
    "scan",
    [pytest.param(scan_records, marks=needs_compiler), scan_records_in_python],
    ids=["C", "Python"],
)

RECORDS = st.lists(
    st.builds(
        Record,
        st.just(-1),
        st.integers(-(2**61), 2**61),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3).map(
            tuple
        ),
    ),
    min_size=1,
    max_size=5,
)


def body_of(records: list[Record]) -> bytes:
    return bytes(build_batch(records)[HEADER_SIZE:])


@either
@given(records=RECORDS)
def test_scan_summarizes_timestamps_keys_and_offsets(scan, records: list[Record]) -> None:
    timestamps = [record.timestamp for record in records]
    set_timestamps = [timestamp for timestamp in timestamps if timestamp != -1]
    assert scan(body_of(records), len(records), timestamps[0]) == (
        max(-1, *timestamps),
        min(set_timestamps, default=2**63 - 1),
        sum(record.key is None for record in records),
        True,
    )


@either
@pytest.mark.parametrize("length", [b"\3", b"\5", b"\xff\xff\xff\xff\x0f"])
def test_scan_accepts_any_negative_length_as_null(scan, length: bytes) -> None:
    record = b"\0\0\0" + length + length + b"\2\0" + length
    assert scan(bytes([2 * len(record)]) + record, 1, 5) == (5, 5, 1, True)


@either
def test_scan_notices_offset_deltas_with_gaps(scan) -> None:
    body = body_of([Record(0, 5, b"", b""), Record(2, 5, b"", b"")])
    assert scan(body, 2, 5) == (5, 5, 0, False)


@needs_compiler
@given(
    records=RECORDS,
    edits=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=3),
    length=st.none() | st.integers(0, 100),
    more=st.binary(max_size=3),
    count=st.integers(-1, 8),
)
def test_damaged_records_have_the_same_result_in_c_and_in_python(
    records: list[Record],
    edits: list[tuple[int, int]],
    length: int | None,
    more: bytes,
    count: int,
) -> None:
    body = bytearray(body_of(records)[:length])
    for at, value in edits:
        if body:
            body[at % len(body)] = value
    body += more

    def result(scan) -> object:
        try:
            return scan(body, count, 1_700_000_000_000)
        except ValueError as error:
            return str(error)

    assert result(scan_records) == result(scan_records_in_python)


@either
@pytest.mark.parametrize("missing", [1, 3, 100])
def test_scan_of_a_truncated_body_names_the_invalid_record(scan, missing: int) -> None:
    records = [Record(-1, 0, b"key", b"x" * 1000)] * 2
    with pytest.raises(ValueError, match="record 1 of 2 is cut off"):
        scan(body_of(records)[:-missing], 2, 0)


@either
def test_scan_of_bytes_after_the_last_record_gives_their_number(scan) -> None:
    with pytest.raises(ValueError, match="2 bytes after the last record"):
        scan(body_of([Record(-1, 0, b"", b"")]) + b"ab", 1, 0)
