"""Readers, compiled from structures, that decode bytes to entities.

Malicious input cannot allocate unbounded memory: the count of an array must fit the remaining bytes, and the arrays of a
message have together at most `elements_max` elements. Adjacent fields of fixed size are read by one
`struct.Struct`. Records stay slices of the buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from dataclasses import MISSING
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from odradek.protocol.codec.primitives import MAX_STRING_BYTES, uuid_of
from odradek.protocol.codec.structure import FIXED_SIZES, PRIMITIVES, FieldPlan, Structure
from odradek.protocol.errors import InvalidFrame, error_code
from odradek.protocol.framing import read_tag_count, read_uvarint

MAX_ELEMENTS = 1 << 20
"""Default limit of the elements in all arrays of one message."""
ELEMENTS_PER_STEP = 64
"""Elements that `compile_steps_reader` reads between two yields."""

_Steps = Generator[None, None, Any]


class Cursor:
    """Position of a reader in the buffer, and the number of array elements that it may still create.

    `until_yield` is the number of elements until a reader in steps yields.
    """

    __slots__ = ("budget", "elements_max", "end", "position", "until_yield", "view")

    def __init__(self, view: memoryview, position: int, end: int, elements_max: int) -> None:
        self.view = view
        self.position = position
        self.end = end
        self.budget = self.elements_max = elements_max
        self.until_yield = ELEMENTS_PER_STEP


Reader = Callable[[Cursor], Any]
Convert = Callable[[Any], Any]


def compile_reader(
    structure: Structure, *, exact: bool = True, elements_max: int = MAX_ELEMENTS
) -> Callable[[memoryview, int], Any]:
    """Compile a function that reads the structure from an offset of a memoryview.

    The function raises InvalidFrame for malformed bytes and, if `exact`, for remaining bytes.
    """
    read = _entity_reader(structure)

    def read_whole(view: memoryview, offset: int = 0) -> Any:
        cursor = Cursor(view, offset, len(view), elements_max)
        try:
            entity = read(cursor)
        except (IndexError, struct.error, UnicodeDecodeError) as error:
            raise _invalid(structure, error) from None
        if exact and cursor.position != cursor.end:
            left = cursor.end - cursor.position
            raise InvalidFrame(f"{left} bytes after {structure.entity_type.__name__}")
        return entity

    return read_whole


def compile_steps_reader(
    structure: Structure, *, elements_max: int = MAX_ELEMENTS
) -> Callable[[memoryview, int], _Steps]:
    """Compile a reader like that of `compile_reader` without `exact`, as a generator that returns the entity.

    The generator yields after every ELEMENTS_PER_STEP elements of untagged arrays, so that its caller can let other
    tasks run. It is slower than the other reader.
    """
    read = _entity_steps_reader(structure)

    def read_whole(view: memoryview, offset: int = 0) -> _Steps:
        try:
            return (yield from read(Cursor(view, offset, len(view), elements_max)))
        except (IndexError, struct.error, UnicodeDecodeError) as error:
            raise _invalid(structure, error) from None

    return read_whole


def _invalid(structure: Structure, error: Exception) -> InvalidFrame:
    problem = ": not UTF-8" if isinstance(error, UnicodeDecodeError) else " is cut short"
    return InvalidFrame(f"{structure.entity_type.__name__}{problem}")


def _entity_steps_reader(structure: Structure) -> Callable[[Cursor], _Steps]:
    """Reader of an entity like `_entity_reader`, that reads arrays of strings and structs in steps."""
    entity_type, flexible = structure.entity_type, structure.flexible
    tagged, unsent = _tagged_and_unsent(structure)
    arrays = {
        _setter(entity_type, field.name): _array_steps_reader(field, flexible)
        for field in structure.plain
        if field.is_array and field.kind not in PRIMITIVES
    }
    steps = [(step, None if step[0] is None else arrays.get(step[0])) for step in _steps(structure)]

    def read(cursor: Cursor) -> _Steps:
        entity = object.__new__(entity_type)
        for set_field, default in unsent:
            set_field(entity, default)
        for (set_one, read_some), read_array in steps:
            if set_one is None:
                read_some(cursor, entity)
            elif read_array is None:
                set_one(entity, read_some(cursor))
            else:
                elements = read_array(cursor)
                set_one(entity, None if elements is None else (yield from elements))
        if flexible:
            position = cursor.position
            if cursor.view[position] == 0:
                cursor.position = position + 1
            else:
                _read_tags(cursor, tagged, entity)
        return entity

    return read


def _array_steps_reader(field: FieldPlan, flexible: bool) -> Callable[[Cursor], _Steps | None]:
    """Reader of an array that returns a generator, or None for a null array."""
    read_one = _field_reader(_element_of(field), flexible)
    read_steps = None
    if field.of is not None and any(each.is_array for each in field.of.plain):
        read_steps = _entity_steps_reader(field.of)

    def read_elements(cursor: Cursor, count: int) -> _Steps:
        elements: list[Any] = []
        while len(elements) < count:
            if read_steps is None:
                some = min(count - len(elements), cursor.until_yield)
                elements += [read_one(cursor) for _ in range(some)]
            else:
                some = 1
                elements.append((yield from read_steps(cursor)))
            cursor.until_yield -= some
            if cursor.until_yield <= 0:
                cursor.until_yield = ELEMENTS_PER_STEP
                yield
        return tuple(elements)

    return _array_reader(field, flexible, read_elements)


def _entity_reader(structure: Structure) -> Reader:
    entity_type = structure.entity_type
    steps = _steps(structure)
    tagged, unsent = _tagged_and_unsent(structure)
    flexible = structure.flexible
    new = object.__new__

    def read(cursor: Cursor) -> Any:
        entity = new(entity_type)
        for set_field, default in unsent:
            set_field(entity, default)
        for set_one, read_some in steps:
            if set_one is None:
                read_some(cursor, entity)
            else:
                set_one(entity, read_some(cursor))
        if flexible:
            position = cursor.position
            if cursor.view[position] == 0:
                cursor.position = position + 1
            else:
                _read_tags(cursor, tagged, entity)
        return entity

    return read


Set = Callable[[Any, Any], None]


def _tagged_and_unsent(
    structure: Structure,
) -> tuple[dict[int | None, tuple[str, Set, Reader]], list[tuple[Set, Any]]]:
    """Name, setter and reader of each tag; setters and defaults of the fields that may not be sent."""
    entity_type = structure.entity_type
    tagged = {
        field.tag: (field.name, _setter(entity_type, field.name), _field_reader(field, True))
        for field in structure.tagged
    }
    unsent = [(_setter(entity_type, f.name), _default_entity(f)) for f in structure.tagged]
    unsent += [(_setter(entity_type, name), default) for name, default in structure.absent]
    return tagged, unsent


def _setter(entity_type: type[Any], name: str) -> Set:
    """Returns a setter of a frozen dataclass's slot, which takes a third of the time of its `__init__`."""
    set_field: Set = getattr(entity_type, name).__set__
    return set_field


