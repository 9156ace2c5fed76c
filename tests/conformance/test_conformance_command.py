"""Parsing of the suites' output, and storage of results; the suites are not run here."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.__main__ import page_refused
from tests.conformance.builds import PAGE, Build, digest_of, results_name
from tests.conformance.franz_go import FranzGo, find_tests_reaching
from tests.conformance.librdkafka import entries_of, result_of
from tests.conformance.model import Outcome, failed, not_applicable, passed
from tests.conformance.page import page
from tests.conformance.programs import Ended, run_program
from tests.conformance.results import Side
from tests.support.waiting import deadline

SUMMARY = """\
TEST 20260101000000 (quick, scenario default) SUMMARY
| <MAIN>                                   |     PASSED |   1.415s |
| 0001_one                                 |     PASSED |   1.281s |
| 0002_two                                 |     FAILED |   0.500s | Expected 1|2, got 3
| 0003_three                               |    SKIPPED |   0.000s | not for this broker
"""


@pytest.mark.parametrize(
    ("entry", "outcome", "reason"),
    [
        ("0001_one", Outcome.PASSED, ""),
        ("0002_two", Outcome.FAILED, "Expected 1\\|2, got 3"),
        ("0003_three", Outcome.NOT_APPLICABLE, "not for this broker"),
        ("0004_four", Outcome.FAILED, "ended by SIGABRT"),
    ],
)
def test_librdkafka_summary_gives_result_of_each_entry(
    entry: str, outcome: Outcome, reason: str
) -> None:
    result = result_of(entry, Ended(-6, 2.0, SUMMARY), sources="")
    assert (result.outcome, result.reason) == (outcome, reason)


def test_librdkafka_entry_without_sub_tests_fails() -> None:
    ended = Ended(0, 1.0, SUMMARY)
    assert result_of("0001_one", ended, sources="SUB_TEST();").outcome is Outcome.FAILED
    began = Ended(0, 1.0, "[0001_one          /  0.001s] [ do_it:12: idempotent ]\n" + SUMMARY)
    assert result_of("0001_one", began, sources="SUB_TEST_QUICK();").outcome is Outcome.PASSED


def test_librdkafka_test_table_is_parsed_with_flags_and_scenario() -> None:
    table = """
struct test tests[] = {
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0001_one, 0),
    _TEST(0002_two, TEST_F_LOCAL, _THRES(.ucpu = 1.0)),
    _TEST(0003_three, 0, TEST_BRKVER(0, 9, 0, 0), .scenario = "noautocreate"),
    {NULL}};
"""
    found = [(entry.name, "LOCAL" in entry.flags, entry.scenario) for entry in entries_of(table)]
    assert found == [
        ("0001_one", False, "default"),
        ("0002_two", True, "default"),
        ("0003_three", False, "noautocreate"),
    ]


def test_go_tests_that_use_broker_address_are_found() -> None:
    sources = """
func seeds() Opt {
\treturn os.Getenv("KGO_SEEDS")
}

func (c *helper) client() *Client {
\treturn seeds()
}

func TestDirect(t *testing.T) {
\tseeds()
}

func TestThroughHelper(t *testing.T) {
\tnew(helper).client()
}

func TestAlone(t *testing.T) {
\tseedsOfAnotherKind()
}
"""
    assert find_tests_reaching("seeds", sources) == ["TestDirect", "TestThroughHelper"]


def test_hanging_program_is_killed_with_its_children(tmp_path: Path) -> None:
    child = "import subprocess, sys; print(1, flush=True); subprocess.run([sys.executable, '-c', 'input()'], stdin=0)"
    ended = run_program(
        [sys.executable, "-c", f"{child}; import threading; threading.Event().wait()"],
        tmp_path / "log",
        cwd=tmp_path,
        timeout_s=1.0,
        environment={},
    )
    assert ended.code is None
    assert ended.how.startswith("not done after")


TERMINATED = """
import sys
from pathlib import Path
from tests.conformance.__main__ import stop_when_terminated
from tests.conformance.parallel_jobs import run_alike
from tests.conformance.model import Job
from tests.conformance.programs import run_program

class Endless:
    settings = {}

    def run(self, job, bootstrap, directory):
        (directory / "bootstrap").write_text(bootstrap)
        run_program(
            [sys.executable, "-c", "import threading; threading.Event().wait()"],
            directory / "log",
            cwd=directory,
            timeout_s=600,
            environment={},
        )
        return {}

