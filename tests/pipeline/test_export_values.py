"""Values of an export, and which of them are dead letters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs.decode import Decoding, decoded
from odradek.pipeline.jobs.export_values import ExportValues, columns_of_good

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_value_is_one_json_object_or_a_dead_letter(spark: SparkSession) -> None:
    """Spark's from_json would read the first of several objects, and the first element of an array."""
    good = [b'{"a": 1}', b' {"a": 2, "s": {"t": "}{"}}\n', b'{"a": 3, "other": [1, {}]}', b"{}"]
    dead = [
        b'{"a": 4}{"a": 5}', b'{"a": 4}\n{"a": 5}', b'{"a": 4},{"a": 5}', b'[{"a": 4}, {"a": 5}]',
        b'{"a": 4} x', b'{"a": 4}}', b'{"a": 4}]', b'{"a": 4},"a":5', b'{"a": 4},"a":{"a": 5}}',
        b'{"a": 4},{"a": 5}]', b'{"a": 4}],"x":[1', b'{"a": 4},{}],"x":[1', b'{"a": 4}]} x', b'{"a": 4},',
        b'{"a": 4}],"both":[{"a": 5}', b"{'a': 4}", b'{"a": 4, "b": NaN}', b'{"d": NaN}', b'{"a": 04}',
        b'{a: 4}', b'{"a": 4 /* */}', b'{"b": "\n"}', b'{"a": 4, "b": %s1%s}' % (b"[" * 5000, b"]" * 5000),
        b'{"a": 4, "b": %s}' % (b"9" * 5000), b'{"a": 4', b"", b" ", b"null", b"4", b'"a"', b'{"s": {"t": 1}, "a": "x"}',
    ]  # fmt: skip
    values: list[bytes | None] = [*good, *dead, None]
    frame = spark.createDataFrame([(each,) for each in values], "value binary")
    rows = ExportValues("json", "a int, s struct<t: string>, d double").of(frame).collect()
    assert [bytes(row.value) for row in rows if row.error is not None] == dead
    read = [row.decoded for row in rows if row.error is None]
    assert [(each.a, each.s and each.s.t) for each in read] == [
        (1, None), (2, "}{"), (3, None), (None, None), (None, None),
    ]  # fmt: skip


def test_value_may_have_fields_named_like_replaced_columns(spark: SparkSession) -> None:
    value = b'{"error": "none", "decoded": 4, "value": 5, "parsed": 6}'
    frame = spark.createDataFrame([(7, value)], "offset long, value binary")
    values = ExportValues("json", "error string, decoded int, value int, parsed int")
    (row,) = columns_of_good(values.of(frame).where("error is null")).collect()
    assert row.asDict() == {
        "offset": 7, "error": "none", "decoded": 4, "value": 5, "parsed": 6
    }  # fmt: skip


def test_column_named_like_an_added_one_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    fields = [{"name": name, "type": "int"} for name in ("error", "decoded")]
    schema = {"type": "record", "name": "r", "fields": fields}
    (tmp_path / "7.avsc").write_text(json.dumps(schema))
    frame = spark.createDataFrame([(b"\0\0\0\0\x07\x02\x04",)], "value binary")
    once = decoded(frame, Decoding(str(tmp_path)))
    (row,) = once.where("error is null").select("decoded.*").collect()
    assert row.asDict() == {"error": 1, "decoded": 2}
    with pytest.raises(BadOption, match="with the names decoded, error: rename them first"):
        decoded(once, Decoding(str(tmp_path)))


def test_value_with_fields_named_like_other_columns_is_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(7, b'{"Offset": 1}')], "offset long, value binary")
    with pytest.raises(BadOption, match="the table already has: Offset"):
        columns_of_good(ExportValues("json", "Offset int").of(frame))


@pytest.mark.parametrize("schema", ["a", "int", "a integr"])
def test_invalid_schema_is_refused(spark: SparkSession, schema: str) -> None:
    with pytest.raises(BadOption, match="a schema is a list of columns and types, such as 'a int'"):
        ExportValues("json", schema).check_schema()
