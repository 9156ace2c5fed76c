"""Rows as text and JSON, independent of the time zone, for any timestamp that a record may have."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from decimal import Decimal

import pytest

pa = pytest.importorskip("pyarrow")

from odradek.pipeline.cli.row_format import plain_rows, short_time, time_text  # noqa: E402

MICROS = pa.timestamp("us", "UTC")


@pytest.fixture
def other_time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set a time zone other than UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("other_time_zone")
@pytest.mark.parametrize(
    ("us", "message"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1000, "1969-12-31T23:59:59.999000Z"),
        (4_102_444_800_000_000, "2100-01-01T00:00:00Z"),
        (253_402_300_800_000_000, "+10000-01-01T00:00:00Z"),
        (1_700_000_000_000_000_000, "+55840-11-08T22:13:20Z"),
        (-(1 << 63), "-290308-12-21T19:59:05.224192Z"),
    ],
)
def test_timestamps_of_any_year_in_any_zone(us: int, message: str) -> None:
    assert time_text(us) == message
    assert plain_rows(pa.table({"at": pa.array([us], MICROS)})) == [{"at": message}]


def test_short_timestamps() -> None:
    assert short_time("2026-01-02T03:04:05.678000Z", "seconds") == "2026-01-02 03:04:05"
    assert short_time("+55840-11-08T22:13:20Z", "minutes") == "+55840-11-08 22:13"


def test_values_of_all_types_are_valid_json() -> None:
    leg = pa.struct(
        [("days", pa.list_(pa.date32())), ("at", pa.map_(pa.bool_(), pa.timestamp("us")))]
    )
    table = pa.table(
        {
            "key": pa.array([b"k", b"\xff", None]),
            "leg": pa.array([{"days": [1, None], "at": [(True, 1)]}, None, {}], leg),
            "share": pa.array([0.5, float("nan"), float("-inf")]),
            "price": pa.array([Decimal("1.10"), None, None]),
            "count": pa.array([1, None, -1]),
            "nothing": pa.nulls(3),
        }
    )

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    rows = [json.loads(json.dumps(row), parse_constant=refuse) for row in plain_rows(table)]
    days = ["1970-01-02", None]
    first = {"days": days, "at": {"true": "1970-01-01T00:00:00.000001"}}
    assert [list(row.values()) for row in rows] == [
        ["k", first, 0.5, "1.10", 1, None],
        ["0xff", None, "NaN", None, None, None],
        [None, {"days": None, "at": None}, "-Infinity", None, -1, None],
    ]
