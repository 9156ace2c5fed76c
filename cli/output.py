"""Output of commands: tables, JSON, lines, and a progress line on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from odradek.seams import units

GAP = "  "
PROGRESS_INTERVAL_S = 0.5


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


class ProgressLine:
    """Line on stderr that is overwritten at most every `PROGRESS_INTERVAL_S`, if stderr is a terminal."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.is_shown = sys.stderr.isatty()
        self._due = 0.0
        self._started: float | None = None
        self._width = 0

    def show(self, text: str) -> None:
        now = self._monotonic()
        if self.is_shown and now >= self._due:
            self._due = now + PROGRESS_INTERVAL_S
            self._write(f"\r{text.ljust(self._width)}")
            self._width = len(text)

    def show_rate(self, segments: int, size_bytes: int) -> None:
        """Show the number of segments and bytes, and the rate since the first call."""
        now = self._monotonic()
        if self._started is None:
            self._started = now
        rate = size_bytes / max(now - self._started, 0.001)
        self.show(f"{segments} segments, {human_bytes(size_bytes)}, {human_bytes(int(rate))}/s")

    def end(self) -> None:
        if self._width:
            self._write(f"\r{' ' * self._width}\r")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