def _read_tags(
    cursor: Cursor, tagged: dict[int | None, tuple[str, Set, Reader]], entity: Any
) -> None:
    """Read a section of tagged fields. Unknown fields are skipped (KIP-482)."""
    count, position = read_tag_count(cursor.view, cursor.position)
    for _ in range(count):
        tag, position = read_uvarint(cursor.view, position)
        size, position = read_uvarint(cursor.view, position)
        after = position + size
        if after > cursor.end:
            raise InvalidFrame("cut short in a tagged field")
        known = tagged.get(tag)
        if known is not None:
            name, set_field, read = known
            cursor.position = position
            set_field(entity, read(cursor))
            if cursor.position != after:
                raise InvalidFrame(f"tagged field {name} is not of its size, {size} bytes")
        position = after
    cursor.position = position


Step = tuple[Set | None, Callable[..., Any]]
"""A setter and its reader; or None and a reader that sets several fields."""


def _steps(structure: Structure) -> list[Step]:
    """Readers of the untagged fields; adjacent fields of fixed size have one reader."""
    steps: list[Step] = []
    run: list[FieldPlan] = []
    for field in structure.plain:
        if field.fixed_format is not None:
            run.append(field)
            continue
        if run:
            steps.append(_run_step(structure.entity_type, run))
            run = []
        set_field = _setter(structure.entity_type, field.name)
        steps.append((set_field, _field_reader(field, structure.flexible)))
    if run:
        steps.append(_run_step(structure.entity_type, run))
    return steps


