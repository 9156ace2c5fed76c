"""Rows for people: columns as wide as what is in them, numbers on the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def table_lines(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """`None` is shown as a dash, an int with its thousands apart."""
    is_number = [any(isinstance(row[n], (int, float)) for row in rows) for n in range(len(head))]
    cells = [head, *([_shown(each) for each in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        columns = zip(row, widths, is_number, strict=True)
        yield "  ".join(
            cell.rjust(width) if right else cell.ljust(width) for cell, width, right in columns
        ).rstrip()


def in_bytes(size: float | None) -> str | None:
    """About: 1.5 GiB."""
    if size is None:
        return None
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return None


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
