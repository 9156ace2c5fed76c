"""Tests of format strings, escapes, offset arguments and tables, without a broker."""

from __future__ import annotations

import argparse
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.cli.cluster_connection import partition_list
from odradek.cli.offset_arguments import (
    BeginningOffset,
    EndOffset,
    ExactOffset,
    OffsetAtTimestamp,
    OffsetBeforeEnd,
    parse_offset,
)
from odradek.cli.output import human_bytes, print_table
from odradek.cli.record_format import compile_format, json_line, unescape
from odradek.cli.terminal import split_stream
from odradek.client.consumer import ConsumedRecord

RECORD = ConsumedRecord("t", 3, 42, 1234, b"key", b"value", (("h", b"1"), ("n", None)), 0)
NULLS = RECORD._replace(key=None, value=None, headers=())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("%s", b"value"),
        ("%t/%p/%o@%T", b"t/3/42@1234"),
        ("%k:%K %s:%S", b"key:3 value:5"),
        ("%R%s", b"\0\0\0\x05value"),
        ("%h", b"h=1,n="),
        ("100%% of %s\\n", b"100% of value\n"),
        ("\\t\\r\\n\\\\\\x41\\0", b"\t\r\n\\A\0"),
        ("ä%", "ä%".encode()),
        ("", b""),
    ],
)
def test_formats(text: str, shown: bytes) -> None:
    assert compile_format(text)(RECORD) == shown


def test_nulls() -> None:
    assert compile_format("%k|%K|%s|%S|%R|%h")(NULLS) == b"|-1||-1|\xff\xff\xff\xff|"
    assert compile_format("%k|%s", null=b"NULL")(NULLS) == b"NULL|NULL"


@pytest.mark.parametrize("text", ["%q", "\\q", "\\x4", "\\xZZ", "\\"])
def test_invalid_format_string(text: str) -> None:
    with pytest.raises(ValueError, match=r"the escapes are|is not one of|needs two"):
        compile_format(text)


@given(st.binary(max_size=50))
def test_any_bytes_can_be_delimiter(data: bytes) -> None:
    assert unescape("".join(f"\\x{byte:02x}" for byte in data)) == data


def test_json() -> None:
    row = json.loads(json_line(RECORD._replace(value=b"\xfe", timestamp_type=1)))
    assert row["value"] == {"base64": "/g=="}
    assert row["timestamp_type"] == "append"
    assert row["headers"] == [["h", "1"], ["n", None]]


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("beginning", BeginningOffset()),
        ("earliest", BeginningOffset()),
        ("end", EndOffset()),
        ("latest", EndOffset()),
        ("7", ExactOffset(7)),
        ("-7", OffsetBeforeEnd(7)),
        ("s@123", OffsetAtTimestamp(123)),
    ],
)
def test_offsets(text: str, offset: object) -> None:
    assert parse_offset(text) == offset


@pytest.mark.parametrize("text", ["", "-", "x", "s@", "s@-1", "e@5", "1.5", "+1"])
def test_invalid_offset_argument(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_offset(text)


def test_partition_lists() -> None:
    assert partition_list("0,3,5-7") == [0, 3, 5, 6, 7]
    for bad in ("", "a", "3-1", "1,", "-1"):
        with pytest.raises(argparse.ArgumentTypeError):
            partition_list(bad)


def test_tables_right_align_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME", "COUNT", "NOTE"], [("a", 5, ""), ("longer", 1234, "x"), ("c", None, None)])
    assert capsys.readouterr().out == (
        "NAME    COUNT  NOTE\na           5  -\nlonger   1234  x\nc           -  -\n"
    )


def test_human_bytes() -> None:
    shown = [human_bytes(n) for n in (None, -1, 0, 1023, 1536, 5 << 30, 1 << 60)]
    assert shown == ["-", "-", "0 B", "1023 B", "1.5 KiB", "5.0 GiB", "1024.0 PiB"]


@given(st.lists(st.binary(max_size=20)), st.sampled_from([b"\n", b"ab"]))
async def test_split_stream_is_independent_of_chunks(chunks: list[bytes], delimiter: bytes) -> None:
    async def stream():  # type: ignore[no-untyped-def]
        for chunk in chunks:
            yield chunk

    found = [part async for parts in split_stream(stream(), delimiter) for part in parts]
    expected = b"".join(chunks).split(delimiter)
    assert found == (expected if expected[-1] else expected[:-1])
