"""The columns a topic has as a table, as Arrow has them; as Spark has them: `schema.py`, which needs no Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from odradek.pipeline.decoding.schema import BATCHES, RECORDS

HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
    )
)

GAPS = pa.struct(
    [
        pa.field("lastOffset", pa.int64()),
        pa.field("object", pa.string()),
        pa.field("reason", pa.string()),
    ]
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
"""By name."""

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
"""Of a batch."""


def arrow_schema(columns: Sequence[str], rows: str = RECORDS) -> pa.Schema:
    types = BATCH_TYPES if rows == BATCHES else TYPES
    return pa.schema([pa.field(name, types[name]) for name in columns])
