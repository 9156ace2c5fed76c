"""Valid requests of any API and version with random fields, for fuzzing."""

from __future__ import annotations

import dataclasses
import datetime
import random
import types
import typing
import uuid
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from odradek.protocol.apis import PRIVATE_APIS
from odradek.protocol.messages import load
from odradek.protocol.schemas.serde import encode

WORDS = ["t", "orders", "", "a" * 200, "é", "range", "group-1"]


def sample_request(key: int, version: int, source: random.Random) -> bytes:
    """Return the body of a random request, which kio encodes unless its API is private."""
    if key in PRIVATE_APIS:
        return encode(_entity(load(key, version, "request"), source), version)
    schema = load_request_schema(key, version)
    buffer = BytesIO()
    entity_writer(schema)(buffer, _entity(schema, source))
    return buffer.getvalue()


def _entity(schema: type, source: random.Random) -> Any:
    hints = typing.get_type_hints(schema)
    return schema(
        **{
            field.name: _value(hints[field.name], _item_type(field.metadata), source)
            for field in dataclasses.fields(schema)
        }
    )


def _item_type(metadata: Mapping[str, Any]) -> str | None:
    """Primitive type of a field or, as kio has it, of the items of an array. None is a struct."""
    kafka_type = str(metadata.get("kafka_type", "struct")).removeprefix("[]")
    return None if kafka_type == "struct" else kafka_type


def _value(hint: Any, kafka_type: str | None, source: random.Random) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        if source.random() < 0.2:
            return None
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return tuple(_value(item, kafka_type, source) for _ in range(source.randrange(3)))
    if kafka_type is None:
        return _entity(hint, source)
    return _primitive(kafka_type, source)


def _primitive(kafka_type: str, source: random.Random) -> Any:
    if kafka_type.startswith(("int", "uint")):
        bits = int(kafka_type.lstrip("uint"))
        low = 0 if kafka_type.startswith("u") else -1
        return source.choice([low, 0, 1, 2, 2 ** min(bits - 2, 20), 2 ** (bits - 1) - 1])
    match kafka_type:
        case "string":
            return source.choice(WORDS)
        case "bytes" | "records":
            return source.randbytes(source.randrange(100))
        case "uuid":
            return source.choice([None, uuid.UUID(int=source.getrandbits(128))])
        case "bool":
            return source.random() < 0.5
        case "float64":
            return source.uniform(-1e6, 1e6)
        case "error_code":
            return source.choice(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=source.choice([0, 10, 100]))
        case "datetime_i64":
            return datetime.datetime.fromtimestamp(source.randrange(2**31), datetime.UTC)
    raise AssertionError(f"no sample of a {kafka_type}")
