"""The columns a topic has as a table: of records with names, order and types of Spark's own Kafka source,
and of batches.

Spark asks for them in a process of its own, which imports this: what Arrow calls them is in `arrow_schema.py`.
"""

from __future__ import annotations

GAP = "gap"
"""Of a row that stands for offsets that cannot be read, from its own to `lastOffset`; else null. The
object's name is null where it is a broker that has them."""

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

COLUMNS = tuple(name for name in SPARK_TYPES if name not in ("headers", GAP))
"""Without `includeHeaders`."""

VALUE, VALUE_ERROR = "value", "valueError"
"""Where values are parsed: their fields, and, where the schema asks for it, why a value or one of them is null."""
BINARY, JSON = "binary", "json"
"""What `valueFormat` says that values are."""

RECORDS, BATCHES = "records", "batches"
"""What a row is."""

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
"""Of a batch; `offset` is its last one, `timestamp` its latest."""
