"""Encoder of Kafka's flexible message format from JSON definitions, independent of Odradek's codec.

It has the types that KIP-1164's messages use. Values are dicts with the names of the JSON. `draw` returns random values.
"""

from __future__ import annotations

import random
import re
from typing import Any
from uuid import UUID

from odradek.protocol.errors import ErrorCode

_SIZES = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
_TEXT = ("", "a", "topic-1", "größer", "diskless/1700000000000-1-" + "0" * 100, "x" * 16_383)
_MESSAGES = ("", "größer", "x" * 300)
"""Error messages, which responses limit to 1,000 characters."""
_NO_TAGGED_FIELDS = b"\0"


def encode(fields: list[dict[str, Any]], values: dict[str, Any]) -> bytes:
    """Encode a message, a record or a struct of version 0, which is flexible and has no tagged fields."""
    return b"".join(_field(field, values[field["name"]]) for field in fields) + _NO_TAGGED_FIELDS


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(field: dict[str, Any], value: Any) -> bytes:
    wire_type = field["type"]
    if value is None:
        assert field["nullableVersions"] == "0+"
        return b"\0"
    if wire_type.startswith("[]"):
        element = {**field, "type": wire_type[2:], "nullableVersions": ""}
        return uvarint(len(value) + 1) + b"".join(_field(element, item) for item in value)
    if "fields" in field:
        return encode(field["fields"], value)
    if wire_type in _SIZES:
        return int(value).to_bytes(_SIZES[wire_type], "big", signed=True)
    if wire_type == "bool":
        return b"\1" if value else b"\0"
    if wire_type == "uuid":
        return bytes(value.bytes)
    raw = value.encode() if wire_type == "string" else value
    return uvarint(len(raw) + 1) + bytes(raw)


def draw(fields: list[dict[str, Any]], source: random.Random) -> dict[str, Any]:
    """Return random values of fields, with the limits of their types."""
    return {field["name"]: _draw_field(field, source) for field in fields}


def _draw_field(field: dict[str, Any], source: random.Random) -> Any:
    wire_type = field["type"]
    if "nullableVersions" in field and source.random() < 0.3:
        return None
    if wire_type.startswith("[]"):
        element = {**field, "type": wire_type[2:]}
        del element["name"]
        element.pop("nullableVersions", None)
        count = source.choice((0, 1, 2, 3, 130 if "fields" not in field else 4))
        return tuple(_draw_field({"name": "", **element}, source) for _ in range(count))
    if "fields" in field:
        return draw(field["fields"], source)
    if field["name"] == "ErrorCode":
        return source.choice(list(ErrorCode))
    if field["name"] == "ErrorMessage":
        return source.choice(_MESSAGES)
    if wire_type in _SIZES:
        limit = 1 << 8 * _SIZES[wire_type] - 1
        return source.choice((-limit, limit - 1, -1, 0, 1, source.randrange(-limit, limit)))
    if wire_type == "bool":
        return source.random() < 0.5
    if wire_type == "uuid":
        return UUID(int=source.getrandbits(128))
    return (
        source.choice(_TEXT)
        if wire_type == "string"
        else source.randbytes(source.choice((0, 1, 200)))
    )


def defaults(fields: list[dict[str, Any]]) -> dict[str, Any]:
    """Default values of fields, as Kafka's message generator has them."""
    return {field["name"]: _default(field) for field in fields}


def _default(field: dict[str, Any]) -> Any:
    wire_type, text = field["type"], field.get("default")
    if text == "null":
        return None
    if wire_type.startswith("[]"):
        return ()
    zero = {"string": "", "bytes": b"", "bool": False, "uuid": UUID(int=0)}
    return zero[wire_type] if wire_type in zero else int(text or 0)


def attribute_name(name: str) -> str:
    """The name of Odradek's field: `ObjectKey` is `object_key`."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def as_values(fields: list[dict[str, Any]], entity: Any) -> dict[str, Any]:
    """Convert one of Odradek's entities to nested dicts with the names of the JSON."""
    return {
        field["name"]: _as_value(field, getattr(entity, attribute_name(field["name"])))
        for field in fields
    }


def _as_value(field: dict[str, Any], value: Any) -> Any:
    if "fields" in field and value is not None:
        return tuple(as_values(field["fields"], item) for item in value)
    return bytes(value) if field["type"] == "bytes" else value
