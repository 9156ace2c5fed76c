"""Decodes Avro values to typed columns.

Two libraries are used: pyruhvro decodes many values at once to Arrow, but does not support all of Avro; fastavro
supports all of it, and creates a dict for each record. The library is chosen once per schema; values that pyruhvro
rejects are decoded by fastavro. Both are given the schema with names and references resolved, and without logical
types of numbers, which are applied as column types.

| Avro | column | by pyruhvro |
|---|---|---|
| boolean, int, long, float, double, string, enum | boolean, int, bigint, float, double, string, string | yes |
| date, timestamp-*, local-timestamp-* | date, timestamp, timestamp_ntz, in microseconds | yes |
| time-* | int or bigint, unchanged | yes |
| array, map, record, union of a type and null | array, map, struct, that type | yes |
| bytes, fixed, decimal, uuid | binary, binary, decimal, string | no |

Bytes after the end of a value are an error: the writer had a wider schema, or it is another value. pyruhvro ignores
them, so its columns are encoded again: if the size differs (arrays and maps may be written in blocks), fastavro
decides.

A timestamp in ms that overflows microseconds is an error, as in Spark's `from_avro`. Unions of several types and
recursive records raise BadSchema.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from odradek.pipeline.schemas.column_types import (
    BadSchema,
    cast_to_type,
    decode_in_parts,
    nullable_type,
)
from odradek.pipeline.schemas.registry import Schema

VALUE = "value"
"""Column of values that are not records."""

_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "null": pa.null(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
Path = tuple[str, ...]
"""Names of the fields that lead to a type."""
_SLOW = frozenset(("bytes", "fixed", "null"))
"""Types that pyruhvro does not support."""


class AvroDecoder:
    """Decodes the values of one schema. `reader` is the reader's schema (Avro schema resolution, with defaults and
    aliases); without it the writer's schema is used.
    """

    def __init__(self, schema: Schema, reader: Schema | None = None) -> None:
        import fastavro  # noqa: F401 - both are found missing here, and not in a task
        import pyruhvro  # noqa: F401

        written = _ResolvedSchema(schema)
        read = written if reader is None or reader.text == schema.text else _ResolvedSchema(reader)
        self._written = written.tree
        self._read = None if read is written else read.tree
        self._raw = read.kind
        self.kind = nullable_type(read.kind)
        self._is_supported_by_pyruhvro = read is written and written.is_supported_by_pyruhvro
        self._text = json.dumps(written.tree)
        self._parsed: Any = None

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the columns, as a struct, and the errors of invalid values by index; these are null."""
        if self._is_supported_by_pyruhvro and len(payloads):
            found = self._decode_with_pyruhvro(payloads)
            if found is not None:
                return found, {}
        return decode_in_parts(payloads, self._decode_with_fastavro, self.kind)

    def _decode_with_pyruhvro(self, payloads: pa.Array) -> pa.Array | None:
        import pyruhvro

        try:
            batch = pyruhvro.deserialize_array(payloads.to_pylist(), self._text)
            (again,) = pyruhvro.serialize_record_batch(batch, self._text, 1)
            if not pc.binary_length(again).equals(pc.binary_length(payloads)):
                return None
            array = batch.to_struct_array()
            array.validate(full=True)
            return cast_to_type(cast_to_type(array, self._raw), self.kind)
        except ValueError:
            return None
        except BaseException as error:
            # Raised by Rust; not an Exception, and not importable
            if type(error).__name__ != "PanicException":
                raise
            return None

    def _decode_with_fastavro(self, payloads: pa.Array) -> pa.Array:
        import fastavro

        try:
            if self._parsed is None:
                self._parsed = (
                    fastavro.parse_schema(self._written),
                    None if self._read is None else fastavro.parse_schema(self._read),
                )
            written, read = self._parsed
            streams = [io.BytesIO(each.as_buffer()) for each in payloads]
            rows = [fastavro.schemaless_reader(each, written, read) for each in streams]
            array = pa.array(rows, self._raw)
        except Exception as error:  # many types: struct.error, EOFError, IndexError, KeyError …
            raise ValueError(f"{type(error).__name__}: {error}") from None
        for payload, stream in zip(payloads, streams, strict=True):
            if left := len(payload.as_buffer()) - stream.tell():
                raise ValueError(f"there are {left} bytes after the value")
        return cast_to_type(array, self.kind)


