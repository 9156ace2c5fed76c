"""The schema of a table: what it has unless a query says otherwise, and what a query may say."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from odradek.pipeline.decoding.schema import (
    BATCH_SPARK_TYPES,
    BATCHES,
    GAP,
    JSON,
    SPARK_TYPES,
    VALUE,
    VALUE_ERROR,
)
from odradek.pipeline.errors import BadOption
from odradek.pipeline.options import REPORT, Options

_JSON_TYPES = (
    StringType,
    BooleanType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
)


def usual_schema(given: Mapping[str, str]) -> str:
    """Spark's DDL of the columns that these options of a source come to. Raises BadOption where only the query
    can say what they are."""
    if given.get("valueFormat", "").lower() == JSON:
        raise BadOption(
            f"valueFormat={JSON} goes with .schema(…), which says what the values have, and what"
            " of a record is read: 'value struct<user: string, page: int>, timestamp timestamp'"
        )
    types = BATCH_SPARK_TYPES if given.get("rows", "").lower() == BATCHES else SPARK_TYPES
    left_out = set()
    if given.get("includeHeaders", "false").lower() != "true":
        left_out.add("headers")
    if given.get("onCorruptSegment", "fail").lower() != REPORT:
        left_out.add(GAP)
    return ", ".join(f"{name} {types[name]}" for name in types if name not in left_out)


def check_schema(schema: StructType, options: Options) -> None:
    """A narrower schema reads less, and one of JSON says what is in it; another one means nothing. Raises
    BadOption."""
    types = dict(BATCH_SPARK_TYPES if options.rows == BATCHES else SPARK_TYPES)
    if options.values == JSON:
        types[VALUE_ERROR] = "string"
        types.pop(VALUE, None)
    for field in schema.fields:
        if options.values == JSON and field.name == VALUE:
            continue
        expected = types.get(field.name)
        if expected is None:
            raise BadOption(f"there is no column {field.name}, but {', '.join(types)}")
        if field.dataType.simpleString() != expected:
            given = field.dataType.simpleString()
            raise BadOption(f"column {field.name} is {expected}, not {given}: cast it afterwards")
    if options.values == JSON:
        _check_values(schema, options)
    if options.corrupt_segments == REPORT and GAP not in schema.fieldNames():
        raise BadOption(
            f"onCorruptSegment={REPORT} makes rows with the column {GAP}, which the schema has not"
        )


def _check_values(schema: StructType, options: Options) -> None:
    if options.rows == BATCHES:
        raise BadOption(f"valueFormat={JSON} is about records, and rows={BATCHES} has none")
    value = schema[VALUE].dataType if VALUE in schema.fieldNames() else None
    if not isinstance(value, StructType):
        given = "not in the schema" if value is None else value.simpleString()
        raise BadOption(
            f"with valueFormat={JSON} the column {VALUE} is a struct of the fields that are wanted,"
            f" such as 'value struct<user: string, page: int>'; it is {given}"
        )
    _check_fields(value, VALUE)


def _check_fields(kind: DataType, where: str) -> None:
    if isinstance(kind, StructType):
        names = kind.fieldNames()
        if not names or len(set(names)) < len(names):
            raise BadOption(f"{where} has no fields, or one twice: {kind.simpleString()}")
        for field in kind.fields:
            if not field.nullable:
                raise BadOption(f"{where}.{field.name} is NOT NULL, and a record need not have it")
            _check_fields(field.dataType, f"{where}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_fields(kind.elementType, where)
    elif type(kind) not in _JSON_TYPES:
        raise BadOption(
            f"{where} is {kind.simpleString()}, which JSON has not: take it as string, and cast it"
            " afterwards"
        )


def decoded_columns(schema: StructType) -> list[str]:
    """Those of the table that come from a record as it lies there."""
    return [name for name in schema.fieldNames() if name not in (GAP, VALUE_ERROR)]
