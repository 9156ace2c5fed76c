"""A suite's program: run with a time-out, everything it started ended with it, its output kept.

Programs run in threads; whoever is told to stop ends them all by `end_programs`, after which none
starts any more.
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
    """No program starts any more."""


class _Programs:
    """Those that run now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Process] = set()
        self._stopped = False

    @contextlib.contextmanager
    def started(self, start: Callable[[], Process]) -> Iterator[Process]:
        """Start one; it and what it started are gone afterwards. Raises Stopped."""
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
    """End every program that `run_program` runs in any thread, and let none start."""
    _programs.end()


@dataclass(frozen=True)
class Ended:
    """How the program ended: `code` is None if its time was up, negative for a signal."""

    code: int | None
    seconds: float
    output: str

    @property
    def how(self) -> str:
        """The end in words, for one that did not say what was wrong."""
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
    """Run it in a process group of its own, without the variables CI sets: suites look at them.

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
    with contextlib.suppress(ProcessLookupError):  # it left nothing behind
        os.killpg(process.pid, signal.SIGKILL)


def _end_group(process: Process) -> None:
    _kill_group(process)
    process.wait()


def one_line(text: str, limit: int = 160) -> str:
    """`text` as a cell of a table."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
