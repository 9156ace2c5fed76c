"""A suite's program: run with a time-out, everything it started ended with it, its output kept."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


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
    """Run it in a process group of its own, without the variables CI sets: suites look at them."""
    variables = {name: value for name, value in os.environ.items() if name != "CI"}
    began = time.monotonic()
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**variables, **environment},
            start_new_session=True,
        )
        code: int | None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_group(process)
    seconds = time.monotonic() - began
    return Ended(code, seconds, _ANSI.sub("", log_file.read_text(errors="replace")))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it left nothing behind
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def one_line(text: str, limit: int = 160) -> str:
    """`text` as a cell of a table."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
