"""The columns a topic has as a table: of records with names, order and types of Spark's own Kafka source,
and of batches."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
    )
)

GAP = "gap"
GAPS = pa.struct(
    [
        pa.field("lastOffset", pa.int64()),
        pa.field("object", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
"""Of a row that stands for offsets that cannot be read, from its own to `lastOffset`; else null. The
object's name is null where it is a broker that has them."""

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
    GAP: "struct<lastOffset:bigint,object:string,reason:string>",
}
"""By name, as Spark's DDL has them."""


RECORDS, BATCHES = "records", "batches"
"""What a row is."""

BATCH_TYPES = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TYPES["timestamp"],
    "timestampType": pa.int32(),
    "baseOffset": pa.int64(),
    "records": pa.int32(),
    "bytes": pa.int64(),
    "uncompressedBytes": pa.int64(),
    "codec": pa.string(),
    "leaderEpoch": pa.int32(),
    "producerId": pa.int64(),
    "isTransactional": pa.bool_(),
    "isControl": pa.bool_(),
}
"""Of a batch; `offset` is its last one, `timestamp` its latest."""

BATCH_SPARK_TYPES = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "baseOffset": "bigint",
    "records": "int",
    "bytes": "bigint",
    "uncompressedBytes": "bigint",
    "codec": "string",
    "leaderEpoch": "int",
    "producerId": "bigint",
    "isTransactional": "boolean",
    "isControl": "boolean",
    GAP: SPARK_TYPES[GAP],
}


def arrow_schema(columns: Sequence[str], rows: str = RECORDS) -> pa.Schema:
    types = BATCH_TYPES if rows == BATCHES else TYPES
    return pa.schema([pa.field(name, types[name]) for name in columns])
