"""The schema of a table: the default, and the validation of the schema of a query."""

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
    StructField,
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
from odradek.pipeline.options import REPORT, SourceOptions

NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
"""Columns that may be NOT NULL in a schema, so that Spark does not check each row for null."""

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
    """Return the Spark DDL of the default columns for the options. Raises BadOption if the query must give the
    schema.
    """
    is_batches = given.get("rows", "").lower() == BATCHES
    if given.get("valueFormat", "").lower() == JSON and not is_batches:
        raise BadOption(
            f"valueFormat={JSON} requires .schema(…) with the fields of the values and the"
            " columns to read: 'value struct<user: string, page: int>, timestamp timestamp'"
            " (in odradek pipeline export: --value json --schema …)"
        )
    types = BATCH_SPARK_TYPES if is_batches else SPARK_TYPES
    left_out = set()
    if given.get("includeHeaders", "false").lower() != "true":
        left_out.add("headers")
    if given.get("onCorruptSegment", "fail").lower() != REPORT:
        left_out.add(GAP)
    return ", ".join(f"{name} {types[name]}" for name in types if name not in left_out)


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """Check the schema of a query: it may omit columns, and defines the fields of JSON values. Raises BadOption."""
    types = dict(BATCH_SPARK_TYPES if options.rows == BATCHES else SPARK_TYPES)
    is_json = options.value_format == JSON
    if is_json:
        types |= {VALUE: "struct<…>", VALUE_ERROR: "string"}
    for field in schema.fields:
        expected, given = types.get(field.name), field.dataType.simpleString()
        is_struct = isinstance(field.dataType, StructType)
        hint = (
            f"it exists only with valueFormat={JSON}"
            if field.name == VALUE_ERROR
            else f"the columns are {', '.join(types)}"
        )
        if expected is None:
            raise BadOption(f"there is no column {field.name}: {hint}")
        if field.name == VALUE and is_struct != is_json:
            also = "without" if is_struct else "with"
            raise BadOption(f"column {VALUE} is {expected} {also} valueFormat={JSON}, not {given}")
        if field.name == VALUE and is_json:
            _check_fields(field.dataType, VALUE)
        elif given != expected:
            raise BadOption(f"column {field.name} is {expected}, not {given}: cast it afterwards")
        _check_nulls(field, is_report=options.corrupt_segments == REPORT)
    if is_json and VALUE not in schema.fieldNames():
        raise BadOption(
            f"with valueFormat={JSON} the schema needs a column {VALUE} with the fields to"
            " read, such as 'value struct<user: string, page: int>'"
        )
    if options.corrupt_segments == REPORT and GAP not in schema.fieldNames():
        raise BadOption(f"onCorruptSegment={REPORT} requires the column {GAP} in the schema")


def _check_fields(kind: DataType, where: str) -> None:
    if isinstance(kind, StructType):
        names = kind.fieldNames()
        if not names:
            raise BadOption(f"{where} has no fields: give the fields to read")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadOption(f"{where} has duplicate fields: {', '.join(twice)}")
        for field in kind.fields:
            _check_fields(field.dataType, f"{where}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_fields(kind.elementType, where)
    elif type(kind) not in _JSON_TYPES:
        raise BadOption(
            f"{where} is {kind.simpleString()}, which is not supported for JSON values: read"
            " it as string, and convert it in the query (cast, from_json)"
        )


def _check_nulls(field: StructField, *, is_report: bool) -> None:
    """Check that nullable columns are not NOT NULL: Spark then ignores nulls, and would use undefined data."""
    if not field.nullable and is_report:
        raise BadOption(
            f"{field.name} must not be NOT NULL, because onCorruptSegment={REPORT} returns"
            " rows without records"
        )
    if not field.nullable and field.name not in NEVER_NULL:
        raise BadOption(_not_null(field.name))
    _check_nulls_within(field.dataType, field.name)


def _check_nulls_within(kind: DataType, where: str) -> None:
    if isinstance(kind, StructType):
        for field in kind.fields:
            if not field.nullable:
                raise BadOption(_not_null(f"{where}.{field.name}"))
            _check_nulls_within(field.dataType, f"{where}.{field.name}")
    elif isinstance(kind, ArrayType):
        if not kind.containsNull:
            raise BadOption(
                f"{where} must not be an array without nulls, because any value can be null"
            )
        _check_nulls_within(kind.elementType, where)


def _not_null(where: str) -> str:
    return f"{where} must not be NOT NULL, because any value can be null"


def decoded_columns(schema: StructType) -> list[str]:
    """Return the columns that are decoded from records."""
    return [name for name in schema.fieldNames() if name not in (GAP, VALUE_ERROR)]
