"""Instruction counts of the request path, held against stored figures.

Times vary by a tenth from run to run; the number of instructions of a rehearsed request
(`hot_path.py`) hardly does. It runs under valgrind's callgrind, which dumps its counts at each mark;
the difference between the phase of 2N operations and the one of N, divided by N, is what one
operation costs: whatever a phase costs by itself cancels out.

Counts belong to an interpreter's minor version and an architecture, so figures are stored for each.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

SCHEMA = 1
TOLERANCE = 0.05
MARK = "getppid"
TIMEOUT_S = 600
STORED = Path(str(files("odradek.bench"))) / "results" / "instructions.json"
_TOTALS = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


class CannotCount(Exception):
    """There is no valgrind, or the rehearsal failed; the text says which and what to do."""


@dataclass(frozen=True)
class Difference:
    """A case's count beside the stored one (None where none is stored, or where it is no case any more)."""

    case: str
    stored: int | None
    counted: int | None

    @property
    def part(self) -> float | None:
        """By which part it grew (0.05: by a twentieth)."""
        return self.counted / self.stored - 1 if self.stored and self.counted is not None else None

    @property
    def is_off(self) -> bool:
        return self.part is None or abs(self.part) > TOLERANCE


def interpreter() -> str:
    """What counts belong to, such as 'CPython 3.11 x86_64'."""
    version = ".".join(map(str, sys.version_info[:2]))
    return f"{platform.python_implementation()} {version} {platform.machine()}"


def count() -> dict[str, int]:
    """Instructions an operation, of every case; takes a minute. Raises CannotCount."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise CannotCount("valgrind is not there (Debian: apt-get install valgrind)")
    with tempfile.TemporaryDirectory(prefix="odradek-instructions-") as directory:
        phases = _run(valgrind, Path(directory))
        return per_operation(phases, _dumps(Path(directory)))


def _run(valgrind: str, directory: Path) -> list[tuple[str, int]]:
    data = directory / "data"
    command = [
        valgrind,
        "--tool=callgrind",
        f"--dump-before={MARK}",
        f"--callgrind-out-file={directory / 'counts'}",
        sys.executable,
        "-m",
        "odradek.bench.hot_path",
        str(data),
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise CannotCount(f"the rehearsal failed: {error.stderr[-2000:]}") from None
    except subprocess.TimeoutExpired:
        raise CannotCount(f"the rehearsal took more than {TIMEOUT_S} s") from None
    return [(case, times) for case, times in json.loads(done.stdout)]


def _dumps(directory: Path) -> list[int]:
    """The totals of the dumps at the marks, in their order."""
    found = sorted(
        (int(path.suffix[1:]), path)
        for path in directory.glob("counts.*")
        if path.suffix[1:].isdecimal()
    )
    return [_total(path.read_text()) for _, path in found]


def _total(dump: str) -> int:
    match = _TOTALS.search(dump)
    if match is None:
        raise CannotCount("callgrind's dump has no totals")
    return int(match[1])


def per_operation(phases: Sequence[tuple[str, int]], dumps: Sequence[int]) -> dict[str, int]:
    """What one operation of each case costs. Between the marks lie, in turn, what is before a phase
    and the phase itself; of a case's phases the last two have N and 2N operations."""
    inside = dumps[1::2]
    if len(inside) < len(phases):
        raise CannotCount(f"{len(dumps)} dumps for {len(phases)} phases")
    costs: dict[str, list[tuple[int, int]]] = {}
    for (case, times), cost in zip(phases, inside, strict=False):
        costs.setdefault(case, []).append((times, cost))
    counts = {}
    for case, measured in costs.items():
        (fewer, less), (more, greater) = measured[-2:]
        counts[case] = round((greater - less) / (more - fewer))
    return counts


def load(path: Path = STORED) -> dict[str, dict[str, int]]:
    """Interpreter to counts; empty where nothing is stored."""
    if not path.exists():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    if document.get("schema") != SCHEMA:
        raise CannotCount(f"{path} has another schema than {SCHEMA}")
    counts: dict[str, dict[str, int]] = document["instructions"]
    return counts


def store(counts: Mapping[str, int], path: Path = STORED) -> None:
    """Store this interpreter's counts, and leave the others'."""
    document = {
        "schema": SCHEMA,
        "unit": "instructions an operation, in user space",
        "instructions": {**load(path), interpreter(): dict(counts)},
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def differences(counts: Mapping[str, int], stored: Mapping[str, int]) -> list[Difference]:
    cases = dict.fromkeys((*counts, *stored))
    return [Difference(case, stored.get(case), counts.get(case)) for case in cases]
