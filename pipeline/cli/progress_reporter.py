"""Progress output of jobs: one line that is overwritten on a terminal, or JSON rows on request.

Progress goes to stderr and results to stdout; with `--json` both go to stdout, one object per line.
"""

from __future__ import annotations

import json
import sys
from typing import Self, TextIO

from odradek.pipeline.jobs.job_progress import JobProgress

CLEAR = "\r\x1b[K"


class ProgressReporter:
    """Writes progress, messages and results of a job. `what` names the counted things, such as "records". On exit,
    also by an error, an unfinished progress line is cleared.
    """

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
        """Write the current progress. Without a terminal, only JSON rows are written."""
        if self._as_json:
            self.row({"progress": progress.row()})
        elif self._err.isatty():
            self._err.write(CLEAR + progress.text(self._what))
            self._err.flush()
            self._is_open = True

    def line(self, text: str) -> None:
        """Write a line that is not overwritten; nothing with `--json`."""
        if not self._as_json:
            self.end_line()
            self._err.write(text + "\n")
            self._err.flush()

    def row(self, row: dict[str, object]) -> None:
        """Write a JSON row; nothing without `--json`."""
        if self._as_json:
            self._out.write(json.dumps(row) + "\n")
            self._out.flush()

    def result(self, text: str) -> None:
        """Write the result as text; nothing with `--json`."""
        if not self._as_json:
            self.end_line()
            self._out.write(text + "\n")
            self._out.flush()

    def end_line(self) -> None:
        """Clear the progress line, before other output is written."""
        if self._is_open:
            self._err.write(CLEAR)
            self._err.flush()
            self._is_open = False
