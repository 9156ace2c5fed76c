"""Pushed filters and the filters that Spark evaluates together return the same rows as the SQL condition."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

spark = pytest.importorskip("pyspark.sql.datasource")

from pyspark.sql.types import StructType  # noqa: E402

from odradek.pipeline.data_source import FilteringReader  # noqa: E402
from odradek.pipeline.filters import PushedFilters, push_down  # noqa: E402
from odradek.pipeline.options import parse_options  # noqa: E402
from tests.pipeline.virtual_leader import VirtualLeader  # noqa: E402
from tests.support.virtual_reading import FULL, GAP  # noqa: E402

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(("a", "b", "c")),
    "partition": st.integers(0, 3),
    "offset": st.integers(0, 6),
    "timestamp": st.sampled_from([EPOCH + timedelta(microseconds=500 * n) for n in range(13)]),
}
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
}


@st.composite
def filters(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(tuple(VALUES)))
    attribute, value = (column,), VALUES[column]
    names = ("EqualTo", "In", "GreaterThan") if column in ("topic", "partition") else (*COMPARED,)
    kind = draw(st.sampled_from((*names, "In", "IsNotNull", "Not")))
    if kind == "In":
        return spark.In(attribute, tuple(draw(st.lists(value, max_size=3))))
    if kind == "IsNotNull":
        return spark.IsNotNull(attribute)
    if kind == "Not":
        return spark.Not(spark.EqualTo(attribute, draw(value)))
    return getattr(spark, kind)(attribute, draw(value))


Row = dict[str, Any]
ROWS: Sequence[Row] = [
    {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": EPOCH + timedelta(milliseconds=offset),
    }
    for topic, partition, offset in product("abc", range(4), range(7))
]


def sql_passes(row: Row, each: Any) -> bool:
    if isinstance(each, spark.Not):
        return not sql_passes(row, each.child)
    value = row[each.attribute[0]]
    if isinstance(each, spark.IsNotNull):
        return True
    if isinstance(each, spark.In):
        return value in each.value
    return COMPARED[type(each).__name__](value, each.value)


def passes(row: Row, filtered: PushedFilters) -> bool:
    offset, at_ms = row["offset"], (row["timestamp"] - EPOCH) // timedelta(milliseconds=1)
    low, high = filtered.offsets(row["topic"], row["partition"], offset, offset + 1)
    return low < high and filtered.since_ms <= at_ms < filtered.until_ms


@settings(max_examples=300, deadline=None)
@given(st.lists(filters(), max_size=6))
def test_each_filter_is_applied_once_by_source_or_spark(given_: Sequence[Any]) -> None:
    filtered, left = push_down(given_)
    taken = [each for each in given_ if not any(each is other for other in left)]
    for row in ROWS:
        assert passes(row, filtered) == all(sql_passes(row, each) for each in taken), row


@pytest.mark.parametrize(
    "each",
    [
        spark.GreaterThan(("timestamp",), EPOCH),
        spark.In(("partition",), (1, 2)),
        spark.EqualTo(("topic",), "a"),
        spark.LessThanOrEqual(("offset",), 3),
        spark.IsNotNull(("offset",)),
    ],
)
def test_supported_filters_are_pushed(each: Any) -> None:
    _, left = push_down([each])
    assert left == []


TIMED = spark.GreaterThan(("timestamp",), EPOCH)
HAS_TIME = spark.IsNotNull(("timestamp",))


def test_timestamp_comparison_returns_gaps_and_is_not_null_excludes_them() -> None:
    """Spark adds an is-not-null filter to each comparison; a gap has no timestamp."""
    for asked, left in (
        ([HAS_TIME, TIMED], []),
        ([TIMED, HAS_TIME], []),
        ([HAS_TIME], [HAS_TIME]),
        ([HAS_TIME, spark.GreaterThan(("offset",), 3)], [HAS_TIME]),
        ([spark.IsNotNull(("timestampType",)), TIMED], [spark.IsNotNull(("timestampType",))]),
        ([spark.IsNotNull(("offset",))], []),
    ):
        assert push_down(asked, has_gaps=True)[1] == left
        assert push_down(asked)[1] == []


@pytest.mark.parametrize("since_ms", [None, 1015])
@pytest.mark.parametrize("from_offset", [None, 3])
def test_gap_is_one_row_with_any_filter(since_ms: int | None, from_offset: int | None) -> None:
    """Offsets 0 to 9 of 20 are lost. Timestamps are 1000 ms + offset."""
    options = parse_options(
        {
            "kafka.bootstrap.servers": "unused:9092",
            "subscribe": "t",
            "startingoffsets": '{"t":{"0":0}}',
            "failondataloss": "false",
            "oncorruptsegment": "report",
        },
        streaming=False,
    )
    asked: list[Any] = [spark.IsNotNull(("timestamp",))] if since_ms else []
    if since_ms is not None:
        at = EPOCH + timedelta(milliseconds=since_ms)
        asked.append(spark.GreaterThanOrEqual(("timestamp",), at))
    if from_offset is not None:
        asked.append(spark.GreaterThanOrEqual(("offset",), from_offset))
    reader = FilteringReader(options, StructType([*FULL.fields[:3]]).add("gap", GAP))
    with VirtualLeader((10, 20)).reachable():
        assert list(reader.pushFilters(asked)) == []
        rows = [
            row
            for task in reader.partitions()
            for table in reader.read(task)
            for row in table.to_pylist()
        ]
    gaps = [(row["offset"], row["gap"]["lastOffset"]) for row in rows if row["gap"]]
    assert gaps == [(from_offset or 0, 9)]
    found = [row["offset"] for row in rows if not row["gap"]]
    assert found == [*range(15 if since_ms else 10, 20)]


@pytest.mark.parametrize(
    "each",
    [
        spark.EqualTo(("offset",), None),
        spark.In(("partition",), (1, None)),
        spark.EqualTo(("topic",), None),
        spark.EqualTo(("value",), b"x"),
        spark.IsNotNull(("key",)),
        spark.IsNull(("offset",)),
        spark.GreaterThan(("timestamp",), datetime(1970, 1, 1)),
        spark.StringStartsWith(("topic",), "a"),
        spark.EqualTo(("headers", "key"), "x"),
    ],
)
def test_filters_that_are_not_fully_supported_are_left_to_spark(each: Any) -> None:
    """Comparisons with null are never true. A timestamp without a zone is in the session's time zone."""
    filtered, left = push_down([each])
    assert (filtered, left) == (PushedFilters(), [each])
