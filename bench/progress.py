"""Shows the progress of a run on a terminal: one line for the current measurement, and a table per workload.

Progress goes to stderr and tables to stdout, so that the tables can be redirected. Without a terminal, the end of
each run is a line.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from odradek.bench.model import Peer, Workload
from odradek.bench.results_file import Failure, Results, Sample, SampleState, WorkloadResults
from odradek.bench.summary import workload_lines

CLEAR_LINE = "\r\x1b[K"


class TerminalProgress:
    """`runner.RunProgress` on a terminal or on files."""

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        runs: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the progress of `runs` runs, not counting repeats."""
        self._out = out
        self._err = err
        self._live = err.isatty()
        self._runs = runs
        self._turns: set[tuple[str, str, int]] = set()
        self._clock = clock
        self._began = clock()

    def doing(self, what: str) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._err.write(CLEAR_LINE + f"{self._where()} {what} …"[:width])
            self._err.flush()

    def ran(self, workload: Workload, peer: Peer, end: Sample | Failure) -> None:
        self._turns.add((workload.name, peer.name, end.round))  # a repeat is the same turn
        if isinstance(end, Failure):
            self._print(f"{workload.name} on {peer.name} FAILED: {end.reason}")
        elif end.state is SampleState.DISTURBED:
            self._print(
                f"{workload.name} on {peer.name}: others used {end.others_cores:.0%} of a core"
            )
        elif not self._live:
            self._print(f"{workload.name} on {peer.name}: {end.seconds:.1f} s")

    def measured(self, workload: WorkloadResults, results: Results) -> None:
        self.clear()
        for line in workload_lines(results, workload):
            self._out.write(line + "\n")
        self._out.write("\n")
        self._out.flush()

    def clear(self) -> None:
        """Clear the status line."""
        if self._live:
            self._err.write(CLEAR_LINE)
            self._err.flush()

    def _print(self, what: str) -> None:
        self.clear()
        self._err.write(f"{self._where()} {what}\n")
        self._err.flush()

    def _where(self) -> str:
        ended, passed = len(self._turns), self._clock() - self._began
        left = ""
        if 0 < ended < self._runs:
            left = f", about {passed / ended * (self._runs - ended) / 60:.0f} min left"
        return f"[{ended}/{self._runs}{left}]"