stop_when_terminated()
jobs = [Job(name, (name,), 600) for name in ("one", "two")]
for ended in run_alike(Endless(), "odradek", {}, jobs, Path(sys.argv[1]), 1):
    pass
"""


def test_sigterm_stops_command_and_broker(tmp_path: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-c", TERMINATED, str(tmp_path)], cwd=Path(__file__).parents[2]
    )
    try:
        with deadline(30, "the suite's program to run") as check:
            while not (tmp_path / "one" / "1" / "log").exists():
                check()
        host, _, port = (tmp_path / "one" / "1" / "bootstrap").read_text().rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        command.send_signal(signal.SIGTERM)
        assert command.wait(20) == 128 + signal.SIGTERM
    finally:
        command.kill()
        command.wait()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)
    assert (tmp_path / "broker-1.log").exists()


def test_results_keep_every_run_of_an_entry(tmp_path: Path) -> None:
    side = Side(tmp_path, Build("0.1 (a)", "1"))
    side.put("one", failed(1.0, "why"))
    side.put("two", passed(2.0))
    again = Side(tmp_path, Build("0.1 (b)", "1"))
    again.put("one", passed(3.0))
    kept = Side(tmp_path, Build("0.1 (b)", "1"))
    assert {entry: it.runs for entry, it in kept.kept().items()} == {
        "one": (failed(1.0, "why"), passed(3.0)),
        "two": (passed(2.0),),
    }
    assert [kept.is_to_run(entry) for entry in ("one", "two", "three")] == [False, False, True]
    kept.put("two", failed(1.0, "why"))
    assert kept.is_to_run("two")
    assert kept.version == "0.1 (a)"  # where the same sources were measured
    kept.begin(["one"], again=False)
    assert len(kept.kept()) == 2
    kept.begin(["one"], again=True)
    assert list(kept.kept()) == ["two"]


def test_commit_replaces_version_of_uncommitted_sources(tmp_path: Path) -> None:
    Side(tmp_path, Build("0.1 (a-dirty)", "1", dirty=True)).put("one", passed(1.0))
    assert Side(tmp_path, Build("0.1 (b)", "1")).version == "0.1 (b)"


def test_results_are_separate_for_each_broker_and_suite(tmp_path: Path) -> None:
    module = tmp_path / "suite.py"
    module.write_text("one")
    first = results_name("odradek", Build("0.1", "1"), module)
    assert results_name("odradek", Build("0.2", "1"), module) == first
    assert results_name("odradek", Build("0.1", "2"), module) != first
    module.write_text("two")
    assert results_name("odradek", Build("0.1", "1"), module) != first


def test_digest_depends_on_boundaries_of_parts(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("ab")
    assert digest_of("ab", "c") != digest_of("a", "bc")
    assert digest_of(file) == digest_of("ab")


def test_page_of_uncommitted_sources_is_refused(tmp_path: Path) -> None:
    clean, dirty = Build("0.1 (a)", "1"), Build("0.1 (a-dirty)", "1", dirty=True)
    assert page_refused({"odradek": clean}, PAGE) is None
    assert page_refused({"odradek": dirty}, tmp_path / "page.md") is None
    assert "commit them" in (page_refused({"odradek": dirty}, PAGE) or "")


def test_page_has_row_for_each_entry_and_counts(tmp_path: Path) -> None:
    suite = FranzGo()
    odradek = Side(tmp_path / "odradek", Build("0.1", "1"))
    theirs = Side(tmp_path / "theirs", Build("4.3.0", "2"))
    for _ in range(3):
        odradek.put("TestA", failed(1.0, "lost a record"))
    odradek.put("TestC", failed(1.0, "too slow"))
    odradek.put("TestC", passed(1.5))
    theirs.put("TestA", passed(2.0))
    theirs.put("TestB", not_applicable("too old"))
    text = page([suite], {suite.name: {"odradek": odradek, "kafka": theirs}})
    assert f"| {suite.title} | {suite.version} | Odradek 0.1 | 0 | 1 | 1 | 0 |" in text
    assert f"| {suite.title} | {suite.version} | Apache Kafka 4.3.0 | 1 | 0 | 0 | 1 |" in text
    assert (
        "| TestA | **failed** in 3 runs, 1.0 s | passed, 2.0 s | Odradek: lost a record |" in text
    )
    assert "| TestB | not run | not applicable | Apache Kafka: too old |" in text
    assert "| TestC | passed in 1 of 2 runs, 1.5 s | not run | Odradek: too slow |" in text
