"""Measures what `odradek serve` loads until it is ready, and how long that takes.

The command is the console script that pyproject.toml names, run by this interpreter, so that its module
may move. The broker is ready when it has written its port file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.structure.sources import NAMESPACE, ROOT

STARTS = 7
TIMEOUT_SECONDS = 60.0
LOOK_SECONDS = 0.0005
PORT_FILE, LOADED_FILE, ERRORS_FILE = "port", "loaded", "errors"

NOTE_MODULES = f"""
import sys

def note_modules(event, args):
    if event in ("open", "os.rename", "os.link") and any("{PORT_FILE}" in str(arg) for arg in args):
        names = sorted(sys.modules)
        with open("{LOADED_FILE}", "w") as file:
            print(*names, sep="\\n", file=file)

sys.addaudithook(note_modules)
"""
"""Notes the modules that are loaded just before the port file gets its name."""


class NotReady(Exception):
    """The broker did not start, or took too long; the text has what it printed."""


@dataclass(frozen=True)
class Readiness:
    """`loaded` are the modules at readiness; the times are those of several starts."""

    loaded: Sequence[str]
    ready_ms: Sequence[float]
    processor_ms: Sequence[float]

    @property
    def own_loaded(self) -> list[str]:
        return [name for name in self.loaded if name.partition(".")[0] == NAMESPACE]


def measure_readiness() -> Readiness:
    """Start a broker once for its modules, and then several times for its times."""
    with _started(NOTE_MODULES) as (_, directory):
        loaded = (directory / LOADED_FILE).read_text().splitlines()
    times = [_time_start() for _ in range(STARTS)]
    return Readiness(
        loaded, [1000 * ready for ready, _ in times], [1000 * used for _, used in times]
    )


def entry_point() -> tuple[str, str]:
    """Return the module and the function of the `odradek` console script."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"][NAMESPACE].partition(":")
    return module, function


def _time_start() -> tuple[float, float]:
    """Return the seconds until a broker is ready, and its processor's seconds."""
    begun = time.monotonic()
    with _started() as (process, _):
        ready = time.monotonic() - begun
        process.send_signal(signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return ready, usage.ru_utime + usage.ru_stime


@contextmanager
def _started(prelude: str = "") -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a broker in a directory of its own and wait until it is ready."""
    with tempfile.TemporaryDirectory(prefix="odradek-readiness-") as name:
        directory = Path(name)
        with (directory / ERRORS_FILE).open("wb") as errors:
            process = subprocess.Popen(
                _command(prelude),
                cwd=directory,
                env=_environment(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        try:
            _wait_until_ready(process, directory)
            yield process, directory
        finally:
            process.kill()
            process.wait()


def _command(prelude: str) -> list[str]:
    module, function = entry_point()
    program = f"{prelude}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())"
    serve = ["serve", "--listen", "127.0.0.1:0", "--log-dirs", "data", "--port-file", PORT_FILE]
    return [sys.executable, "-P", "-c", program, *serve]


def _environment() -> dict[str, str]:
    """Leave out the setting by which every start would compile all modules."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def _wait_until_ready(process: subprocess.Popen[bytes], directory: Path) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    port_file = directory / PORT_FILE
    while not port_file.exists():
        if process.poll() is not None or time.monotonic() > until:
            printed = (directory / ERRORS_FILE).read_text(errors="replace")
            raise NotReady(f"the broker did not get ready: {printed[-2000:]}")
        time.sleep(LOOK_SECONDS)
