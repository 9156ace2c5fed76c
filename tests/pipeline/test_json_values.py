"""JSON values as columns, compared with Spark's `from_json` and with Python's parser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, StringType, StructType

from odradek.pipeline.data_source import BatchReader, OdradekDataSource
from odradek.pipeline.errors import BadOption, PipelineError
from odradek.pipeline.json_values import ROWS_AT_ONCE, JsonColumns
from odradek.pipeline.options import parse_options
from odradek.pipeline.range_reader import with_gap_column
from odradek.testing import Broker
from tests.support.spark_reading import table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS = (
    "s string, b boolean, tiny tinyint, short smallint, i int, l bigint, f float, d double,"
    " list array<int>, tags array<string>, in struct<n: int, s: string>,"
    " many array<struct<n: int, s: string>>, `a b` int"
)
KIND = pa.struct(
    [
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("tiny", pa.int8()),
        ("short", pa.int16()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("list", pa.list_(pa.int32())),
        ("tags", pa.list_(pa.string())),
        ("in", pa.struct([("n", pa.int32()), ("s", pa.string())])),
        ("many", pa.list_(pa.struct([("n", pa.int32()), ("s", pa.string())]))),
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
    b'{"list":[1,"x"],"many":[{"n":1},{"n":"x","s":"y"},{"n":2,"s":5}],"tags":["a",1,null]}',
    b'{"many":[{"n":1},5],"tags":[1,2],"short":32767}',
    b'{"many":{"n":1},"tags":"a","short":40000}',
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
"""Values for which Spark's parser returns the same result. (It returns -128 for 128 as a tinyint, and -1500.0 for
-1.50e3 as a string.)"""


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


@pytest.mark.slow
@pytest.mark.interop
def test_values_equal_those_of_from_json(spark: SparkSession, broker: Broker) -> None:
    """Except that `from_json` returns a struct of nulls for a value that is not a JSON object."""
    source = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "events"}
    expected = (
        table(spark, source)
        .orderBy("offset")
        .selectExpr(f"from_json(cast(value as string), '{FIELDS}') v")
        .collect()
    )
    found = (
        spark.read.format("odradek")
        .options(**source, valueFormat="json")
        .schema(f"valueError string, value struct<{FIELDS}>, offset bigint")
        .load()
        .orderBy("offset")
        .collect()
    )
    assert len(found) == len(expected) == len(AS_FROM_JSON) + 1
    nothing = dict.fromkeys(each.name for each in KIND)
    for value, row, theirs in zip((*AS_FROM_JSON, None), found, expected, strict=True):
        made = theirs.v and theirs.v.asDict(recursive=True)
        if made == nothing and row.value is None:
            assert value == b"null" or row.valueError is not None
        else:
            assert (row.value and row.value.asDict(recursive=True)) == made, value


@pytest.mark.interop
def test_stream_has_the_same_columns(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    source = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "events"}
    frame = (
        spark.readStream.format("odradek")
        .options(**source, valueFormat="json", startingOffsets="earliest", includeHeaders="true")
        .schema(
            "offset bigint, headers array<struct<key: string, value: binary>>, value struct<s: string>"
        )
        .load()
    )
    found: dict[int, str | None] = {}

    def take(rows: DataFrame, _: int) -> None:
        found.update({row.offset: row.value and row.value.s for row in rows.collect()})

    query = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    assert [found[AS_FROM_JSON.index(each)] for each in (b'{"s":12}', b"nonsense")] == ["12", None]
    assert sorted(found) == list(range(len(AS_FROM_JSON) + 1))


@pytest.mark.parametrize(
    ("value", "found", "error"),
    [
        (b'{"i":1}', {"i": 1}, None),
        (b'{"i":"1","s":"x"}', {"s": "x"}, "Expected `int | null`, got `str` - at `$.i`"),
        (b'{"i":2147483648}', {}, "Expected `int` <= 2147483647 - at `$.i`"),
        (b'{"list":[1,"x"],"i":1}', {"i": 1}, "Expected `int | null`, got `str` - at `$.list[1]`"),
        (b'{"many":[{"n":"x"}]}', {"many": [{"n": None, "s": None}]}, "at `$.many[0].n`"),
        (b'{"s":5}', {"s": "5"}, None),
        (b'{"s":5,"i":"x"}', {"s": "5"}, "Expected `int | null`, got `str` - at `$.i`"),
        (b"[1]", None, "Expected `object`, got `array` - at `$`"),
        (b'{"i":1} {"i":2}', None, "JSON is malformed: trailing characters"),
        (b'{"i":"1"} {"i":2}', None, "JSON is malformed: trailing characters"),
        (b'{"i":"1"', None, "Input data was truncated"),
        (b"", None, "Input data was truncated"),
        (None, None, None),
        (b"null", None, None),
        (b'{"in":' * 100_000, None, " - at `$`"),
        (b'{"s":"\xff","i":1}', {"i": 1}, "can't decode byte 0xff"),
        (b'{"s":["\xff"],"i":1}', {"i": 1}, "can't decode byte 0xff"),
        (b'{"\xff":"\xff","s":5,"i":1}', {"s": "5", "i": 1}, None),
        (b'{"s":"\\ud800","i":1}', None, "JSON is malformed"),
        (b'{"d":1e400,"i":1}', {"i": 1}, "Number out of range - at `$.d`"),
    ],
)
def test_invalid_value_has_an_error(
    value: bytes | None, found: dict[str, Any] | None, error: str | None
) -> None:
    good = b'{"s":"before"}'
    columns, errors = JsonColumns(KIND).of(binary(good, value, good))
    nothing = dict.fromkeys(field.name for field in KIND)
    before, made, after = columns.to_pylist()
    assert before == after == {**nothing, "s": "before"}
    assert made == (None if found is None else {**nothing, **found})
    assert errors.to_pylist()[::2] == [None, None]
    message = errors[1].as_py()
    assert message is None if error is None else error in message


def test_slice_of_an_array_is_decoded() -> None:
    values = binary(b'{"i":1}', None, b'{"i":3}', b"[]").slice(1)
    columns, errors = JsonColumns(KIND).of(values)
    assert [each and each["i"] for each in columns.to_pylist()] == [None, 3, None]
    assert [each is None for each in errors.to_pylist()] == [True, True, False]
    assert [len(each) for each in JsonColumns(KIND).of(binary())] == [0, 0]


def test_many_rows_are_decoded_in_several_batches() -> None:
    count = ROWS_AT_ONCE + 5
    values = binary(*(b'{"i":%d}' % n if n % 3 else b"x" for n in range(count)))
    given = pa.record_batch([pa.array(range(count)), values], ["offset", "value"])
    parts = list(JsonColumns(KIND).replace_values(given))
    assert [each.num_rows for each in parts] == [ROWS_AT_ONCE, 5]
    rows = [row for part in parts for row in part.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(count))
    assert all(
        row["value"] is None and row["valueError"] if n % 3 == 0 else row["value"]["i"] == n
        for n, row in enumerate(rows)
    )


def test_gap_has_no_value() -> None:
    """Gap rows are decoded before the columns exist."""
    gap = with_gap_column(pa.record_batch([pa.array([1]), binary(None)], ["offset", "value"]))
    (made,) = JsonColumns(KIND).replace_values(gap)
    assert made.to_pylist() == [{"offset": 1, "value": None, "gap": None, "valueError": None}]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["n", "s", "x"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
OBJECTS = st.dictionaries(st.sampled_from([*(each.name for each in KIND), "x"]), ANYTHING)


@given(values=st.lists(OBJECTS | ANYTHING, max_size=5), indent=st.sampled_from([None, 1]))
def test_values_equal_those_of_python(values: list[Any], indent: int | None) -> None:
    texts = [json.dumps(each, indent=indent) for each in values]
    columns, errors = JsonColumns(KIND).of(binary(*(each.encode() for each in texts)))
    for value, made, error in zip(values, columns.to_pylist(), errors.to_pylist(), strict=True):
        expected, fits = fitted(value, KIND)
        assert made == expected
        assert (error is None) == fits


def fitted(value: Any, kind: pa.DataType) -> tuple[Any, bool]:
    """Return the value as a column of this type, and whether it is completely valid."""
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
        if any(item is None and not fits for item, fits in items):
            return None, False
        return [item for item, _ in items], all(fits for _, fits in items)
    if pa.types.is_string(kind):
        return (value, True) if isinstance(value, str) else (SameJson(value), True)
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


class SameJson:
    """Equals any text of the same JSON value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and repr(json.loads(other)) == repr(self._value)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.interop
