"""Decodes JSON values with a JSON Schema to typed columns.

Properties with a type become columns of that type. Properties without a type, or with several, are kept as JSON
text. The schema only determines the columns; values are not validated beyond their types.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from odradek.pipeline.schemas.column_types import BadSchema, decode_in_parts
from odradek.pipeline.schemas.registry import Schema

VALUE = "value"
"""Column of values that are not objects."""
_PLAIN = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_TEXT = pa.string()
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


class JsonDecoder:
    """Decodes the values of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._id = schema.id
        self._named = {}
        try:
            self._named = {name: json.loads(text) for name, text in schema.references}
            self._root = json.loads(schema.text)
            shape = self._shape(self._root, ())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadSchema(f"{schema.name} is not a JSON Schema: {error!r}") from None
        self._is_object = isinstance(shape, dict)
        self._shape_of_all = shape if isinstance(shape, dict) else {VALUE: shape}
        self.kind = _type_of(self._shape_of_all)

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the columns, as a struct, and the errors of invalid values by index; these are null."""
        return decode_in_parts(payloads, self._columns, self.kind)

    def _columns(self, payloads: pa.Array) -> pa.Array:
        try:
            return self._fitted(payloads)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def _fitted(self, payloads: pa.Array) -> pa.Array:
        texts = payloads.to_pylist()
        try:
            return pa.array([self._value(each) for each in texts], self.kind)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise ValueError(str(error)) from None

    def _value(self, text: bytes) -> Any:
        try:
            return self._in_shape(json.loads(text, parse_constant=_refuse))
        except _RoundedError:
            exact = json.loads(text, parse_constant=_refuse, parse_float=_exactly)
            return self._in_shape(exact)

    def _in_shape(self, value: Any) -> Any:
        value = value if self._is_object else {VALUE: value}
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        return _fit(value, self._shape_of_all)

    def _shape(self, node: Any, within: tuple[str, ...]) -> Any:
        """Return the shape of a schema: a dict for an object, a list for an array, an Arrow type otherwise; None
        for arbitrary JSON and for recursive schemas.
        """
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
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=float
        )
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{value!r:.80} is not a JSON object")
        return {name: _fit(value.get(name), each) for name, each in shape.items()}
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{value!r:.80} is not a JSON array")
        return [_fit(each, shape[0]) for each in value]
    return _plain(value, shape)


def _plain(value: Any, shape: pa.DataType) -> Any:
    """Convert a value to a column's type. A JSON number is an integer if its value is whole, in any notation. A
    number column has the nearest double; 1e400 is invalid. Raises _RoundedError for a float in an integer
    column, because the float may be rounded from a number that is not whole.
    """
    if shape == _PLAIN["integer"]:
        return _integer(value)
    fits = shape == _PLAIN["boolean"] if isinstance(value, bool) else True
    if fits and shape == _PLAIN["number"] and isinstance(value, int | float | Decimal):
        value = float(value)
        fits = math.isfinite(value)
    if not fits:
        raise ValueError(f"{value!r:.80} is not of type {shape}")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, float):
        raise _RoundedError
    is_complete = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, Decimal) and INT64_MIN <= value <= INT64_MAX:
        is_complete = value == value.to_integral_value()
    if not is_complete:
        text = str(value) if isinstance(value, Decimal) else repr(value)
        raise ValueError(f"{text:.80} is not of type {_PLAIN['integer']}")
    return int(value)


def _exactly(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text:.80} is out of range for any number type") from None


class _RoundedError(Exception):
    """The original number cannot be determined from the float."""


def _refuse(name: str) -> Any:
    """Reject NaN and Infinity, which Python accepts as JSON."""
    raise ValueError(f"{name} is not JSON")
