"""Values that are JSON, as columns: what a task makes of them with `valueFormat=json`.

Spark is handed the fields that its query has in the schema, and nothing is made of any other. Types are those of
JSON, and no text is taken for a number. A value that is no JSON object is null; a field that is of
another type than its column is null, and the others are not. Either is said to be wrong, in a column of its own.
"""

from __future__ import annotations

from itertools import pairwise, starmap
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from odradek.pipeline.decoding.schema import VALUE, VALUE_ERROR

_PLAIN: dict[pa.DataType, Any] = {
    pa.string(): str,
    pa.bool_(): bool,
    pa.float32(): float,
    pa.float64(): float,
    **{
        pa.type_for_alias(f"int{bits}"): Annotated[
            int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)
        ]
        for bits in (8, 16, 32, 64)
    },
}
_WRONG = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class JsonColumns:
    """Of values as that type, a struct."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._part = _Part(kind)

    def in_place_of_values(self, table: pa.RecordBatch) -> pa.RecordBatch:
        """With the columns as `value`, and `valueError`."""
        columns, errors = self.of(table[VALUE])
        table = table.set_column(table.schema.get_field_index(VALUE), VALUE, columns)
        return table.append_column(VALUE_ERROR, errors)

    def of(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The columns of binary values, and what is wrong with each; both are null where the value is."""
        decode = self._part.decode
        made, wrong = [], {}
        for number, value in enumerate(_each(values)):
            try:
                made.append(decode(value))
            except _WRONG as error:
                found, fits = self._part.as_far_as_it_fits(value)
                made.append(found)
                if not fits and values[number].is_valid:
                    wrong[number] = str(error)
        errors = [wrong.get(n) for n in range(len(made))] if wrong else pa.nulls(len(made))
        return pa.array(made, self._kind), pa.array(errors, pa.string())


class _Part:
    """Of a value: the whole, or a field."""

    def __init__(self, kind: pa.DataType) -> None:
        self.decode = msgspec.json.Decoder(_python_type(kind)).decode
        self._is_text = pa.types.is_string(kind)
        is_struct = pa.types.is_struct(kind)
        self._parts = {each.name: _Part(each.type) for each in kind} if is_struct else {}

    def as_far_as_it_fits(self, given: Any) -> tuple[Any, bool]:
        """What it comes to, and whether that is all of it."""
        try:
            return self.decode(given), True
        except _WRONG:
            if self._is_text:
                return _as_text(bytes(given))
            if not self._parts:
                return None, False
        try:
            fields = _FIELDS.decode(given)
        except _WRONG:
            return None, False
        found = {
            name: part.as_far_as_it_fits(fields[name])
            for name, part in self._parts.items()
            if name in fields
        }
        values = {name: value for name, (value, _) in found.items()}
        return values, all(fits for _, fits in found.values())


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _as_text(given: bytes) -> tuple[str | None, bool]:
    """A string as another type is that type's JSON."""
    if given.startswith(b'"'):
        return None, False
    return given.decode(errors="replace"), True


def _python_type(kind: pa.DataType) -> Any:
    """As msgspec has it."""
    if pa.types.is_struct(kind):
        fields = {each.name: _python_type(each.type) for each in kind}
        return TypedDict("Fields", fields, total=False) | None  # type: ignore[operator]
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type)] | None  # type: ignore[misc]
    return _PLAIN[kind] | None


def _each(values: pa.Array) -> Any:
    """The bytes of each, none where it is null."""
    _, offsets, data = values.buffers()
    first, end = values.offset, values.offset + len(values) + 1
    ends = np.frombuffer(offsets, np.int32)[first:end].tolist()
    return map(memoryview(data or b"").__getitem__, starmap(slice, pairwise(ends)))
