"""What an export takes for values, and what goes to the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from odradek.pipeline.errors import BadOption
from odradek.pipeline.jobs.values import Values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def test_a_value_is_one_json_object_or_a_dead_letter(spark: SparkSession) -> None:
    """Spark's from_json would read the first of several, and the first element of an array."""
    good = [b'{"a": 1}', b' {"a": 2, "s": {"t": "}{"}}\n', b'{"a": 3, "other": [1, {}]}', b"{}"]
    dead = [
        b'{"a": 4}{"a": 5}', b'{"a": 4}\n{"a": 5}', b'{"a": 4},{"a": 5}', b'[{"a": 4}, {"a": 5}]',
        b'{"a": 4} x', b'{"a": 4}}', b'{"a": 4}]', b'{"a": 4},"a":5', b'{"a": 4},"a":{"a": 5}}',
        b'{"a": 4},{"a": 5}]', b'{"a": 4}],"x":[1', b'{"a": 4},{}],"x":[1', b'{"a": 4}]} x', b'{"a": 4},',
        b'{"a": 4}],"both":[{"a": 5}', b'{"a": 4, "b": %s1%s}' % (b"[" * 5000, b"]" * 5000),
        b'{"a": 4, "b": %s}' % (b"9" * 5000), b'{"a": 4', b"", b" ", b"null", b"4", b'"a"', b'{"s": {"t": 1}, "a": "x"}',
    ]  # fmt: skip
    values: list[bytes | None] = [*good, *dead, None]
    frame = spark.createDataFrame([(each,) for each in values], "value binary")
    rows = Values("json", "a int, s struct<t: string>").of(frame).collect()
    assert [bytes(row.value) for row in rows if row.error is not None] == dead
    read = [row.decoded for row in rows if row.error is None]
    assert [(each.a, each.s and each.s.t) for each in read] == [
        (1, None), (2, "}{"), (3, None), (None, None), (None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("schema", ["a", "int", "a integr"])
def test_a_schema_that_names_no_columns_is_refused(spark: SparkSession, schema: str) -> None:
    with pytest.raises(BadOption, match="a schema is columns and their types, such as 'a int'"):
        Values("json", schema).check()