def _run_step(entity_type: type[Any], run: list[FieldPlan]) -> Step:
    if len(run) == 1:
        return _setter(entity_type, run[0].name), _primitive_reader(run[0])
    layout = struct.Struct(">" + "".join(field.fixed_format or "" for field in run))
    size = layout.size
    unpack = layout.unpack_from
    setters = [_setter(entity_type, field.name) for field in run]
    converters = [_converter(field) for field in run]

    def read(cursor: Cursor, entity: Any) -> None:
        position = cursor.position
        cursor.position = position + size
        for set_field, value in zip(setters, unpack(cursor.view, position), strict=True):
            set_field(entity, value)

    def read_converting(cursor: Cursor, entity: Any) -> None:
        position = cursor.position
        cursor.position = position + size
        values = unpack(cursor.view, position)
        for set_field, convert, value in zip(setters, converters, values, strict=True):
            set_field(entity, value if convert is None else convert(value))

    return None, read_converting if any(converters) else read


def _field_reader(field: FieldPlan, flexible: bool) -> Reader:
    if field.is_array:
        return _array_reader(field, flexible)
    if field.kind == "struct":
        assert field.of is not None
        read = _entity_reader(field.of)
        if not field.nullable:
            return read
        return _nullable_tagged_struct(read) if field.tag is not None else _nullable_struct(read)
    if field.kind in PRIMITIVES:
        return _primitive_reader(field)
    return _variable_reader(field, flexible)


def _primitive_reader(field: FieldPlan) -> Reader:
    layout = struct.Struct(">" + PRIMITIVES[field.kind][0])
    size = layout.size
    convert = _converter(field)

    def read(cursor: Cursor) -> Any:
        (value,) = layout.unpack_from(cursor.view, cursor.position)
        cursor.position += size
        return value if convert is None else convert(value)

    return read


def _nullable_struct(read: Reader) -> Reader:
    def read_nullable(cursor: Cursor) -> Any:
        """Read a nullable struct, which follows a byte: 1, or -1 for null (KIP-893)."""
        marker = cursor.view[cursor.position]
        cursor.position += 1
        return None if marker >= 0x80 else read(cursor)

    return read_nullable


def _nullable_tagged_struct(read: Reader) -> Reader:
    def read_nullable(cursor: Cursor) -> Any:
        """Read a nullable struct in a tagged field, which follows a varint: 1, or 0 for null."""
        marker, cursor.position = read_uvarint(cursor.view, cursor.position)
        return read(cursor) if marker else None

    return read_nullable


def _variable_reader(field: FieldPlan, flexible: bool) -> Reader:
    read_length = _length_reader(field, flexible)
    kind, nullable, name = field.kind, field.nullable, field.name

    def read(cursor: Cursor) -> Any:
        length = read_length(cursor)
        if length < 0:
            if nullable:  # any negative length is null, as in Kafka
                return None
            raise InvalidFrame(f"{name} has a length of {length}")
        start = cursor.position
        end = start + length
        if end > cursor.end:
            raise InvalidFrame(f"cut short in {name}")
        cursor.position = end
        data = cursor.view[start:end]
        if kind == "string":
            if length > MAX_STRING_BYTES:
                raise InvalidFrame(f"{name} has {length} bytes, more than a string")
            return str(data, "utf-8")
        return data if kind == "records" else bytes(data)

    return read


_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def _length_reader(field: FieldPlan, flexible: bool) -> Callable[[Cursor], int]:
    if flexible:
        return _compact_length
    layout = _INT16 if field.kind == "string" and not field.is_array else _INT32
    size = layout.size

    def read_length(cursor: Cursor) -> int:
        (length,) = layout.unpack_from(cursor.view, cursor.position)
        cursor.position += size
        return int(length)

    return read_length


