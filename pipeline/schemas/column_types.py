"""Column types: merges the types of several schemas, and casts columns to the merged type.

A topic's schemas evolve. Their columns are merged by name, each with the widest type of any schema, with Avro's
promotions (int to long to float to double). Columns that a schema does not have are null. All columns are nullable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from odradek.pipeline.errors import PipelineError

_WIDENING = (pa.int32(), pa.int64(), pa.float32(), pa.float64())


class BadSchema(PipelineError):
    """A schema is invalid, has no column types, or is incompatible with the others."""


def nullable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as Spark supports it: nullable, signed, times in microseconds."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, nullable_type(each.type)) for each in _fields(kind)])
    if pa.types.is_map(kind):
        return pa.map_(nullable_type(kind.key_type), nullable_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(nullable_type(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_time(kind):
        return pa.int64()
    if pa.types.is_uint64(kind):
        return pa.decimal128(20, 0)
    if pa.types.is_uint32(kind):
        return pa.int64()
    return pa.string() if pa.types.is_null(kind) else kind


def levels(kind: pa.DataType) -> int:
    """Return the nesting depth as Arrow counts it: a map is a list of structs."""
    return 1 + max([levels(each.type) for each in _fields(kind)], default=-1)


def merged_type(kinds: Sequence[pa.DataType], where: str = "") -> pa.DataType:
    """Return the type for the values of all types. Raises BadSchema, with the column."""
    first = kinds[0]
    if all(each == first for each in kinds):
        return first
    if all(map(pa.types.is_struct, kinds)):
        fields: dict[str, list[pa.DataType]] = {}
        for kind in kinds:
            for each in _fields(kind):
                fields.setdefault(each.name, []).append(each.type)
        return pa.struct(
            [
                pa.field(name, merged_type(types, _below(where, name)))
                for name, types in fields.items()
            ]
        )
    if all(map(pa.types.is_map, kinds)):
        keys = merged_type([each.key_type for each in kinds], where)
        return pa.map_(keys, merged_type([each.item_type for each in kinds], where))
    if all(map(pa.types.is_list, kinds)):
        return pa.list_(merged_type([each.value_type for each in kinds], where))
    if all(each in _WIDENING for each in kinds):
        return max(kinds, key=_WIDENING.index)
    if all(map(pa.types.is_decimal, kinds)):
        scale = max(each.scale for each in kinds)
        whole = max(each.precision - each.scale for each in kinds)
        if whole + scale <= 38:
            return pa.decimal128(whole + scale, scale)
    names = ", ".join(sorted({str(each) for each in kinds}))
    raise BadSchema(
        f"{where or 'the value'} has types that cannot be merged: {names} (give the schemas to"
        " read, or a reader schema)"
    )


def cast_to_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values to the type, fields by name. Raises ValueError if a value overflows, such as a time in ms in
    microseconds; excess digits are dropped.
    """
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        given = {each.name: number for number, each in enumerate(_fields(array.type))}
        children = [
            cast_to_type(array.field(given[each.name]), each.type)
            if each.name in given
            else pa.nulls(len(array), each.type)
            for each in _fields(kind)
        ]
        return pa.StructArray.from_arrays(children, fields=_fields(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        keys, items = (
            cast_to_type(array.keys, kind.key_type),
            cast_to_type(array.items, kind.item_type),
        )
        return pa.MapArray.from_arrays(_ends(array), keys, items, type=kind, mask=array.is_null())
    if pa.types.is_list(kind):
        values = cast_to_type(array.values, kind.value_type)
        return pa.ListArray.from_arrays(_ends(array), values, type=kind, mask=array.is_null())
    return pc.cast(array, kind, safe=not _rounds(array.type, kind))


def _rounds(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a cast may round values, all of which are in range."""
    is_coarser = pa.types.is_timestamp(given) and given.unit == "ns"
    return bool(is_coarser or pa.types.is_floating(kind))


def decode_in_parts(
    values: pa.Array, decode: Callable[[pa.Array], pa.Array], kind: pa.DataType
) -> tuple[pa.Array, dict[int, str]]:
    """Decode values, all at once if they are valid. Values for which `decode` raises ValueError are found by
    bisection and are null; the errors are returned by index.
    """
    wrong: dict[int, str] = {}
    parts = list(_halved(values, 0, decode, kind, wrong))
    return (parts[0] if len(parts) == 1 else pa.concat_arrays(parts)), wrong


def _halved(
    values: pa.Array,
    first: int,
    decode: Callable[[pa.Array], pa.Array],
    kind: pa.DataType,
    wrong: dict[int, str],
) -> Iterator[pa.Array]:
    try:
        yield decode(values)
        return
    except ValueError as error:  # includes pa.ArrowInvalid
        if len(values) == 1:
            wrong[first] = str(error) or type(error).__name__
            yield pa.nulls(1, kind)
            return
    half = len(values) // 2
    yield from _halved(values[:half], first, decode, kind, wrong)
    yield from _halved(values[half:], first + half, decode, kind, wrong)


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _ends(array: Any) -> pa.Array:
    """Return the ends of a list's or map's slices as a separate array, which a mask requires."""
    return pa.array(array.offsets.to_numpy(zero_copy_only=False), pa.int32())
