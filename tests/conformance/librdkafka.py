"""librdkafka's own tests (`tests/`), from the npm package that contains them with the library.

Quick mode (`-Q`) skips every sub-test that is not marked as quick, and an entry that skipped all of them
still reports PASSED. Entries whose quick mode tests nothing relevant run in full. Any other entry that has
sub-tests and starts none counts as failed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from odradek.bench.peers.jars import kafka_version
from tests.conformance.kafka_scripts import write_scripts
from tests.conformance.librdkafka_build import PACKAGE, PACKAGE_VERSION, VERSION, built_tests
from tests.conformance.model import Job, Result, failed, not_applicable, passed
from tests.conformance.programs import Ended, one_line, run_program

FULL = frozenset(
    ["0018", "0019", "0026", "0045", "0050", "0061", "0082", "0089", "0102", "0122", "0127", "0132"]
)

NOT_APPLICABLE = {
    "0092": "Kafka 4.0 removed message format 1",
    "0097": "needs certificates and a broker that uses them",
    "0098": "needs a Java producer whose sources are not in the package",
    "0101": "needs three brokers in racks",
    "0126": "needs an OpenID provider",
    "0135": "needs a listener with SASL",
    "0139": "talks to librdkafka's mock broker",
    "0142": "needs a listener with SASL",
    "0150": "talks to librdkafka's mock broker",
}
SHARE_GROUPS = "needs share groups (KIP-932), which Odradek does not support"

TIMEOUT_S = 300.0
# The limits of the entries assume a fast machine and scripts without a JVM: a JVM's start exceeds the limit
# of 0119.
TIMEOUT_MULTIPLIER = {"0119": 3}
NO_AUTO_CREATION = {"auto.create.topics.enable": "false"}

_TABLE = re.compile(r"^struct test tests\[\] = \{$(.*?)^\s*\{NULL\}", re.M | re.S)
_SCENARIO = re.compile(r'\.scenario\s*=\s*"([^"]*)"')
_FAILURE = re.compile(r"^### Test .* failed at .* ###\n(.*)$", re.M)
_SUMMARY = re.compile(r"^\|\s*(\w+)\s*\|\s*(\w+)\s*\|\s*([\d.]+)s\s*\|(.*)$", re.M)


@dataclass(frozen=True)
class Entry:
    """A row of the table in test.c."""

    name: str
    flags: str
    scenario: str

    @property
    def number(self) -> str:
        return self.name[:4]


class Librdkafka:
    name = "librdkafka"
    title = "librdkafka"
    version = VERSION
    source = (
        f"`tests/` in npm's `{PACKAGE}` {PACKAGE_VERSION}, with replication factor 1 instead of 3"
    )
    settings: Mapping[str, str] = {
        "auto.create.topics.enable": "true",
        "num.partitions": "4",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }

    def obtain(self) -> None:
        self._directory = built_tests()
        self._entries = [
            entry
            for entry in entries_of((self._directory / "test.c").read_text())
            if "TEST_F_LOCAL" not in entry.flags  # needs no broker
        ]

    def excluded(self) -> Mapping[str, str]:
        return {
            entry.name: reason for entry in self._entries if (reason := _why_not(entry)) is not None
        }

    def jobs(self) -> Sequence[Job]:
        """Entries with the same number and scenario are one job, because TESTS= selects numbers."""
        together: dict[tuple[str, str], list[str]] = {}
        for entry in self._entries:
            if _why_not(entry) is None:
                together.setdefault((entry.number, entry.scenario), []).append(entry.name)
        return [
            Job(
                name=names[0],
                entries=tuple(names),
                timeout_s=TIMEOUT_S,
                settings=NO_AUTO_CREATION if scenario == "noautocreate" else {},
            )
            for (_, scenario), names in together.items()
        ]

    def run(self, job: Job, bootstrap: str, directory: Path) -> Mapping[str, Result]:
        number = job.name[:4]
        configuration = directory / "test.conf"
        configuration.write_text(
            f"bootstrap.servers={bootstrap}\n"
            f"test.timeout.multiplier={TIMEOUT_MULTIPLIER.get(number, 1)}\n"
        )
        ended = run_program(
            [
                "./test-runner", "-p1", "-L",
                *([] if number in FULL else ["-Q"]),
                *(["-s", "noautocreate"] if job.settings else []),
            ],
            directory / "output.log",
            cwd=self._directory,
            timeout_s=job.timeout_s,
            environment={
                "TESTS": number,
                "TEST_KAFKA_VERSION": kafka_version(),
                "RDKAFKA_TEST_CONF": str(configuration),
                "KAFKA_PATH": str(write_scripts(directory / "kafka")),
                "BROKERS": bootstrap,
                "LD_LIBRARY_PATH": os.pathsep.join(["../src", "../src-cpp"]),
            },
        )  # fmt: skip
        sources = "".join(path.read_text() for path in self._directory.glob(f"{number}-*.c*"))
        return {name: result_of(name, ended, sources) for name in job.entries}


def result_of(name: str, ended: Ended, sources: str) -> Result:
    """Result of an entry according to the summary; `sources` are its source files."""
    rows = {row[1]: row for row in _SUMMARY.finditer(ended.output)}
    if name not in rows:
        failure = _FAILURE.search(ended.output)
        return failed(ended.seconds, one_line(failure[1]) if failure else ended.how)
    _, state, seconds, reason_in_row = rows[name].groups()
    if state == "SKIPPED":
        return not_applicable(one_line(reason_in_row) or "skips itself")
    if state != "PASSED":
        return failed(float(seconds), one_line(reason_in_row) or state.lower())
    if "SUB_TEST" in sources and not _did_anything(name, ended.output):
        return failed(float(seconds), "started no sub-test: none of them is quick")
    return passed(float(seconds))


def _did_anything(name: str, output: str) -> bool:
    """Whether the entry started a sub-test or a client; its source file may contain sub-tests of other
    entries.
    """
    began = rf"^\[{name}\s*/[^\]]*\] (?:\[ \w+:\d+|Created +kafka instance)"
    return re.search(began, output, re.M) is not None


def entries_of(source: str) -> Iterator[Entry]:
    """Rows of the table in test.c."""
    found = _TABLE.search(source)
    assert found is not None, "test.c has no table of tests"
    for row in found[1].split("_TEST(")[1:]:
        name, _, rest = row.partition(",")
        scenario = _SCENARIO.search(rest)
        yield Entry(name.strip(), rest, scenario[1] if scenario else "default")


def _why_not(entry: Entry) -> str | None:
    if "TEST_F_MANUAL" in entry.flags:
        return "to be run by hand, according to the suite's table"
    if re.search(r"TEST_F_KNOWN_ISSUE\b", entry.flags):
        return "a known issue of librdkafka, according to the suite's table"
    if "_share_" in entry.name:
        return SHARE_GROUPS
    return NOT_APPLICABLE.get(entry.number)
