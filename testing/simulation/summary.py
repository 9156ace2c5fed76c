"""The summary of many runs; that of a resumable run is saved in a file.

All seeds of a resumable run must use the same code, or their results cannot be compared. The file
has a digest of all simulated code, and a run with another digest does not continue it.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import trio

ROOT = Path(__file__).parents[2]
SIMULATED = ("seams", "protocol", "client", "storage", "replication", "broker", "testing")


class MismatchedRun(Exception):
    """The run in the file cannot be continued; the text gives the reason."""


@dataclass
class Summary:
    runs: int = 0
    failed: list[int] = field(default_factory=list)
    """The seeds of failed runs."""
    seconds: float = 0.0
    """Elapsed real time without pauses."""
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    messages: int = 0
    """Messages sent over virtual networks."""
    disk_calls: int = 0
    starts_cpu_ms: Counter[int] = field(default_factory=Counter)
    """A histogram of the CPU time until all nodes of a cluster served, in ms."""
    healed_s: tuple[float, int] = (0.0, -1)
    """The longest virtual time until a cluster was in sync again, and its seed."""
    responded_s: tuple[float, int] = (0.0, -1)
    """The longest virtual wait of a client after recovery, and its seed."""
    done: Counter[str] = field(default_factory=Counter)
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, row: dict[str, Any]) -> None:
        self.runs += 1
        self.virtual_s += row["virtual_s"]
        self.cpu_s += row["cpu_s"]
        self.messages += row["messages"]
        self.disk_calls += row["disk_calls"]
        self.starts_cpu_ms[round(1000 * row["starts_cpu_s"])] += 1
        self.healed_s = max(self.healed_s, (row["healed_s"], row["seed"]))
        self.responded_s = max(self.responded_s, (row["responded_s"], row["seed"]))
        self.done.update(row["done"])
        self.coverage.update({(kind, state): count for kind, state, count in row["coverage"]})
        if row["anomalies"]:
            self.failed.append(row["seed"])

    def figures(self) -> str:
        """Format the figures of all runs so far."""
        return (
            f"{self.runs} runs, {len(self.failed)} with anomalies, in {self.seconds:.0f} s: "
            f"{self.virtual_s / 3600:.1f} virtual hours, "
            f"{self.virtual_s / (self.seconds or math.inf):.0f} virtual seconds a second, "
            f"{self.cpu_s / max(self.runs, 1):.2f} s of CPU a run"
        )

    def more_figures(self) -> str:
        """Format the additional figures at the end of a run."""
        cpu_s = self.cpu_s or math.inf
        starts = sorted(self.starts_cpu_ms.elements()) or [0]
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.done.items()))
        return (
            f"{(self.messages + self.disk_calls) / cpu_s:.0f} events a second of CPU: "
            f"{self.messages} messages sent, {self.disk_calls} calls of disks\n"
            f"a cluster's start takes {starts[len(starts) // 2]} ms of CPU at the median\n"
            f"recovered within {self.healed_s[0]:.2f} virtual s (seed {self.healed_s[1]}), "
            f"then responded within {self.responded_s[0]:.2f} s (seed {self.responded_s[1]})\n"
            f"{done}"
        )

    def table(self) -> str:
        """Format how often each fault occurred in each node state."""
        states = sorted({state for _, state in self.coverage})
        kinds = sorted({kind for kind, _ in self.coverage})
        width = max(map(len, kinds), default=0)
        lines = [f"{'':{width}}  " + "  ".join(states)]
        for kind in kinds:
            counts = "  ".join(f"{self.coverage[kind, each]:{len(each)}}" for each in states)
            lines.append(f"{kind:{width}}  {counts}")
        return "\n".join(lines)


def save_progress(path: Path, summary: Summary, **run: Any) -> None:
    """Save the progress of a run of this code; `run` identifies it."""
    content = {
        "code": digest_of_code(),
        **run,
        **vars(summary),
        "starts_cpu_ms": sorted(summary.starts_cpu_ms.items()),
        "coverage": [(*which, count) for which, count in sorted(summary.coverage.items())],
    }
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(content, indent=1) + "\n")
    fresh.replace(path)


def load_progress(path: Path, **run: Any) -> Summary:
    """Load the progress of a run, or a new summary without a file. Raises MismatchedRun."""
    digest = digest_of_code()
    if not path.exists():
        return Summary()
    try:
        content = json.loads(path.read_text())
        code, known = content.pop("code"), {name: content.pop(name) for name in run}
        if known != run:
            raise MismatchedRun(f"{path} is of another run: {known}")
        if code != digest:
            raise MismatchedRun(f"{path} is of other code: remove it to start from the first seed")
        return Summary(
            **content
            | {
                "starts_cpu_ms": Counter(dict(content["starts_cpu_ms"])),
                "healed_s": tuple(content["healed_s"]),
                "responded_s": tuple(content["responded_s"]),
                "done": Counter(content["done"]),
                "coverage": Counter(
                    {(kind, state): count for kind, state, count in content["coverage"]}
                ),
            }
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MismatchedRun(f"{path} is not a progress file: {error!r}") from None


@cache
def digest_of_code() -> str:
    """Digest of the simulated code and of its interpreter and scheduler."""
    digest = sha256(f"{sys.version} {trio.__version__}".encode())
    for layer in SIMULATED:
        for path in sorted((ROOT / layer).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
