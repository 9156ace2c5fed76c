"""Decodes JSON values to columns in tasks (`valueFormat=json`).

Only the fields of the query's schema are decoded. They are Python objects for some thousand records at a time:
msgspec decodes them faster than Spark's parser, and no maintained library decodes JSON that is partly invalid to
Arrow columns.

A value that is not a JSON object is null. A field whose type differs from its column is null, and the other fields
are kept. A string column has the JSON text of a value that is not a string. The reasons are in a column of their
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, starmap
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from odradek.pipeline.decoding.schema import VALUE, VALUE_ERROR

ROWS_AT_ONCE = 1 << 14
"""Maximum rows decoded at once: a batch may have tens of millions, and each becomes several Python objects."""
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

Given = memoryview | msgspec.Raw
Made = tuple[Any, str | None]
"""A decoded value, and why it is not complete."""


class JsonColumns:
    """Decodes values to a struct of this type."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._whole = _value_parser(kind)

    def replace_values(self, table: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Replace the values of a table by their columns, and add `valueError`, some rows at a time."""
        place = table.schema.get_field_index(VALUE)
        for first in range(0, table.num_rows, ROWS_AT_ONCE):
            part = table.slice(first, ROWS_AT_ONCE)
            columns, errors = self.of(part[VALUE])
            yield part.set_column(place, VALUE, columns).append_column(VALUE_ERROR, errors)

    def of(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the columns of binary values, and an error for each; both are null for null values."""
        decode = self._whole.decode
        made: list[Any] = []
        problems: dict[int, str | None] = {}
        for number, value in enumerate(_each(values)):
            if value is None:
                made.append(None)
                continue
            try:
                made.append(decode(value))
            except _WRONG as error:
                found, problems[number] = self._whole.keep_valid_part(value, "$", error)
                made.append(found)
        errors = (
            pa.array([problems.get(n) for n in range(len(made))], pa.string())
            if problems
            else pa.nulls(len(made), pa.string())
        )
        return pa.array(made, self._kind), errors


class _ValueParser:
    """Decoder of a value, a field, or an array element."""

    def __init__(self, kind: pa.DataType) -> None:
        self.decode = msgspec.json.Decoder(_python_type(kind)).decode

    def decode_valid_part(self, given: Given, where: str) -> Made:
        try:
            return self.decode(given), None
        except _WRONG as error:
            return self.keep_valid_part(given, where, error)

    def keep_valid_part(self, given: Given, where: str, error: Exception) -> Made:
        """Return what is valid of a value that `decode` rejects with `error`."""
        return None, f"{error} - at `{where}`"


class _StringParser(_ValueParser):
    def keep_valid_part(self, given: Given, where: str, error: Exception) -> Made:
        text = bytes(given)
        try:
            if not text.startswith(b'"'):
                return text.decode(), None
        except UnicodeDecodeError as undecoded:
            error = undecoded
        return None, f"{error} - at `{where}`"


class _StructParser(_ValueParser):
    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._fields = {each.name: _value_parser(each.type) for each in kind}
        raw = TypedDict("raw", dict.fromkeys(self._fields, msgspec.Raw), total=False)  # type: ignore[misc]
        self._split = msgspec.json.Decoder(raw).decode

    def keep_valid_part(self, given: Given, where: str, error: Exception) -> Made:
        try:
            fields: Any = self._split(given)
        except _WRONG as malformed:
            return None, f"{malformed} - at `{where}`"
        found, first_problem = {}, None
        for name, raw in fields.items():
            found[name], problem = self._fields[name].decode_valid_part(raw, f"{where}.{name}")
            first_problem = first_problem or problem
        return found, first_problem


class _ArrayParser(_ValueParser):
    """Partly valid elements are kept; one invalid element makes the array null."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._each = _value_parser(kind.value_type)
        self._split = msgspec.json.Decoder(list[msgspec.Raw]).decode

    def keep_valid_part(self, given: Given, where: str, error: Exception) -> Made:
        try:
            elements = self._split(given)
        except _WRONG as malformed:
            return None, f"{malformed} - at `{where}`"
        found, first_problem = [], None
        for number, raw in enumerate(elements):
            value, problem = self._each.decode_valid_part(raw, f"{where}[{number}]")
            if problem is not None and value is None:
                return None, problem
            found.append(value)
            first_problem = first_problem or problem
        return found, first_problem


def _value_parser(kind: pa.DataType) -> _ValueParser:
    if pa.types.is_struct(kind):
        return _StructParser(kind)
    if pa.types.is_list(kind):
        return _ArrayParser(kind)
    return (_StringParser if pa.types.is_string(kind) else _ValueParser)(kind)


def _python_type(kind: pa.DataType) -> Any:
    """Return the type that msgspec decodes."""
    if pa.types.is_struct(kind):
        fields = {each.name: _python_type(each.type) for each in kind}
        return TypedDict("object", fields, total=False) | None  # type: ignore[operator]
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type)] | None  # type: ignore[misc]
    return _PLAIN[kind] | None


def _each(values: pa.Array) -> Iterator[memoryview | None]:
    """Return the bytes of each value, None for null."""
    _, offsets, data = values.buffers()
    first, end = values.offset, values.offset + len(values) + 1
    ends = np.frombuffer(offsets, np.int32)[first:end].tolist()
    texts = map(memoryview(data or b"").__getitem__, starmap(slice, pairwise(ends)))
    if not values.null_count:
        return texts
    has_one = values.is_valid().to_numpy(zero_copy_only=False).tolist()
    return (text if has else None for text, has in zip(texts, has_one, strict=True))
