"""What a fuzz run observes: memory, and log lines with a traceback."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

PARTS = (10, 50, 100)
GROWTH_BYTES_MAX = 48 << 20
"""Growth of the resident memory from 50% to the end of a run that still counts as flat: caches fill."""


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process, of this one by default."""
    text = Path(f"/proc/{pid or 'self'}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) << 10


class Observer(logging.Handler):
    """Collects log lines with a traceback, and the memory at 10%, 50% and 100% of `total`."""

    def __init__(self, total: int, pid: int | None = None) -> None:
        super().__init__(logging.DEBUG)
        self.total = total
        self.done = 0
        self.tracebacks: list[str] = []
        self.lines = Counter[str]()
        """Number of log lines of each level."""
        self.memory: dict[int, int] = {}
        self._pid = pid

    def __enter__(self) -> Observer:
        logging.getLogger("odradek").addHandler(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        logging.getLogger("odradek").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines[record.levelname] += 1
        if record.exc_info and record.exc_info[0] is not None:
            self.tracebacks.append(logging.Formatter().format(record))

    def advance(self, count: int) -> None:
        """Count records or frames, and measure the memory at the parts of the run."""
        self.done += count
        for part in PARTS:
            if part not in self.memory and self.done * 100 >= part * self.total:
                self.memory[part] = resident_bytes(self._pid)

    @contextmanager
    def printing_on_error(self, subject: str) -> Iterator[None]:
        """Print what was observed before an error ends the run."""
        try:
            yield
        except BaseException:
            self.print(subject, "records")
            raise

    @property
    def is_flat(self) -> bool:
        return self.memory.get(100, 0) - self.memory.get(50, 0) <= GROWTH_BYTES_MAX

    @property
    def is_good(self) -> bool:
        return not self.tracebacks and self.is_flat and self.done >= self.total

    def print(self, subject: str, unit: str) -> None:
        """Print the results, and the first tracebacks to stderr."""
        memory = ", ".join(f"{size >> 20} MiB at {part}%" for part, size in self.memory.items())
        lines = ", ".join(f"{count} {level}" for level, count in sorted(self.lines.items()))
        print(
            f"{subject}: {self.done} {unit}, {len(self.tracebacks)} tracebacks, memory {memory}"
            f"{'' if self.is_flat else ' (not flat)'}, log lines: {lines or 'none'}"
        )
        for each in self.tracebacks[:5]:
            print(each, file=sys.stderr)
