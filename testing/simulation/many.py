"""Many seeds, in several processes (`worker.py`): they are started here, and what they tell read.

Each process has the same hash seed, so that a seed is the same run in all of them, and alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HASH_SEED = "0"


@dataclass
class Summary:
    """What came of many runs."""

    runs: int = 0
    failed: list[int] = field(default_factory=list)
    """Seeds."""
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    events: int = 0
    """Lines of traces."""
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, row: dict[str, Any]) -> None:
        self.runs += 1
        self.virtual_s += row["virtual_s"]
        self.cpu_s += row["cpu_s"]
        self.events += row["events"]
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
    shares = [seeds[number::jobs] for number in range(jobs)]
    environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
    command = [sys.executable, "-m", "odradek.testing.simulation.worker"]
    workers = [
        subprocess.Popen(
            [*command, str(keep or ""), str(nodes), "tiered" * tiered, *map(str, share)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for share in shares
        if share
    ]
    try:
        yield from _rows(workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    failed = [worker.returncode for worker in workers if worker.returncode]
    if failed:
        raise RuntimeError(f"a worker of the simulation ended with {failed[0]}")


def _rows(workers: Iterable[subprocess.Popen[str]]) -> Iterator[dict[str, Any]]:
    """A line of each in turn: they take about the same time."""
    waiting = list(workers)
    while waiting:
        for worker in list(waiting):
            assert worker.stdout is not None
            line = worker.stdout.readline()
            if line:
                yield json.loads(line)
            else:
                worker.wait()
                waiting.remove(worker)
