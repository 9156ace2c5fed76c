"""Many seeds, in several processes (`worker.py`): they are started here, and what they tell read.

Each process has the same hash seed, so that a seed is the same run in all of them, and alone.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HASH_SEED = "0"
WORKER = [sys.executable, "-m", "odradek.testing.simulation.worker"]


@dataclass
class Summary:
    """What came of many runs."""

    runs: int = 0
    failed: list[int] = field(default_factory=list)
    """Seeds."""
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    messages: int = 0
    """Sent over virtual networks."""
    disk_calls: int = 0
    starts_cpu_s: list[float] = field(default_factory=list)
    healed_s: tuple[float, int] = (0.0, -1)
    """The longest (virtual) time until a world was whole again, and its seed."""
    answered_s: tuple[float, int] = (0.0, -1)
    """As long as a client had to wait when all was healed, and the seed."""
    done: Counter[str] = field(default_factory=Counter)
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, row: dict[str, Any]) -> None:
        self.runs += 1
        self.virtual_s += row["virtual_s"]
        self.cpu_s += row["cpu_s"]
        self.messages += row["messages"]
        self.disk_calls += row["disk_calls"]
        self.starts_cpu_s.append(row["starts_cpu_s"])
        self.healed_s = max(self.healed_s, (row["healed_s"], row["seed"]))
        self.answered_s = max(self.answered_s, (row["answered_s"], row["seed"]))
        self.done.update(row["done"])
        self.coverage.update({(kind, state): count for kind, state, count in row["coverage"]})
        if row["anomalies"]:
            self.failed.append(row["seed"])

    def figures(self, seconds: float) -> str:
        """Of all runs so far, which took so long."""
        return (
            f"{self.runs} runs, {len(self.failed)} with anomalies, in {seconds:.0f} s: "
            f"{self.virtual_s / 3600:.1f} virtual hours, "
            f"{self.virtual_s / seconds:.0f} virtual seconds a second, "
            f"{self.cpu_s / max(self.runs, 1):.2f} s of CPU a run"
        )

    def more_figures(self) -> str:
        """What else is to be known when all are over."""
        cpu_s = self.cpu_s or math.inf
        starts = sorted(self.starts_cpu_s) or [0.0]
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.done.items()))
        return (
            f"{(self.messages + self.disk_calls) / cpu_s:.0f} events a second of CPU: "
            f"{self.messages} messages sent, {self.disk_calls} calls of disks\n"
            f"a world's start takes {1000 * starts[len(starts) // 2]:.0f} ms of CPU at the median\n"
            f"healed within {self.healed_s[0]:.2f} virtual s (seed {self.healed_s[1]}), "
            f"answered within {self.answered_s[0]:.2f} s then (seed {self.answered_s[1]})\n"
            f"{done}"
        )

    def table(self) -> str:
        """Which faults met which states."""
        states = sorted({state for _, state in self.coverage})
        kinds = sorted({kind for kind, _ in self.coverage})
        width = max(map(len, kinds), default=0)
        lines = [f"{'':{width}}  " + "  ".join(states)]
        for kind in kinds:
            counts = "  ".join(f"{self.coverage[kind, each]:{len(each)}}" for each in states)
            lines.append(f"{kind:{width}}  {counts}")
        return "\n".join(lines)


def run_many(
    seeds: Sequence[int],
    *,
    nodes: int,
    jobs: int,
    keep: Path | None,
    tiered: bool = False,
) -> Iterator[dict[str, Any]]:
    """The rows of all seeds, as they come."""
    environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
    command = [*WORKER, str(keep or ""), str(nodes), "tiered" * tiered]
    workers = [
        _Worker(command, environment, list(seeds[number::jobs]))
        for number in range(jobs)
        if seeds[number::jobs]
    ]
    try:
        while any(worker.left for worker in workers):  # they take about the same time
            for worker in workers:
                if worker.left:
                    yield worker.row()
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process, and the next one where that ended before its seeds."""

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
        """Of the next seed; one that took its process with it is an anomaly."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            if self._process.wait() == 0:  # it was stuck, and has told of it
                self._start()
                return self.row()
            why = f"broke: the process ended with {self._process.returncode}"
            row = {**NOTHING, "seed": self.left.pop(0), "anomalies": [why]}
            if self.left:
                self._start()
            return row
        self.left.pop(0)
        row = json.loads(line)
        return dict(row)

    def end(self) -> None:
        """Whatever it does."""
        self._process.kill()
        self._process.wait()


NOTHING: dict[str, Any] = {
    **dict.fromkeys(("virtual_s", "cpu_s", "starts_cpu_s", "healed_s", "answered_s"), 0.0),
    **dict.fromkeys(("messages", "disk_calls"), 0),
    "done": {},
    "coverage": [],
}
