"""JSON values as columns: held against Spark's `from_json`, and against what Python makes of the same text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from odradek.pipeline.errors import BadOption, PipelineError
from odradek.pipeline.json_values import JsonColumns
from odradek.pipeline.options import parse_options
from odradek.pipeline.source import BatchReader, OdradekDataSource
from odradek.testing import Broker
from tests.pipeline.reading import table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

FIELDS = (
    "s string, b boolean, tiny tinyint, i int, l bigint, f float, d double, list array<int>,"
    " in struct<n: int, s: string>, many array<struct<n: int>>, `a b` int"
)
KIND = pa.struct(
    [
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("tiny", pa.int8()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("list", pa.list_(pa.int32())),
        ("in", pa.struct([("n", pa.int32()), ("s", pa.string())])),
        ("many", pa.list_(pa.struct([("n", pa.int32())]))),
        ("a b", pa.int32()),
    ]
)

AS_FROM_JSON = (
    b"{}",
    b'{"s":"x","b":true,"tiny":-128,"i":2147483647,"l":-9223372036854775808,"f":1.5,"d":1e300}',
    b' { "s" : "\\u00e9\\n\\"", "other" : [1, {"s": "no"}], "a b": 3 }\n',
    '{"s":"é😀","d":0.1,"f":1}'.encode(),
    b'{"d":1,"l":12,"i":null,"s":null,"in":null,"list":null,"b":false}',
    b'{"list":[1,2,null],"in":{"n":1,"s":"y","z":0},"many":[{"n":1},{},null]}',
    b'{"in":{},"many":[],"list":[]}',
    b'{"s":"first","s":"second"}',
    b'{"tiny":300,"i":2147483648,"l":9223372036854775808,"s":"kept"}',
    b'{"i":1.5,"l":1e2,"tiny":1.0,"s":"kept"}',
    b'{"i":"1","b":"true","b2":1,"s":"kept"}',
    b'{"i":true,"b":1,"d":false,"s":"kept"}',
    b'{"in":5,"s":"kept"}',
    b'{"in":{"n":"x","s":"kept"},"l":1}',
    b'{"s":12}',
    b'{"s":true}',
    b'{"s":[1,{"a":"b"}]}',
    b'{"s":{"a":1.5}}',
    b'{"s":-1500}',
    b"null",
    b"nonsense",
    b'{"s":"x"',
    b"5",
    b'"text"',
    b"\xff\xfe",
    b"",
)
"""What Spark's parser makes of them is what is made of them here. (It has -128 for 128 as a tinyint, and
-1500.0 for -1.50e3 as a string.)"""


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"events": 1}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4"})
        for value in (*AS_FROM_JSON, None):
            producer.produce("events", value, key=b"k")
        producer.flush()
        yield broker


def test_what_from_json_makes_of_them(spark: SparkSession, broker: Broker) -> None:
    source = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "events"}
    expected = (
        table(spark, source)
        .selectExpr("offset", f"from_json(cast(value as string), '{FIELDS}') v")
        .selectExpr("v.*")
        .orderBy("offset")
        .collect()
    )
    found = (
        spark.read.format("odradek")
        .options(**source, valueFormat="json")
        .schema(f"valueError string, value struct<{FIELDS}>, offset bigint")
        .load()
        .orderBy("offset")
        .selectExpr("value.*")
        .collect()
    )
    assert len(found) == len(expected) == len(AS_FROM_JSON) + 1
    for value, ours, theirs in zip((*AS_FROM_JSON, None), found, expected, strict=True):
        assert ours == theirs, value


@pytest.mark.parametrize(
    ("value", "found", "error"),
    [
        (b'{"i":1}', {"i": 1}, None),
        (b'{"i":"1","s":"x"}', {"s": "x"}, "Expected `int | null`, got `str` - at `$.i`"),
        (b'{"i":2147483648}', {}, "Expected `int` <= 2147483647 - at `$.i`"),
        (b'{"list":[1,"x"],"i":1}', {"i": 1}, "Expected `int | null`, got `str` - at `$.list[1]`"),
        (b'{"s":5}', {"s": "5"}, None),
        (b"[1]", None, "Expected `object | null`, got `array`"),
        (b'{"i":1} {"i":2}', None, "JSON is malformed: trailing characters"),
        (b'{"i":1', None, "Input data was truncated"),
        (b"", None, "Input data was truncated"),
        (None, None, None),
        (b"null", None, None),
        (b'{"in":' * 5000, None, "maximum recursion depth exceeded"),
        (b'{"s":"\xff","i":1}', {"i": 1}, "utf-8"),
        (b'{"s":"\\ud800","i":1}', None, "JSON is malformed"),
        (b'{"d":1e400,"i":1}', {"i": 1}, "Number out of range - at `$.d`"),
    ],
)
def test_what_is_wrong_is_said(
    value: bytes | None, found: dict[str, Any] | None, error: str | None
) -> None:
    good = b'{"s":"before"}'
    columns, errors = JsonColumns(KIND).of(binary(good, value, good))
    nothing = dict.fromkeys(field.name for field in KIND)
    before, made, after = columns.to_pylist()
    assert before == after == {**nothing, "s": "before"}
    assert made == (None if found is None else {**nothing, **found})
    assert errors.to_pylist()[::2] == [None, None]
    (said,) = errors.to_pylist()[1:2]
    assert said is None if error is None else error in said


def test_a_part_of_an_array_is_read() -> None:
    values = binary(b'{"i":1}', None, b'{"i":3}', b"[]").slice(1)
    columns, errors = JsonColumns(KIND).of(values)
    assert [each and each["i"] for each in columns.to_pylist()] == [None, 3, None]
    assert [each is None for each in errors.to_pylist()] == [True, True, False]
    assert [len(each) for each in JsonColumns(KIND).of(binary())] == [0, 0]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["n", "s", "x"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
OBJECTS = st.dictionaries(st.sampled_from([*(each.name for each in KIND), "x"]), ANYTHING)


@given(values=st.lists(OBJECTS | ANYTHING, max_size=5), indent=st.sampled_from([None, 1]))
def test_what_python_makes_of_them(values: list[Any], indent: int | None) -> None:
    texts = [json.dumps(each, indent=indent) for each in values]
    columns, errors = JsonColumns(KIND).of(binary(*(each.encode() for each in texts)))
    for value, made, error in zip(values, columns.to_pylist(), errors.to_pylist(), strict=True):
        expected, fits = fitted(value, KIND)
        assert made == expected
        assert (error is None) == fits


def fitted(value: Any, kind: pa.DataType) -> tuple[Any, bool]:
    """What a column of that type has of it, and whether that is all."""
    if value is None:
        return None, True
    if pa.types.is_struct(kind):
        if not isinstance(value, dict):
            return None, False
        parts = {each.name: fitted(value.get(each.name), each.type) for each in kind}
        found = {name: part for name, (part, _) in parts.items()}
        return found, all(fits for _, fits in parts.values())
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            return None, False
        items = [fitted(each, kind.value_type) for each in value]
        fits = all(fits for _, fits in items)
        return ([item for item, _ in items] if fits else None), fits
    if pa.types.is_string(kind):
        return (value, True) if isinstance(value, str) else (SAME_JSON(value), True)
    if pa.types.is_boolean(kind):
        return (value, True) if isinstance(value, bool) else (None, False)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, False
    if pa.types.is_floating(kind):
        try:
            return pa.scalar(float(value), kind).as_py(), True
        except OverflowError:
            return None, False
    limit = 1 << kind.bit_width - 1
    is_in = isinstance(value, int) and -limit <= value < limit
    return (value, True) if is_in else (None, False)


class SAME_JSON:  # noqa: N801 - a matcher
    """Equal to any text of that JSON."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and bool(json.loads(other) == self._value)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("schema", "more", "said"),
    [
        ("value string", {}, "the column value is a struct of the fields that are wanted"),
        ("offset bigint", {}, "it is not in the schema"),
        ("value struct<at: timestamp>", {}, "value.at is timestamp, which JSON has not"),
        ("value struct<a: array<struct<b: date>>>", {}, "value.a.b is date"),
        ("value struct<a: map<string, int>>", {}, "value.a is map<string,int>"),
        ("value struct<a: int, a: string>", {}, "value has no fields, or one twice"),
        ("value struct<a: int NOT NULL>", {}, "value.a is NOT NULL"),
        ("value struct<a: int>, wrong string", {}, "there is no column wrong"),
        ("value struct<a: int>", {"rows": "batches"}, "rows=batches has none"),
        ("value struct<a: int>", {"valueFormat": "binary"}, "column value is binary, not struct"),
        ("valueError string", {"valueFormat": "binary"}, "there is no column valueError"),
    ],
)
def test_a_schema_says_what_is_in_them(
    spark: SparkSession, schema: str, more: dict[str, str], said: str
) -> None:
    """The session parses the DDL."""
    asked = {"subscribe": "t", "tiered.url": "/nowhere", "valueFormat": "json", **more}
    options = parse_options(asked, streaming=False)
    kind = StructType.fromDDL(schema)
    assert isinstance(kind, StructType)
    with pytest.raises(BadOption) as caught:
        BatchReader(options, kind)
    assert said in str(caught.value)


def test_without_a_schema_it_says_so() -> None:
    with pytest.raises(PipelineError, match=r"valueFormat=json goes with .schema"):
        OdradekDataSource({"subscribe": "t", "valueFormat": "json"}).schema()
