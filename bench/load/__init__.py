"""The C program that puts load on a broker, `odradek-load`: built here, run from here.

It is compiled with `cc` against librdkafka when first needed (Debian: `apt install gcc
librdkafka-dev`) and kept under a name made of its sources.
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
"""From this share of a core on, a thread of the client is what limits the rate."""
TIMEOUT_S = 180.0
NOT_COMPRESSING = "not compressing"
"""librdkafka, of a broker that does not say that it takes a codec: it sends records as they are."""
WARNINGS_MOST = 3
BROKER_ENDED = 3
"""The load program's exit status where the broker's process ended before it."""


class LoadUnavailable(WorkloadFailed):
    """The load program can't be built here; the text says what to install."""


@dataclass(frozen=True)
class Load:
    """What the load program said, the broker's CPU seconds in the measured part (if known), and what
    librdkafka had to say on the way."""

    report: dict[str, Any]
    broker_cpu_s: float | None
    warnings: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return float(self.report["seconds"])

    @property
    def cpu_s(self) -> float:
        """The client's."""
        return float(self.report["cpu_seconds"])

    @property
    def client_bound(self) -> bool:
        return float(self.report["busiest_thread"]) >= CLIENT_BOUND

    @property
    def notes(self) -> tuple[str, ...]:
        share, name = self.report["busiest_thread"], self.report["busiest_thread_name"]
        return (f"the client's thread {name} used {share:.0%} of a core", *self.warnings)


def load_program() -> Path:
    """The built program; LoadUnavailable says what it needs."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    try:
        return kept(f"odradek-load-{digest(*sources)}", _build)
    except PeerUnavailable as unavailable:
        raise LoadUnavailable(
            f"the load program can't be built ({unavailable}); it needs a C compiler and librdkafka "
            "with its headers: apt install gcc librdkafka-dev"
        ) from None


def _build(program: Path) -> None:
    cc = needed_program("cc", "a C compiler")
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    run_build([cc, *FLAGS, *sources, "-o", str(program), "-lrdkafka", "-lpthread"], "compiling")


def librdkafka_version() -> str:
    """The version of the library that the load program runs on."""
    done = subprocess.run([load_program(), "version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def load_command(words: Sequence[str], process: ServerProcess | None) -> list[str]:
    """`odradek-load WORDS…`, which ends when the broker's process does (if that is known)."""
    watched = [] if process is None else ["--broker", str(process.pid)]
    return [str(load_program()), *words, *watched]


def run_load(
    words: Sequence[str],
    process: ServerProcess | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    begun: Callable[[subprocess.Popen[str]], None] = lambda program: None,
) -> Load:
    """Run `odradek-load WORDS…` to its end, and see what CPU `process` uses in the measured part.

    The program waits at both ends of it while that is looked at. `begun` is given the program when the
    measured part begins, for whoever has signals for it. Raises WorkloadFailed if it fails, is not done in
    `timeout_s`, says that records were refused, or sent them other than it was told to; PeerFailed as soon
    as `process` has ended.
    """
    with (
        tempfile.TemporaryFile("w+") as stderr,  # read by nobody while it runs: a pipe may fill
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
    if program.returncode == BROKER_ENDED and process is not None:
        raise PeerFailed(f"its process ended under load\n{process.log()}")
    if program.returncode != 0 or not result:
        raise WorkloadFailed(
            f"odradek-load {words[0]}: {errors.strip() or 'ended without a result'}"
        )
    report = json.loads(result)
    if report.get("failed"):
        raise WorkloadFailed(
            f"{report['failed']} records failed, the first with: {report['error']}"
        )
    if NOT_COMPRESSING in errors:
        raise WorkloadFailed(f"the client did not compress: {errors.strip().splitlines()[0]}")
    used = None if process is None or before is None or after is None else after - before
    return Load(report, used, tuple(errors.strip().splitlines()[:WARNINGS_MOST]))


def _cpu_s_at_event(program: subprocess.Popen[str], process: ServerProcess | None) -> float | None:
    """Wait for the program's next event, and let it go on; None if it ended instead."""
    assert program.stdin is not None
    assert program.stdout is not None
    if not program.stdout.readline():
        return None
    cpu_s = process.cpu_seconds() if process else 0.0
    with suppress(BrokenPipeError):  # it has just been killed: what it says last is nothing
        program.stdin.write("\n")
        program.stdin.flush()
    return cpu_s


FILL_RECORD_BYTES = 1024
FILL_TIMEOUT_S = 600


def fill(target: Target, topic: str, size_mb: int) -> None:
    """Write so much to the topic's only partition, in records of 1 KiB. WorkloadFailed if it is less."""
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
