"""Output of commands: tables, JSON and lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from odradek.seams import units

GAP = "  "


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table as `table_lines` lays it out."""
    print_lines(table_lines(columns, rows))


def table_lines(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, thousands: bool = False
) -> Iterator[str]:
    """Lay out a table. Numbers are right-aligned; None is printed as '-'.

    With `thousands`, integers have thousands separators and floats two decimals.
    """
    body = [list(row) for row in rows]
    texts = [[_number(cell) if thousands else _text(cell) for cell in row] for row in body]
    widths = [
        max([len(name), *(len(row[index]) for row in texts)]) for index, name in enumerate(columns)
    ]
    right = [
        bool(body) and all(isinstance(row[index], int | float | None) for row in body)
        for index in range(len(columns))
    ]
    for line in [list(columns), *texts]:
        cells = [
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(line, widths, right, strict=True)
        ]
        yield GAP.join(cells).rstrip()


def print_json(value: Any) -> None:
    """Print one JSON document."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")


def print_now(line: str) -> None:
    """Print a line and flush it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def human_bytes(count: int | None) -> str:
    """Format bytes: 1536 is '1.5 KiB', an unknown number is '-'."""
    return "-" if count is None or count < 0 else units.human_bytes(count)


def _text(cell: Any) -> str:
    return "-" if cell is None or cell == "" else str(cell)


def _number(cell: Any) -> str:
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return _text(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.2f}"
