"""Builds and runs `odradek-load`, the C program that produces load on a broker.

The program is compiled with `cc` and librdkafka at its first use (Debian: `apt install gcc librdkafka-dev`). The
build cache keeps it under the digest of its sources.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odradek.bench.build_cache import digest, kept, needed_program, run_build
from odradek.bench.model import PeerFailed, PeerUnavailable, ServerProcess, Target, WorkloadFailed

SOURCES = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra")
CLIENT_BOUND = 0.9
"""If a thread of the client uses more than this share of a core, the client limits the rate."""
TIMEOUT_S = 180.0
NOT_COMPRESSING = "not compressing"
"""Part of librdkafka's warning if a broker does not support a codec. It then sends uncompressed records."""
WARNINGS_MOST = 3
BROKER_ENDED = 3
"""Exit status of the load program if the broker's process ended first."""


class LoadUnavailable(WorkloadFailed):
    """The load program cannot be built. The text lists the packages to install."""


@dataclass(frozen=True)
class Load:
    """Result of a run of the load program.

    `report` is the program's JSON. `broker_cpu_s` is the CPU time of the broker during the measured part, or None
    if its process is not known. `warnings` are librdkafka's.
    """

    report: dict[str, Any]
    broker_cpu_s: float | None
    warnings: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return float(self.report["seconds"])

    @property
    def cpu_s(self) -> float:
        """Return the client's CPU seconds."""
        return float(self.report["cpu_seconds"])

    @property
    def client_bound(self) -> bool:
        return float(self.report["busiest_thread"]) >= CLIENT_BOUND

    @property
    def notes(self) -> tuple[str, ...]:
        share, name = self.report["busiest_thread"], self.report["busiest_thread_name"]
        return (f"the client's thread {name} used {share:.0%} of a core", *self.warnings)


def load_program() -> Path:
    """Return the path of the program, built if necessary. Raises LoadUnavailable."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    try:
        return kept(f"odradek-load-{digest(*sources)}", _build)
    except PeerUnavailable as unavailable:
        raise LoadUnavailable(
            f"cannot build the load program ({unavailable}); it requires a C compiler and librdkafka "
            "with its headers: apt install gcc librdkafka-dev"
        ) from None


def _build(program: Path) -> None:
    cc = needed_program("cc", "a C compiler")
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    run_build([cc, *FLAGS, *sources, "-o", str(program), "-lrdkafka", "-lpthread"], "compiling")


def librdkafka_version() -> str:
    """Return the version of librdkafka that the load program uses."""
    done = subprocess.run([load_program(), "version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def load_command(words: Sequence[str], process: ServerProcess | None) -> list[str]:
    """Return the command `odradek-load WORDS…`, which ends when the broker's process ends."""
    watched = [] if process is None else ["--broker", str(process.pid)]
    return [str(load_program()), *words, *watched]


def run_load(
    words: Sequence[str],
    process: ServerProcess | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    begun: Callable[[subprocess.Popen[str]], None] = lambda program: None,
) -> Load:
    """Run `odradek-load WORDS…`, and measure the CPU time of `process` during the measured part.

    The program pauses before and after the measured part while the CPU time is read. `begun` is called with the
    program when the measured part begins, for example to send signals. Raises WorkloadFailed if the program fails,
    does not end within `timeout_s`, reports refused records or does not compress as requested, and PeerFailed if
    `process` ends.
    """
    with (
        tempfile.TemporaryFile("w+") as stderr,  # not a pipe, which could fill up
        subprocess.Popen(
            load_command([*words, "--watched", "1"], process),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as program,
    ):
        overdue = threading.Timer(timeout_s, program.kill)
        overdue.start()
        try:
            before = _cpu_s_at_event(program, process)
            if before is not None:
                begun(program)
            after = _cpu_s_at_event(program, process)
            result, _ = program.communicate()
        finally:
            program.kill()
            overdue.cancel()
        stderr.seek(0)
        errors = stderr.read()
    report = _read_report(words, program.returncode, result, errors, process)
    used = None if process is None or before is None or after is None else after - before
    return Load(report, used, tuple(errors.strip().splitlines()[:WARNINGS_MOST]))


def _read_report(
    words: Sequence[str], exit_code: int, result: str, errors: str, process: ServerProcess | None
) -> dict[str, Any]:
    """Return the report of the program. Raises WorkloadFailed and PeerFailed as `run_load` does."""
    if exit_code == BROKER_ENDED and process is not None:
        raise PeerFailed(f"the process ended during the load\n{process.log()}")
    if exit_code != 0 or not result:
        raise WorkloadFailed(
            f"odradek-load {words[0]}: {errors.strip() or 'ended without a result'}"
        )
    report: dict[str, Any] = json.loads(result)
    if report.get("failed"):
        raise WorkloadFailed(
            f"{report['failed']} records failed, the first with: {report['error']}"
        )
    if NOT_COMPRESSING in errors:
        raise WorkloadFailed(f"the client did not compress: {errors.strip().splitlines()[0]}")
    return report


def _cpu_s_at_event(program: subprocess.Popen[str], process: ServerProcess | None) -> float | None:
    """Wait for the program's next event, read the CPU time, and resume it. None if the program ended."""
    assert program.stdin is not None
    assert program.stdout is not None
    if not program.stdout.readline():
        return None
    cpu_s = process.cpu_seconds() if process else 0.0
    with suppress(BrokenPipeError):  # the program was killed
        program.stdin.write("\n")
        program.stdin.flush()
    return cpu_s


FILL_RECORD_BYTES = 1024
FILL_TIMEOUT_S = 600


def fill(target: Target, topic: str, size_mb: int) -> None:
    """Produce `size_mb` MB of 1 KiB records to the topic's only partition. Raises WorkloadFailed."""
    count = size_mb * 1_000_000 // FILL_RECORD_BYTES
    load = run_load(
        [
            "produce", "--bootstrap", target.bootstrap, "--topic", topic,
            "--count", str(count),
            "--size", str(FILL_RECORD_BYTES),
            "--seconds", str(FILL_TIMEOUT_S),
        ],
        target.process,
        timeout_s=FILL_TIMEOUT_S + 90,
    )  # fmt: skip
    if load.report["records"] < count:
        raise WorkloadFailed(f"{load.report['records']} of {count} records in {FILL_TIMEOUT_S} s")
