"""Runs a suite's program with a timeout, keeps its output, and kills all processes that it started.

Programs run in threads. `end_programs` kills all of them and prevents further starts.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

_ANSI = re.compile(r"\x1b\[[0-9;]*m")

Process: TypeAlias = subprocess.Popen[bytes]


class Stopped(Exception):
    """Raised after `end_programs`, when no program may start."""


class _Programs:
    """Programs that are running."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Process] = set()
        self._stopped = False

    @contextlib.contextmanager
    def started(self, start: Callable[[], Process]) -> Iterator[Process]:
        """Start a program; at the end of the context it and its children are killed. Raises Stopped."""
        with self._lock:
            if self._stopped:
                raise Stopped
            process = start()
            self._running.add(process)
        try:
            yield process
        finally:
            _end_group(process)
            with self._lock:
                self._running.discard(process)

    def end(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill_group(process)


_programs = _Programs()


def end_programs() -> None:
    """Kill all programs of `run_program` in all threads, and prevent further starts."""
    _programs.end()


@dataclass(frozen=True)
class Ended:
    """Exit of a program: `code` is None at a timeout, negative for a signal."""

    code: int | None
    seconds: float
    output: str

    @property
    def how(self) -> str:
        """Description of the exit, for a program without an error message."""
        if self.code is None:
            return f"not done after {self.seconds:.0f} s"
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        return f"ended with {self.code}"


def run_program(
    command: Sequence[str],
    log_file: Path,
    *,
    cwd: Path,
    timeout_s: float,
    environment: Mapping[str, str],
) -> Ended:
    """Run a program in its own process group, without the variables that CI sets, because suites read them.

    Raises Stopped.
    """
    variables = {name: value for name, value in os.environ.items() if name != "CI"}
    began = time.monotonic()
    code: int | None = None
    with (
        log_file.open("wb") as log,
        _programs.started(
            lambda: subprocess.Popen(
                command,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**variables, **environment},
                start_new_session=True,
            )
        ) as process,
        contextlib.suppress(subprocess.TimeoutExpired),
    ):
        code = process.wait(timeout_s)
    seconds = time.monotonic() - began
    return Ended(code, seconds, _ANSI.sub("", log_file.read_text(errors="replace")))


def _kill_group(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):  # the group has no processes
        os.killpg(process.pid, signal.SIGKILL)


def _end_group(process: Process) -> None:
    _kill_group(process)
    process.wait()


def one_line(text: str, limit: int = 160) -> str:
    """`text` as a cell of a table."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
