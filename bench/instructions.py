"""Counts the instructions of the request path and compares them with stored counts.

Times vary by about 10% from run to run; instruction counts are nearly constant. `hot_path.py` runs under valgrind's
callgrind, which dumps its counts at each mark. The difference between the phases of 2N and of N operations, divided
by N, is the count per operation, without the fixed cost of a phase.

Counts are stored per minor version of the interpreter and per architecture.
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
    """valgrind is not installed, or `hot_path.py` failed; see the text."""


@dataclass(frozen=True)
class Difference:
    """The new count and the stored count of a case; None if the case has no such count."""

    case: str
    stored: int | None
    counted: int | None

    @property
    def part(self) -> float | None:
        """Return the relative growth (0.05 is 5%)."""
        return self.counted / self.stored - 1 if self.stored and self.counted is not None else None

    @property
    def is_off(self) -> bool:
        return self.part is None or abs(self.part) > TOLERANCE


def interpreter() -> str:
    """Return the key of the stored counts, such as 'CPython 3.11 x86_64'."""
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
    """Return the instructions per operation of each case.

    Every second dump is that of a phase. The last two phases of a case have N and 2N operations.
    """
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
    """Load the stored counts by interpreter; empty if the file does not exist."""
    if not path.exists():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    if document.get("schema") != SCHEMA:
        raise CannotCount(f"{path} does not have schema {SCHEMA}")
    counts: dict[str, dict[str, int]] = document["instructions"]
    return counts


def store(counts: Mapping[str, int], path: Path = STORED) -> None:
    """Store the counts of this interpreter; those of other interpreters are kept."""
    document = {
        "schema": SCHEMA,
        "unit": "instructions an operation, in user space",
        "instructions": {**load(path), interpreter(): dict(counts)},
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def differences(counts: Mapping[str, int], stored: Mapping[str, int]) -> list[Difference]:
    cases = dict.fromkeys((*counts, *stored))
    return [Difference(case, stored.get(case), counts.get(case)) for case in cases]
