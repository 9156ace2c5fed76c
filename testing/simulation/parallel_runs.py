"""Runs many seeds in several processes (`worker.py`), and reads their results.

All processes have the same hash seed, so that a seed gives the same run in each of them, and alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HASH_SEED = "0"
WORKER = [sys.executable, "-m", "odradek.testing.simulation.worker"]


def run_many(
    seeds: Sequence[int],
    *,
    nodes: int,
    jobs: int,
    keep: Path | None,
    tiered: bool = False,
    disables_tiering: bool = False,
    diskless: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the results of all seeds, in order."""
    environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
    world = "tiered" * tiered, "disables tiering" * disables_tiering, "diskless" * diskless
    command = [*WORKER, str(keep or ""), str(nodes), *world]
    workers = [
        _Worker(command, environment, list(seeds[number::jobs]))
        for number in range(jobs)
        if seeds[number::jobs]
    ]
    try:
        while any(worker.left for worker in workers):  # the workers take about the same time
            for worker in workers:
                if worker.left:
                    yield worker.row()
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A worker process, which is restarted if it ends before its seeds are done."""

    def __init__(self, command: list[str], environment: dict[str, str], seeds: list[int]) -> None:
        self.left = seeds
        self._command = command
        self._environment = environment
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [*self._command, *map(str, self.left)],
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        )

    def row(self) -> dict[str, Any]:
        """The result of the next seed; a seed that ended the process is an anomaly."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            if self._process.wait() == 0:  # the watchdog has reported the seed and ended it
                self._start()
                return self.row()
            why = f"exception: the process ended with {self._process.returncode}"
            row = {**EMPTY_ROW, "seed": self.left.pop(0), "anomalies": [why]}
            if self.left:
                self._start()
            return row
        self.left.pop(0)
        row = json.loads(line)
        return dict(row)

    def end(self) -> None:
        """Kill the process, and wait until it has ended."""
        self._process.kill()
        self._process.wait()


EMPTY_ROW: dict[str, Any] = {
    **dict.fromkeys(("virtual_s", "cpu_s", "starts_cpu_s", "healed_s", "responded_s"), 0.0),
    **dict.fromkeys(("messages", "disk_calls"), 0),
    "done": {},
    "coverage": [],
}