def _compact_length(cursor: Cursor) -> int:
    byte = cursor.view[cursor.position]
    if byte < 0x80:
        cursor.position += 1
        return byte - 1
    length, cursor.position = read_uvarint(cursor.view, cursor.position)
    return length - 1


def _array_reader(
    field: FieldPlan, flexible: bool, read_elements: Callable[[Cursor, int], Any] | None = None
) -> Reader:
    """Reader of an array; `read_elements(cursor, count)` reads its elements, after their number is checked."""
    read_length = _length_reader(field, flexible)
    nullable, name = field.nullable, field.name
    read_elements = read_elements or _elements_reader(field, flexible)
    least = _least_bytes(field)

    def read(cursor: Cursor) -> Any:
        count = read_length(cursor)
        if count < 0:
            if nullable:
                return None
            raise InvalidFrame(f"{name} has a count of {count}")
        if count * least > cursor.end - cursor.position:
            raise InvalidFrame(f"{name} has a count of {count}, more than there are bytes for")
        cursor.budget -= count
        if cursor.budget < 0:
            raise InvalidFrame(f"more than {cursor.elements_max} array elements")
        return read_elements(cursor, count)

    return read


def _least_bytes(field: FieldPlan) -> int:
    """Minimum size of an element of an array in bytes."""
    if field.kind in PRIMITIVES:
        return FIXED_SIZES[PRIMITIVES[field.kind][0]]
    return max(field.of.min_bytes, 1) if field.of is not None else 1


def _element_of(field: FieldPlan) -> FieldPlan:
    return FieldPlan(
        name=field.name,
        kind=field.kind,
        default=None,
        of=field.of,
        nullable=field.optional_element,
    )


def _elements_reader(field: FieldPlan, flexible: bool) -> Callable[[Cursor, int], tuple[Any, ...]]:
    """A reader of `count` elements."""
    element = _element_of(field)
    code = PRIMITIVES.get(field.kind, ("", None))[0]
    convert = _converter(element)

    def read_fixed(cursor: Cursor, count: int) -> tuple[Any, ...]:
        layout = f">{count}{code}" if code != "16s" else ">" + code * count
        values = struct.unpack_from(layout, cursor.view, cursor.position)
        cursor.position += count * FIXED_SIZES[code]
        return values if convert is None else tuple(map(convert, values))

    if code:
        return read_fixed
    read = _field_reader(element, flexible)

    def read_each(cursor: Cursor, count: int) -> tuple[Any, ...]:
        return tuple([read(cursor) for _ in range(count)])

    return read_each


def _converter(field: FieldPlan) -> Convert | None:
    """The conversion from the result of `struct` to the entity's type, or None if they are the same."""
    kind = field.kind
    if kind == "uuid":
        return _uuid_or_none if field.nullable else uuid_of
    if kind == "datetime_i64":
        return _datetime_or_none if field.nullable else _datetime
    if kind == "error_code":
        return error_code
    return _timedelta if kind.startswith("timedelta") else None


_ZERO = bytes(16)


def _uuid_or_none(raw: bytes) -> UUID | None:
    return None if raw == _ZERO else uuid_of(raw)


@lru_cache(maxsize=256)
def _timedelta(milliseconds: int) -> timedelta:
    try:
        return timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise InvalidFrame(f"a duration of {milliseconds} ms") from None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _datetime(milliseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise InvalidFrame(f"a time of {milliseconds} ms") from None


def _datetime_or_none(milliseconds: int) -> datetime | None:
    return None if milliseconds == -1 else _datetime(milliseconds)


def _default_entity(field: FieldPlan) -> Any:
    """Value in the entity of a tagged field that is not sent.

    A struct without an explicit default is a struct of its fields' defaults.
    """
    if field.default is not MISSING:
        return field.default
    assert field.of is not None
    defaults = {f.name: _default_entity(f) for f in (*field.of.plain, *field.of.tagged)}
    return field.of.entity_type(**defaults)
