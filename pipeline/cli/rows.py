"""Rows of a table as plain values, for JSON and for people.

Times are text in UTC, wherever the job runs, and of any year: whose producer took microseconds for milliseconds has
records of the year 55840. Bytes are text where they are UTF-8, else 0x…, and numbers that JSON has no word
for are text, too.
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_EPOCH = datetime(1970, 1, 1)
_DAY_US = 86_400_000_000
_CYCLE_US = 146_097 * _DAY_US
"""400 years: then the calendar is the same again."""
_WORDS = {math.inf: "Infinity", -math.inf: "-Infinity"}
"""As Spark's own JSON has them."""


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """All of them, in the driver's memory. Raises what Spark raises."""
    return plain_rows(frame.toArrow())


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """See the module."""
    import pyarrow as pa

    kinds = {field.name: field.type for field in table.schema}
    numbered = pa.schema([pa.field(name, _numbered(kind)) for name, kind in kinds.items()])
    return [
        {name: _plain(value, kinds[name]) for name, value in row.items()}
        for row in table.cast(numbered).to_pylist()
    ]


def time_text(us: int, zone: str = "Z") -> str:
    """ISO 8601, of microseconds since 1970. Years that have not four digits have a sign, as it wants."""
    cycles, rest = divmod(us, _CYCLE_US)
    at = _EPOCH + timedelta(microseconds=rest)
    year = at.year + 400 * cycles
    digits = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+06d}"
    return f"{digits}{at.isoformat()[4:]}{zone}"


def short_time(text: str, to: Literal["minutes", "seconds"]) -> str:
    """For people: such a text's day and time, no finer than that."""
    day, _, time = text.partition("T")
    return f"{day} {time[:5] if to == 'minutes' else time[:8]}"


def _numbered(kind: pa.DataType) -> pa.DataType:
    """With numbers in place of times: Python's know no year above 9999."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _numbered(each.type)) for each in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(_numbered(kind.key_type), _numbered(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_numbered(kind.value_type))
    return kind


def _plain(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa

    if value is None or isinstance(value, (bool, str)):
        return value
    if pa.types.is_timestamp(kind):
        return time_text(value, "Z" if kind.tz else "")
    if pa.types.is_date32(kind):
        return time_text(value * _DAY_US, "").partition("T")[0]
    if pa.types.is_struct(kind):
        return {each.name: _plain(value[each.name], each.type) for each in kind.fields}
    if pa.types.is_map(kind):
        items = ((_plain(key, kind.key_type), _plain(item, kind.item_type)) for key, item in value)
        return {key if isinstance(key, str) else json.dumps(key): item for key, item in items}
    if pa.types.is_list(kind):
        return [_plain(each, kind.value_type) for each in value]
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _WORDS.get(value, "NaN")
    return value if isinstance(value, int) else str(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
