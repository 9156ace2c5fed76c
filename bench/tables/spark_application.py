"""A Spark application in a separate process (`session.py`), which reads requests from its stdin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from odradek.bench import machine
from odradek.bench.model import PeerFailed, WorkloadFailed

STOP_S = 30.0
_LOG_CHARACTERS = 4000


@dataclass(frozen=True)
class ApplicationLaunch:
    """The format, jars and environment of an application (environment None: that of this process)."""

    format: str
    directory: Path
    jars: Sequence[str] = ()
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True)
class QueryResponse:
    """The result of a query, its duration by the application's clock, and the CPU time of all its processes."""

    found: Mapping[str, int]
    seconds: float
    cpu_s: float


class Application:
    """A running application; implements the part of `model.ServerProcess` that a reader needs."""

    def __init__(self, launch: ApplicationLaunch, master: str) -> None:
        """Start the application, and wait until it accepts queries. Raises PeerFailed."""
        self.master = master
        self._log_file = launch.directory / "application.log"
        self.exec_started_at = time.monotonic()
        settings = {
            "format": launch.format,
            "master": master,
            "jars": list(launch.jars),
            "directory": str(launch.directory),
        }
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "odradek.bench.tables.session", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=launch.directory,
                process_group=0,
                env=launch.environment,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[str] = self._process.stdin
        self._responses: IO[str] = self._process.stdout
        try:
            self.spark_version: str = self._respond()["version"]
        except BaseException:
            self.kill()
            raise
        self.responded_at = time.monotonic()

    def run_query(self, query: Mapping[str, Any]) -> QueryResponse:
        """Run a query. Raises WorkloadFailed with Spark's error."""
        before = self.cpu_seconds()
        self._requests.write(json.dumps(query) + "\n")
        self._requests.flush()
        report = self._respond()
        if "failed" in report:
            raise WorkloadFailed(str(report["failed"])[:2000])
        return QueryResponse(report["found"], report["seconds"], self.cpu_seconds() - before)

    def _respond(self) -> dict[str, Any]:
        line = self._responses.readline()
        if not line:
            raise PeerFailed(f"the Spark application ended\n{self.log()}")
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        return machine.tree_cpu_s(self.pid)

    def resident_bytes(self) -> int:
        return machine.tree_resident_bytes(self.pid)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # also ends the JVM and its workers
        self._process.wait()

    def restart(self) -> None:
        raise NotImplementedError("an application is started for each run")

    def stop(self) -> None:
        """Close its stdin, and wait for its end."""
        if self._process.poll() is not None:
            return
        self._requests.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def log(self) -> str:
        return self._log_file.read_text(errors="replace")[-_LOG_CHARACTERS:]