@pytest.mark.parametrize(
    ("schema", "more", "message"),
    [
        ("value string", {}, "column value is struct<…> with valueFormat=json, not string"),
        ("offset bigint", {}, "the schema needs a column value with the fields to read"),
        (
            "value struct<at: timestamp>",
            {},
            "value.at is timestamp, which is not supported for JSON values",
        ),
        ("value struct<a: array<struct<b: date>>>", {}, "value.a.b is date"),
        ("value struct<a: map<string, int>>", {}, "value.a is map<string,int>"),
        ("value struct<a: int, a: string, b: int>", {}, "value has duplicate fields: a"),
        ("value struct<a: int NOT NULL>", {}, "value.a must not be NOT NULL"),
        ("value struct<a: int> NOT NULL", {}, "value must not be NOT NULL"),
        (
            "value struct<a: int>, wrong string",
            {},
            "there is no column wrong: the columns are key, value, topic",
        ),
        ("value struct<a: int>, valueError int", {}, "column valueError is string, not int"),
        ("value struct<a: int>", {"valueFormat": "binary"}, "is binary without valueFormat=json"),
        ("value string", {"valueFormat": "binary"}, "column value is binary, not string"),
        ("valueError string", {"valueFormat": "binary"}, "it exists only with valueFormat=json"),
    ],
)
def test_invalid_schema_is_refused(
    spark: SparkSession, schema: str, more: dict[str, str], message: str
) -> None:
    """The session parses the DDL."""
    asked = {"subscribe": "t", "tiered.url": "/nowhere", "valueFormat": "json", **more}
    options = parse_options(asked, streaming=False)
    kind = StructType.fromDDL(schema)
    assert isinstance(kind, StructType)
    with pytest.raises(BadOption) as caught:
        BatchReader(options, kind)
    assert message in str(caught.value)


def test_array_without_nulls_is_refused() -> None:
    options = parse_options(
        {"subscribe": "t", "tiered.url": "/nowhere", "valueFormat": "json"}, streaming=False
    )
    fields = StructType().add("a", ArrayType(StringType(), containsNull=False))
    with pytest.raises(BadOption, match=r"value.a must not be an array without nulls"):
        BatchReader(options, StructType().add("value", fields))


def test_json_values_of_batches_are_refused() -> None:
    given = {"subscribe": "t", "tiered.url": "/nowhere", "valueFormat": "json", "rows": "batches"}
    with pytest.raises(BadOption, match="is not allowed with rows=batches"):
        parse_options(given, streaming=False)


def test_json_values_without_a_schema_are_refused() -> None:
    with pytest.raises(PipelineError, match=r"valueFormat=json requires .schema"):
        OdradekDataSource({"subscribe": "t", "valueFormat": "json"}).schema()