class _ResolvedSchema:
    """A schema in which each named type is defined where it is used, with a name for that place, so that two
    versions of a schema have the same names. `tree` is the schema, `kind` its Arrow type.
    """

    def __init__(self, schema: Schema) -> None:
        self.is_supported_by_pyruhvro = True
        self._schema = schema
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._within: list[str] = []
        try:
            for _, text in schema.references:
                self._walk(json.loads(text), "", ())
            root = json.loads(schema.text)
            self.is_supported_by_pyruhvro = True
            if not self._is_record(root):
                root = {
                    "type": "record",
                    "name": "value",
                    "fields": [{"name": VALUE, "type": root}],
                }
            self.tree, self.kind = self._walk(root, "", ())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadSchema(f"{schema.name} is not an Avro schema: {error!r}") from None

    def _is_record(self, root: Any) -> bool:
        if isinstance(root, str) and root in self._named:
            root = self._named[root][0]
        return isinstance(root, dict) and root.get("type") == "record"

    def _walk(self, node: Any, namespace: str, path: Path) -> tuple[Any, pa.DataType]:
        if isinstance(node, list):
            return self._union(node, namespace, path)
        if isinstance(node, str):
            if node not in _PLAIN:
                return self._by_name(node, namespace, path)
            node = {"type": node}
        name = node["type"]
        if isinstance(name, (dict, list)):
            return self._walk(name, namespace, path)
        if name in ("record", "error", "enum", "fixed"):
            return self._define(node, name, namespace, path)
        if name == "array":
            items, kind = self._walk(node["items"], namespace, (*path, "element"))
            return {"type": "array", "items": items}, pa.list_(kind)
        if name == "map":
            values, kind = self._walk(node["values"], namespace, (*path, "value"))
            return {"type": "map", "values": values}, pa.map_(pa.string(), kind)
        if name not in _PLAIN:
            return self._by_name(name, namespace, path)
        return self._primitive(node, name)

    def _primitive(self, node: Mapping[str, Any], name: str) -> tuple[Any, pa.DataType]:
        self.is_supported_by_pyruhvro &= name not in _SLOW
        logical = node.get("logicalType")
        if name == "bytes" and logical == "decimal":
            return dict(node), pa.decimal128(node["precision"], node.get("scale", 0))
        return name, _LOGICAL.get((name, str(logical)), _PLAIN[name])

    def _union(self, node: list[Any], namespace: str, path: Path) -> tuple[Any, pa.DataType]:
        branches = [each for each in node if each not in ("null", {"type": "null"})]
        if len(branches) > 1:
            raise BadSchema(
                f"{self._schema.name}: {'.'.join(path) or 'the value'} is a union of several"
                " types, which cannot be a column"
            )
        if not branches:
            return self._primitive({}, "null")
        tree, kind = self._walk(branches[0], namespace, path)
        return ["null" if each not in branches else tree for each in node], kind

    def _by_name(self, name: str, namespace: str, path: Path) -> tuple[Any, pa.DataType]:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        known = self._named.get(full) or self._named.get(name)
        if known is None:
            raise BadSchema(f"{self._schema.name}: type {name} is not defined")
        node, outer = known
        return self._define(node, node["type"], outer, path)

    def _define(
        self, node: Mapping[str, Any], sort: str, namespace: str, path: Path
    ) -> tuple[Any, pa.DataType]:
        name = node["name"]
        namespace = node.get("namespace", namespace)
        if "." in name:
            namespace = name.rpartition(".")[0]
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        self._named[full] = (node, namespace)
        if sort == "enum":
            kept = {key: node[key] for key in ("symbols", "default") if key in node}
            return {"type": "enum", "name": _unique(path), **kept}, pa.string()
        if sort == "fixed":
            self.is_supported_by_pyruhvro = False
            made: dict[str, Any] = {"type": "fixed", "name": _unique(path), "size": node["size"]}
            if node.get("logicalType") == "decimal":
                precision, scale = node["precision"], node.get("scale", 0)
                made |= {"logicalType": "decimal", "precision": precision, "scale": scale}
                return made, pa.decimal128(precision, scale)
            return made, pa.binary()
        if full in self._within:
            raise BadSchema(
                f"{self._schema.name}: {full} contains itself, which cannot be a column"
            )
        self._within.append(full)
        fields, types = [], []
        for each in node["fields"]:
            tree, kind = self._walk(each["type"], namespace, (*path, each["name"]))
            kept = {key: each[key] for key in ("name", "default", "aliases") if key in each}
            fields.append({**kept, "type": tree})
            types.append(pa.field(each["name"], kind))
        self._within.pop()
        return {"type": "record", "name": _unique(path), "fields": fields}, pa.struct(types)


def _unique(path: Path) -> str:
    """Return a unique name for the type at a path; the type a_b differs from b in a."""
    return "_".join(["at", *(f"{len(each)}{each}" for each in path)])
