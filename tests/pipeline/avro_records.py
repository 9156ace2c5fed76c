"""Avro schema and records that were written with it."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import pytest

fastavro = pytest.importorskip("fastavro")


FLIGHT = {
    "type": "record",
    "name": "Flight",
    "namespace": "flights",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "double"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "leg",
            "type": {"type": "record", "name": "Leg", "fields": [{"name": "km", "type": "float"}]},
        },
    ],
}


def written(id: int, schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return struct.pack(">bi", 0, id) + out.getvalue()
