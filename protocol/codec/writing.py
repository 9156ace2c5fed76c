"""Writers, compiled from structures, that encode nested dicts or entities.

A mapping may omit any field (its default is written) and may contain fields of other versions (they are ignored). A
name that no version has is an error of the caller and raises KeyError if the structure can detect it. Durations and
timestamps are timedelta, datetime or ints in ms; error codes are ErrorCode or ints; the zero UUID may be None.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import MISSING
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

from odradek.protocol.codec.primitives import MAX_STRING_BYTES, append_uvarint, cut_error_message
from odradek.protocol.codec.structure import PRIMITIVES, FieldPlan, Structure
from odradek.seams.values import value_class

Writer = Callable[[bytearray, Any], None]
Step = tuple[Writer, Any]
"""A writer, and the index of its field or the slice of several adjacent fields."""

LONG_ARRAY = 64
"""Number of structs in an array above which `compile_steps_writer` encodes a message in steps."""
ITEMS_PER_STEP = 16
"""Items that are encoded between two yields."""


class Repeated(list[Any]):
    """An array that several structs of a message share, so that it is encoded once.

    Do not change it after it is created.
    """

    __slots__ = ("encoded",)

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__(items)
        self.encoded: dict[Writer, bytes] = {}
        """The encoded array by writer, because each version has its own encoding."""


class Encoded(list[bytes]):
    """An array of items that a function of `compile_item_writer` has already encoded."""


def compile_writer(structure: Structure) -> Callable[[Any], bytes]:
    """Compile a function that encodes a mapping or an entity."""
    write = _entity_writer(structure)

    def write_whole(value: Any) -> bytes:
        out = bytearray()
        write(out, value)
        return bytes(out)

    return write_whole


def compile_item_writer(structure: Structure, path: Sequence[str]) -> Callable[[Any], bytes]:
    """Compile a function that encodes one item of the array at `path`.

    A caller that encodes a long response item by item can yield to other tasks in between.
    """
    for name in path:
        field = next(each for each in structure.plain if each.name == name)
        assert field.is_array, f"{name} is no array"
        assert field.of is not None, f"{name} is no array of structs"
        structure = field.of
    return compile_writer(structure)


def compile_steps_writer(
    structure: Structure,
) -> Callable[[Any], Generator[None, None, bytes] | None]:
    """Compile a function that returns None for a mapping without an array of more than LONG_ARRAY structs.

    For another mapping it returns a generator that encodes the mapping, yields after every few items, so that its
    caller can let other tasks run, and returns the bytes.
    """
    write, arrays = compile_writer(structure), _struct_arrays(structure)

    def write_whole(value: Any) -> Generator[None, None, bytes] | None:
        return write_steps(value) if arrays and _is_long(value, arrays) else None

    def write_steps(value: Any) -> Generator[None, None, bytes]:
        return write((yield from _with_encoded_arrays(value, arrays)))

    return write_whole


@value_class
class _StructArray:
    """An array of structs of a message: its name, the writer of one item, and the arrays of an item."""

    name: str
    write: Callable[[Any], bytes]
    nested: Sequence[_StructArray]


def _struct_arrays(structure: Structure) -> Sequence[_StructArray]:
    return [
        _StructArray(field.name, compile_writer(field.of), _struct_arrays(field.of))
        for field in structure.plain
        if field.is_array and field.of is not None
    ]


def _is_long(value: Any, arrays: Sequence[_StructArray]) -> bool:
    if type(value) is not dict:
        return False
    for array in arrays:
        items = value.get(array.name)
        if type(items) is not list:
            continue
        if len(items) > LONG_ARRAY:
            return True
        nested = array.nested
        if nested and any(_is_long(item, nested) for item in items):
            return True
    return False


def _with_encoded_arrays(
    value: Any, arrays: Sequence[_StructArray]
) -> Generator[None, None, dict[str, Any]]:
    """Copy of a mapping in which the arrays of structs are `Encoded`."""
    encoded: dict[str, Any] = {}
    for array in arrays:
        items = value.get(array.name)
        if type(items) is not list:
            continue
        encoded[array.name] = written = Encoded()
        for item in items:
            if _is_long(item, array.nested):
                item = yield from _with_encoded_arrays(item, array.nested)
            written.append(array.write(item))
            if not len(written) % ITEMS_PER_STEP:
                yield
    return {**value, **encoded}


def _entity_writer(structure: Structure) -> Writer:
    entity_type = structure.entity_type
    steps = _steps(structure)
    write_tags = _tags_writer(structure)
    names = frozenset(structure.names) | {name for name, _ in structure.absent}
    passed_over: set[str] = set()
    defaults = [(f.name, _default(f)) for f in (*structure.plain, *structure.tagged)]
    get_attributes = _attributes_getter(structure.names)

    def write(out: bytearray, value: Any) -> None:
        kind = type(value)
        if kind is dict or (kind is not entity_type and isinstance(value, Mapping)):
            get = value.get
            items: Sequence[Any] = [get(name, default) for name, default in defaults]
            if not value.keys() <= names:
                _check_names(value.keys() - names, passed_over, structure)
        else:
            items = get_attributes(value)
        for write_some, which in steps:
            write_some(out, items[which])
        if write_tags is not None:
            write_tags(out, items)

    return write


def _check_names(unknown: set[str], passed_over: set[str], structure: Structure) -> None:
    """Add names of other versions to `passed_over`. Raises KeyError for names that no version has."""
    unknown -= passed_over
    if not unknown:
        return
    nowhere = structure.unknown_names(set(unknown))
    if nowhere:
        raise KeyError(f"{structure.entity_type.__name__} has no {', '.join(sorted(nowhere))}")
    passed_over |= unknown


def _attributes_getter(names: tuple[str, ...]) -> Callable[[Any], Sequence[Any]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda entity: [getattr(entity, name) for name in names]


def _default(field: FieldPlan) -> Any:
    """Value that is written for an omitted field. {} is a struct of defaults."""
    return {} if field.default is MISSING else field.default


def _steps(structure: Structure) -> list[Step]:
    """Writers of the untagged fields; adjacent fields of fixed size have one writer."""
    steps: list[Step] = []
    run: list[FieldPlan] = []
    for index, field in enumerate(structure.plain):
        if field.fixed_format is not None:
            run.append(field)
            continue
        if run:
            steps.append(_run_step(run, index))
            run = []
        steps.append((_field_writer(field, structure.flexible), index))
    if run:
        steps.append(_run_step(run, len(structure.plain)))
    return steps


def _run_step(run: list[FieldPlan], end: int) -> Step:
    if len(run) == 1:
        return _primitive_writer(run[0]), end - 1
    pack = struct.Struct(">" + "".join(field.fixed_format or "" for field in run)).pack
    converters = [(i, c) for i, field in enumerate(run) if (c := _CONVERTERS.get(field.kind))]

    def write(out: bytearray, values: Sequence[Any]) -> None:
        out += pack(*values)

    def write_converted(out: bytearray, values: Sequence[Any]) -> None:
        raw = list(values)
        for index, convert in converters:
            raw[index] = convert(raw[index])
        out += pack(*raw)

    return write_converted if converters else write, slice(end - len(run), end)


def _tags_writer(structure: Structure) -> Writer | None:
    """Returns a writer of the section of tagged fields, which omits fields with their default."""
    if not structure.flexible:
        return None
    if not structure.tagged:
        return lambda out, _items: out.append(0)
    first = len(structure.plain)
    fields = []
    for index, field in enumerate(structure.tagged, first):
        write = _field_writer(field, True)
        default = bytearray()
        write(default, _default(field))
        fields.append((index, field.tag or 0, write, field.default, default, field.nullable))

    def write_tags(out: bytearray, items: Sequence[Any]) -> None:
        count = 0
        section = bytearray()
        for index, tag, write, default, default_bytes, nullable in fields:
            value = items[index]
            if value is default or (value is None and not nullable):
                continue
            encoded = bytearray()
            write(encoded, value)
            if encoded == default_bytes:
                continue
            count += 1
            append_uvarint(section, tag)
            append_uvarint(section, len(encoded))
            section += encoded
        append_uvarint(out, count)
        out += section

    return write_tags


def _field_writer(field: FieldPlan, flexible: bool) -> Writer:
    if field.is_array:
        return _array_writer(field, flexible)
    if field.kind == "struct":
        assert field.of is not None
        write = _entity_writer(field.of)
        return _nullable_struct(write, field.tag is not None) if field.nullable else write
    if field.kind in PRIMITIVES:
        return _primitive_writer(field)
    if field.kind != "string":
        return _bytes_writer(field, flexible)
    write = _string_writer(field, flexible)
    return _error_message_writer(write) if field.name.endswith("error_message") else write


def _primitive_writer(field: FieldPlan) -> Writer:
    pack = struct.Struct(">" + PRIMITIVES[field.kind][0]).pack
    convert = _CONVERTERS.get(field.kind)

    def write(out: bytearray, value: Any) -> None:
        out += pack(value if convert is None else convert(value))

    return write


def _nullable_struct(write: Writer, tagged: bool) -> Writer:
    """Returns a writer of a nullable struct, after a byte 1; null is -1, or 0 in a tagged field (KIP-893)."""
    null = 0 if tagged else 0xFF

    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(null)
        else:
            out.append(1)
            write(out, value)

    return write_nullable


def _string_writer(field: FieldPlan, flexible: bool) -> Writer:
    write_length = _append_compact_length if flexible else _append_int16
    name, nullable = field.name, field.nullable

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            if not nullable:
                raise TypeError(f"{name} is not nullable")
            write_length(out, -1)
            return
        data = value.encode()
        if flexible and len(data) < 0x7F:
            out.append(len(data) + 1)
        elif len(data) > MAX_STRING_BYTES:  # no client reads a longer compact string
            raise struct.error(f"{name} has {len(data)} bytes, more than a string")
        else:
            write_length(out, len(data))
        out += data

    return write


def _error_message_writer(write: Writer) -> Writer:
    def write_message(out: bytearray, value: Any) -> None:
        write(out, value and cut_error_message(value))

    return write_message


def _bytes_writer(field: FieldPlan, flexible: bool) -> Writer:
    write_length = _append_compact_length if flexible else _append_int32
    name, nullable = field.name, field.nullable

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            if not nullable:
                raise TypeError(f"{name} is not nullable")
            write_length(out, -1)
            return
        write_length(out, len(value))
        out += value

    return write


def _array_writer(field: FieldPlan, flexible: bool) -> Writer:
    write_length = _append_compact_length if flexible else _append_int32
    name, nullable = field.name, field.nullable
    element = FieldPlan(name=name, kind=field.kind, default=None, of=field.of)
    code = PRIMITIVES.get(field.kind, ("", None))[0]
    convert = _CONVERTERS.get(field.kind)
    write_element = _field_writer(element, flexible)
    pack = struct.pack

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            if not nullable:
                raise TypeError(f"{name} is not nullable")
            write_length(out, -1)
        elif type(value) is Repeated:
            encoded = value.encoded.get(write_items)
            if encoded is None:
                once = bytearray()
                write_items(once, value)
                encoded = value.encoded[write_items] = bytes(once)
            out += encoded
        elif type(value) is Encoded:
            write_count(out, len(value))
            out += b"".join(value)
        else:
            write_items(out, value)

    def write_count(out: bytearray, count: int) -> None:
        if flexible and count < 0x7F:
            out.append(count + 1)
        else:
            write_length(out, count)

    def write_items(out: bytearray, value: Any) -> None:
        count = len(value)
        if flexible and count < 0x7F:  # `write_count` inlined
            out.append(count + 1)
        else:
            write_length(out, count)
        if code and convert is None:
            out += pack(f">{count}{code}", *value)
        else:
            for item in value:
                write_element(out, item)

    return write


def _append_compact_length(out: bytearray, length: int) -> None:
    if length < 0x7F:
        out.append(length + 1)
    else:
        append_uvarint(out, length + 1)


def _append_int16(out: bytearray, length: int) -> None:
    out += struct.pack(">h", length)


def _append_int32(out: bytearray, length: int) -> None:
    out += struct.pack(">i", length)


_ZERO_UUID = bytes(16)
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _uuid(value: UUID | None) -> bytes:
    return _ZERO_UUID if value is None else value.bytes


def _milliseconds(value: timedelta | int) -> int:
    return value // _MILLISECOND if isinstance(value, timedelta) else value


def _timestamp(value: datetime | int | None) -> int:
    if value is None:
        return -1
    return (value - _EPOCH) // _MILLISECOND if isinstance(value, datetime) else value


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "uuid": _uuid,
    "timedelta_i32": _milliseconds,
    "timedelta_i64": _milliseconds,
    "datetime_i64": _timestamp,
}
