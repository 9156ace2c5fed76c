"""Tests of franz-go's client (`pkg/kgo`), from the Go module proxy.

A test uses a broker if it calls, directly or indirectly, the function that reads the broker's address
(KGO_SEEDS). The sources are searched for such tests.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from odradek.bench.build_cache import kept, needed_program, run_build
from odradek.bench.model import PeerUnavailable
from tests.conformance.builds import digest_of_build
from tests.conformance.model import Job, Result, failed, not_applicable, passed
from tests.conformance.programs import Ended, one_line, run_program

MODULE = "github.com/twmb/franz-go"
ADDRESS_FUNCTION = "getSeedBrokers"

BUILD = ("test", "-c")
TIMEOUT_S = 900.0  # the ETL tests move half a million records through dozens of groups

_FUNCTION = re.compile(r"^func (?:\([^)]*\) )?(\w+)[\[(].*?^\}$", re.M | re.S)
_END = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+) \(([\d.]+)s\)", re.M)
_LOG_LINE = re.compile(r"^ +\w+_test\.go:\d+: (.*)$", re.M)


class FranzGo:
    name = "franz-go"
    title = "franz-go, `pkg/kgo`"
    version = "1.22.2"
    source = f"Go module `{MODULE}`"
    settings: Mapping[str, str] = {}

    def obtain(self) -> None:
        go = needed_program("go", "Go")
        done = subprocess.run(
            [go, "mod", "download", "-json", f"{MODULE}@v{self.version}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise PeerUnavailable(f"go mod download failed:\n{done.stdout}{done.stderr}")
        self._directory = Path(json.loads(done.stdout)["Dir"]) / "pkg" / "kgo"

        def build(program: Path) -> None:
            run_build([go, *BUILD, "-o", str(program), "."], "go test -c", self._directory)

        digest = digest_of_build(MODULE, self.version, *BUILD, compiler=go)
        self._program = kept(f"franz-go-{self.version}-{digest}.test", build)

    def excluded(self) -> Mapping[str, str]:
        return {}

    def jobs(self) -> Sequence[Job]:
        sources = "".join(path.read_text() for path in sorted(self._directory.glob("*_test.go")))
        return [
            Job(name, (name,), TIMEOUT_S) for name in find_tests_reaching(ADDRESS_FUNCTION, sources)
        ]

    def run(self, job: Job, bootstrap: str, directory: Path) -> Mapping[str, Result]:
        ended = run_program(
            [str(self._program), "-test.v", "-test.run", f"^{job.name}$",
             "-test.timeout", f"{job.timeout_s:.0f}s"],
            directory / "output.log",
            cwd=self._directory,
            timeout_s=job.timeout_s + 10,  # Go's own timeout prints the stack traces
            environment={
                "KGO_SEEDS": bootstrap, "KGO_TEST_RF": "1", "KGO_LOG_LEVEL": "none",
            },
        )  # fmt: skip
        return {job.name: _result(job.name, ended)}


def _result(name: str, ended: Ended) -> Result:
    ends = {row[2]: row for row in _END.finditer(ended.output)}
    if name not in ends:
        return failed(ended.seconds, ended.how)
    how, _, seconds = ends[name].groups()
    if how == "PASS":
        return passed(float(seconds))
    log_line = _LOG_LINE.search(ended.output)
    if how == "SKIP":
        return not_applicable(one_line(log_line[1]) if log_line else "skips itself")
    return failed(float(seconds), one_line(log_line[1]) if log_line else ended.how)


def find_tests_reaching(function: str, sources: str) -> list[str]:
    """Tests in `sources` (Go) that call `function`, directly or through other functions."""
    bodies: dict[str, str] = {}
    for found in _FUNCTION.finditer(sources):
        bodies[found[1]] = bodies.get(found[1], "") + found[0].partition("{")[2]
    reaching: set[str] = set()
    found_new = {function}
    while found_new:
        reaching |= found_new
        calls = re.compile(rf"\b(?:{'|'.join(reaching)})\(")
        found_new = {
            name for name, body in bodies.items() if name not in reaching and calls.search(body)
        }
    return [name for name in bodies if name in reaching and name.startswith("Test")]
