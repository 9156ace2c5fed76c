"""Telling how far a job is: one line that is written anew on a terminal, rows of JSON on request.

Progress goes to stderr and results to stdout; with `--json` all of it goes to stdout, one object a line.
"""

from __future__ import annotations

import json
import sys
from typing import Self, TextIO

from odradek.pipeline.jobs.progress import JobProgress

CLEAR = "\r\x1b[K"


class ProgressReporter:
    """See the module. `what` are the things that progress counts. Whoever leaves it, by an error too, leaves no line
    that is not ended."""

    def __init__(
        self,
        what: str,
        *,
        as_json: bool,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self._what = what
        self._as_json = as_json
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end_line()

    def progress(self, progress: JobProgress) -> None:
        """Of a moment. Where nobody watches, only rows of JSON are written."""
        if self._as_json:
            self.row({"progress": progress.row()})
        elif self._err.isatty():
            self._err.write(CLEAR + progress.said(self._what))
            self._err.flush()
            self._is_open = True

    def line(self, text: str) -> None:
        """Something that stays; nothing where rows are written."""
        if not self._as_json:
            self.end_line()
            self._err.write(text + "\n")
            self._err.flush()

    def row(self, row: dict[str, object]) -> None:
        """Where rows are asked for."""
        if self._as_json:
            self._out.write(json.dumps(row) + "\n")
            self._out.flush()

    def result(self, text: str) -> None:
        """What came of it, for people."""
        if not self._as_json:
            self.end_line()
            self._out.write(text + "\n")
            self._out.flush()

    def end_line(self) -> None:
        """Before others write there."""
        if self._is_open:
            self._err.write(CLEAR)
            self._err.flush()
            self._is_open = False
