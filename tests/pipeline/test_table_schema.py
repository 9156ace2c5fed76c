"""Schemas that a query may give; for JSON values see test_json_values.py."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructType,
)

from odradek.pipeline.errors import BadOption
from odradek.pipeline.options import parse_options
from odradek.pipeline.table_schema import check_schema
from tests.support.virtual_reading import GAP


def headers(*, nulls: bool, value_null: bool) -> DataType:
    header = StructType().add("key", StringType()).add("value", BinaryType(), value_null)
    return ArrayType(header, nulls)


@pytest.mark.parametrize(
    ("schema", "more", "message"),
    [
        (
            StructType().add("key", BinaryType(), False),
            {},
            "key must not be NOT NULL, because any value",
        ),
        (StructType().add("value", BinaryType(), False), {}, "value must not be NOT NULL"),
        (
            StructType().add("headers", headers(nulls=True, value_null=False)),
            {},
            "headers.value must not be NOT NULL",
        ),
        (
            StructType().add("headers", headers(nulls=False, value_null=True)),
            {},
            "headers must not be an array without nulls",
        ),
        (
            StructType().add("codec", StringType(), False),
            {"rows": "batches"},
            "codec must not be NOT NULL",
        ),
        (
            StructType().add("offset", LongType(), False).add("gap", GAP),
            {"onCorruptSegment": "report"},
            "offset must not be NOT NULL, because onCorruptSegment=report returns rows without records",
        ),
    ],
)
def test_not_null_is_refused_for_nullable_columns(
    schema: StructType, more: dict[str, str], message: str
) -> None:
    asked = {"subscribe": "t", "tiered.url": "/nowhere", "includeHeaders": "true", **more}
    with pytest.raises(BadOption) as caught:
        check_schema(schema, parse_options(asked, streaming=False))
    assert message in str(caught.value)
