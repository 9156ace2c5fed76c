"""The columns a topic has as a table: names, order and types of Spark's own Kafka source."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
    )
)

TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS,
}
"""By name, as Arrow has them."""

COLUMNS = tuple(name for name in TYPES if name != "headers")
"""Without `includeHeaders`."""

SPARK_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""By name, as Spark's DDL has them."""


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])
