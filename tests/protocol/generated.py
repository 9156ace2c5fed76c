"""Random values of a structure from a seeded source, as input of the codec's tests."""

from __future__ import annotations

import random
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from odradek.protocol.codec.structure import FieldPlan, Structure
from odradek.protocol.errors import ErrorCode
from odradek.protocol.uuids import uuid_to_text

_BITS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 2**8 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
_TEXT = ("", "a", "topic-1", "größer", "𝄞" * 40, "x" * 130)


def draw_entity(structure: Structure, source: random.Random) -> Any:
    """Return an entity of the structure's class with random values in every field."""
    plans = (*structure.plain, *structure.tagged)
    values = {plan.name: draw_field(plan, source) for plan in plans}
    return structure.entity_type(**values)


def draw_field(plan: FieldPlan, source: random.Random) -> Any:
    if plan.tag is not None and plan.kind != "struct" and source.random() < 0.3:
        return plan.default
    if plan.nullable and source.random() < 0.3:
        return None
    if plan.is_array:
        return tuple(_element(plan, source) for _ in range(source.choice((0, 1, 2, 3))))
    return _element(plan, source)


def _element(plan: FieldPlan, source: random.Random) -> Any:
    kind = plan.kind
    if kind == "struct":
        assert plan.of is not None
        return draw_entity(plan.of, source)
    if kind in _BITS:
        low, high = _BITS[kind]
        return source.choice((low, high, 0 if low <= 0 else low, source.randint(low, high)))
    if kind == "uuid":
        return UUID(int=source.getrandbits(128))
    if kind == "string":
        return source.choice(_TEXT)
    if kind in ("bytes", "records"):
        return source.randbytes(source.choice((0, 1, 20, 200)))
    if kind == "bool":
        return source.random() < 0.5
    if kind == "float64":
        return source.uniform(-1e9, 1e9)
    if kind == "error_code":
        return source.choice(list(ErrorCode))
    if kind == "timedelta_i32":
        return timedelta(milliseconds=source.randint(-(2**31), 2**31 - 1))
    if kind == "timedelta_i64":
        return timedelta(milliseconds=source.randint(-(2**40), 2**40))
    if kind == "datetime_i64":
        return datetime.fromtimestamp(source.randint(0, 2**32), UTC)
    raise AssertionError(kind)


def as_values(entity: Any, structure: Structure) -> dict[str, Any]:
    """Convert an entity to nested dicts, as a handler returns them."""
    values: dict[str, Any] = {}
    for plan in (*structure.plain, *structure.tagged):
        value = getattr(entity, plan.name)
        if plan.of is not None and value is not None:
            if plan.is_array:
                value = [as_values(element, plan.of) for element in value]
            else:
                value = as_values(value, plan.of)
        elif isinstance(value, timedelta):
            value = value // timedelta(milliseconds=1)
        elif isinstance(value, ErrorCode):
            value = int(value)
        elif isinstance(value, datetime):
            value = int(value.timestamp()) * 1000
        values[plan.name] = value
    return values


def as_kafka_json(record: Any, structure: Structure) -> dict[str, Any]:
    """Convert a record to the JSON of Kafka's converters, with lower-case names; tagged defaults are omitted."""
    shown = {
        plan.name.replace("_", ""): _json(getattr(record, plan.name), plan)
        for plan in structure.plain
    }
    for plan in structure.tagged:
        value = getattr(record, plan.name)
        if value != plan.default:
            shown[plan.name.replace("_", "")] = _json(value, plan)
    return shown


def _json(value: Any, plan: FieldPlan) -> Any:
    if value is None:
        return None
    if isinstance(value, tuple):
        return [_json_element(element, plan) for element in value]
    return _json_element(value, plan)


def _json_element(value: Any, plan: FieldPlan) -> Any:
    if plan.of is not None:
        return as_kafka_json(value, plan.of)
    if isinstance(value, UUID):
        return uuid_to_text(value)
    return b64encode(value).decode() if isinstance(value, bytes) else value


def without_case(shown: Any) -> Any:
    """Convert the names in Kafka's JSON to lower case."""
    if isinstance(shown, dict):
        return {name.lower(): without_case(value) for name, value in shown.items()}
    return [without_case(value) for value in shown] if isinstance(shown, list) else shown
