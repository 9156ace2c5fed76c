"""Values in JSON, of which a registry has a JSON Schema, as typed columns.

What the schema gives types for become columns of these; what it leaves open, or open between several types, is
kept as the JSON text that it is. The schema says which columns there are, and is not used to judge values
by more than their types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from odradek.pipeline.schemas.columns import BadSchema, in_parts
from odradek.pipeline.schemas.registry import Schema

VALUE = "value"
"""The column of values that are no objects."""
_PLAIN = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_TEXT = pa.string()


class JsonDecoder:
    """Of the values of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._id = schema.id
        self._named = {}
        try:
            self._named = {name: json.loads(text) for name, text in schema.references}
            self._root = json.loads(schema.text)
            shape = self._shape(self._root, ())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadSchema(f"{schema.name} is no JSON Schema: {error!r}") from None
        self._is_object = isinstance(shape, dict)
        self._shape_of_all = shape if isinstance(shape, dict) else {VALUE: shape}
        self.kind = _type_of(self._shape_of_all)

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Columns, as a struct; and by number those that are no such values, which are null, with why."""
        return in_parts(payloads, self._columns, self.kind)

    def _columns(self, payloads: pa.Array) -> pa.Array:
        try:
            return self._fitted(payloads)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def _fitted(self, payloads: pa.Array) -> pa.Array:
        shape = self._shape_of_all
        values = [json.loads(each, parse_constant=_refuse) for each in payloads.to_pylist()]
        if not self._is_object:
            values = [{VALUE: each} for each in values]
        if not all(isinstance(each, dict) for each in values):
            raise ValueError("it is no JSON object")
        try:
            return pa.array([_fit(each, shape) for each in values], self.kind)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise ValueError(str(error)) from None

    def _shape(self, node: Any, within: tuple[str, ...]) -> Any:
        """A dict for an object, a list for an array, an Arrow type for the rest; None is any JSON, and
        what is within itself."""
        if not isinstance(node, dict):
            return None
        if "$ref" in node:
            name = node["$ref"]
            return None if name in within else self._shape(self._referred(name), (*within, name))
        for several in ("oneOf", "anyOf"):
            branches = [b for b in node.get(several, ()) if b != {"type": "null"}]
            if branches:
                return self._shape(branches[0], within) if len(branches) == 1 else None
        kind = node.get("type")
        if isinstance(kind, list):
            kinds = [each for each in kind if each != "null"]
            kind = kinds[0] if len(kinds) == 1 else None
        if kind is None and "properties" in node:
            kind = "object"
        if kind == "object" and node.get("properties"):
            properties = node["properties"].items()
            return {name: self._shape(each, within) for name, each in properties}
        if kind == "array" and isinstance(node.get("items"), dict):
            return [self._shape(node["items"], within)]
        return _PLAIN.get(kind) if isinstance(kind, str) else None

    def _referred(self, reference: str) -> Any:
        name, _, pointer = reference.partition("#")
        node = self._named[name] if name else self._root
        for step in pointer.split("/")[1:]:
            node = node[step.replace("~1", "/").replace("~0", "~")]
        return node


def _type_of(shape: Any) -> pa.DataType:
    if isinstance(shape, Mapping):
        return pa.struct([pa.field(name, _type_of(each)) for name, each in shape.items()])
    if isinstance(shape, list):
        return pa.list_(_type_of(shape[0]))
    return _TEXT if shape is None else shape


def _fit(value: Any, shape: Any) -> Any:
    if value is None:
        return None
    if shape is None:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{value!r:.80} is no JSON object")
        return {name: _fit(value.get(name), each) for name, each in shape.items()}
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{value!r:.80} is no JSON array")
        return [_fit(each, shape[0]) for each in value]
    return _plain(value, shape)


def _plain(value: Any, shape: pa.DataType) -> Any:
    """A number in JSON is an integer if it is a whole one, however it is spelt, and any is the nearest of a column
    of such numbers."""
    is_integer = shape == _PLAIN["integer"]
    if isinstance(value, bool):
        fits = shape == _PLAIN["boolean"]
    else:
        fits = not is_integer or isinstance(value, int) or _is_whole(value)
    if not fits:
        raise ValueError(f"{value!r:.80} is no {shape}")
    if is_integer:
        return int(value)
    return float(value) if shape == _PLAIN["number"] and isinstance(value, int) else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _refuse(name: str) -> Any:
    """Of what Python takes for JSON, and nobody else."""
    raise ValueError(f"{name} is no JSON")
