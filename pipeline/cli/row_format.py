"""Rows of a table as plain values, for JSON and for text output.

Times are text in UTC, independent of the machine's time zone. Years above 9999 are supported, because a producer
that confuses microseconds with milliseconds writes timestamps such as the year 55840. Bytes are text if they are
valid UTF-8, else 0x…. Numbers that JSON cannot represent are text.
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
"""400 years in microseconds, after which the calendar repeats."""
_WORDS = {math.inf: "Infinity", -math.inf: "-Infinity"}
"""Text of the numbers that JSON cannot represent, as in Spark's JSON."""


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Collect all rows in the driver's memory. Raises Spark's errors."""
    return plain_rows(frame.toArrow())


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Convert an Arrow table to rows of plain values."""
    import pyarrow as pa

    kinds = {field.name: field.type for field in table.schema}
    numbered = pa.schema([pa.field(name, _numbered(kind)) for name, kind in kinds.items()])
    return [
        {name: _plain(value, kinds[name]) for name, value in row.items()}
        for row in table.cast(numbered).to_pylist()
    ]


def time_text(us: int, zone: str = "Z") -> str:
    """Format microseconds since 1970 as ISO 8601. Years that do not have four digits have a sign."""
    cycles, rest = divmod(us, _CYCLE_US)
    at = _EPOCH + timedelta(microseconds=rest)
    year = at.year + 400 * cycles
    digits = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+06d}"
    return f"{digits}{at.isoformat()[4:]}{zone}"


def short_time(text: str, to: Literal["minutes", "seconds"]) -> str:
    """Shorten a time that `time_text` returned to date and time of day."""
    day, _, time = text.partition("T")
    return f"{day} {time[:5] if to == 'minutes' else time[:8]}"


def _numbered(kind: pa.DataType) -> pa.DataType:
    """Return the type with integers in place of times, because Python's datetime supports no year above 9999."""
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
