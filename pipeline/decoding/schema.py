"""Spark types of a table's columns: records, with names, order and types of Spark's Kafka source, and batches.

Spark requests them in a separate process; the Arrow types are in `arrow_columns.py`, so that this process does not
import Arrow.
"""

from __future__ import annotations

GAP = "gap"
"""Column that is not null in rows for unreadable offsets, from the row's offset to `lastOffset`. The object's key
in it is null if the offsets are a broker's.
"""

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
"""Spark DDL types of record columns by name."""

COLUMNS = tuple(name for name in SPARK_TYPES if name not in ("headers", GAP))
"""Columns without `includeHeaders`."""

VALUE, VALUE_ERROR = "value", "valueError"
"""Columns of parsed values: their fields and, if the schema has that column, why a value or a field is null."""
BINARY, JSON = "binary", "json"
"""Values of the option `valueFormat`."""

RECORDS, BATCHES = "records", "batches"
"""Values of `SourceOptions.rows`."""

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
"""Spark DDL types of batch columns by name; `offset` is the last offset, `timestamp` the max timestamp."""
