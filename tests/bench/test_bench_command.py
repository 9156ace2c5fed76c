"""The command `odradek bench`: its entry point, help, errors and exit codes."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from odradek.bench import machine
from odradek.bench.cli.main import COMMANDS, NEED_LINUX
from odradek.bench.peers import PEERS
from odradek.bench.progress import TerminalProgress
from odradek.bench.results_file import load, save
from odradek.bench.workloads import WORKLOADS, topics
from odradek.cli.main import main
from odradek.testing import Broker, Cluster
from tests.bench.full_results import full_results


@pytest.fixture
def old(tmp_path: Path) -> str:
    save(full_results(), tmp_path / "old.json")
    return str(tmp_path / "old.json")


@pytest.fixture
def new(tmp_path: Path) -> str:
    save(full_results(speed=50), tmp_path / "new.json")
    return str(tmp_path / "new.json")


def test_bench_is_listed_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "compare the performance of this broker with others" in capsys.readouterr().out


def test_bench_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_subcommand_has_a_module(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(importlib.import_module(f"odradek.bench.cli.{name}").run)
    assert main(["bench", name, "--help"]) == 0
    assert f"odradek bench {name}" in capsys.readouterr().out


def test_missing_subcommand_lists_the_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert "specify a subcommand" in capsys.readouterr().err


def test_serve_does_not_read_entry_points() -> None:
    """Reading the entry points of all distributions would add milliseconds to each start."""
    script = (
        "import sys\n"
        "from odradek.cli.main import main\n"
        "main(['serve', '--help'])\n"
        "print([m for m in sys.modules if m.startswith(('odradek.bench', 'importlib.metadata'))])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "[]"


def test_missing_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], old: str
) -> None:
    def missing(args: object) -> int:
        raise ModuleNotFoundError("No module named 'hdrh'", name="hdrh")

    monkeypatch.setattr("odradek.bench.cli.report.run", missing)
    assert main(["bench", "report", old]) == 1
    assert "pip install 'odradek[bench]'" in capsys.readouterr().err


@pytest.mark.parametrize("name", NEED_LINUX)
def test_measurements_need_linux(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["bench", name]) == 1
    assert capsys.readouterr().err == f"odradek: odradek bench {name} needs Linux: it reads /proc\n"


def test_compare_with_a_regression_exits_with_1(
    capsys: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    assert main(["bench", "compare", old, old]) == 0
    assert main(["bench", "compare", old, new]) == 1
    out, err = capsys.readouterr()
    assert "WORSE" in out
    assert "-50.0%" in out
    assert "1 of 2 figures got worse" in err
    assert main(["bench", "compare", old, new, "--tolerance", "60"]) == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["compare", "none.json", "none.json"], "cannot read none.json"),
        (["report", __file__], "is not JSON"),
    ],
)
def test_missing_file_is_reported_in_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 1
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1


def test_compare_of_a_peer_without_figures_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], old: str
) -> None:
    assert main(["bench", "compare", old, old, "--peer", "kafka"]) == 2
    assert "has no figures of kafka" in capsys.readouterr().err


@pytest.mark.parametrize("tolerance", ["-1", "nan", "inf"])
def test_tolerance_is_a_percentage(
    tolerance: str, capsys: pytest.CaptureFixture[str], old: str
) -> None:
    assert main(["bench", "compare", old, old, "--tolerance", tolerance]) == 2
    assert "--tolerance is a percentage" in capsys.readouterr().err


def test_unknown_page_section_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], old: str
) -> None:
    assert main(["bench", "report", old, "--with", "tables-none.json"]) == 2
    assert "--with requires --markdown" in capsys.readouterr().err


def test_run_without_peers_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "run", "--peers="]) == 2
    assert "argument --peers: at least one name is required" in capsys.readouterr().err


def test_report_prints_tables(capsys: pytest.CaptureFixture[str], old: str) -> None:
    assert main(["bench", "report", old]) == 0
    out = capsys.readouterr().out
    assert "produce-1k: produce, 1 KiB records" in out
    assert "! nisshi is not available: no cargo" in out


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for an idle disk: these tests measure nothing."""
    monkeypatch.setattr(machine, "settle", lambda bystanders: None)


@pytest.mark.usefixtures("unsettled")
def test_running_broker_is_measured_by_its_address(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "TOPICS", 20)
    found = tmp_path / "found.json"
    with Broker() as broker:
        words = ["--bootstrap", broker.bootstrap, "--workloads", "topics-one*", "group-*-ever"]
        code = main(["bench", "run", *words, "--rounds", "2", "--out", str(found)])
    out, _ = capsys.readouterr()
    assert code == 0
    results = load(found)
    assert [len(w.peers["running-broker"].counted) for w in results.workloads] == [0, 2]
    assert "topics-one-by-one: create" in out
    assert "! workloads not selected: startup, " in out
    assert "peers not selected" not in out
    assert (
        "group-assignment-ever on running-broker was skipped: the bench did not start this" in out
    )


@pytest.mark.usefixtures("unsettled")
def test_run_without_measurements_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker() as broker:
        words = ["--bootstrap", broker.bootstrap, "--workloads", "group-*-ever", "--rounds", "1"]
        assert main(["bench", "run", *words]) == 1
    assert "group-assignment-ever on running-broker was skipped: " in capsys.readouterr().out


@pytest.mark.usefixtures("unsettled")
def test_run_without_a_response_reports_the_address(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--bootstrap", "127.0.0.1:1", "--workloads", "topics-at-once", "--rounds", "1"]
    assert main(["bench", "run", *words]) == 1
    report = capsys.readouterr().out.splitlines()
    assert "! running-broker is not available: no response from 127.0.0.1:1" in report


def test_run_with_unwritable_output_fails_before_measuring(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for name in (str(tmp_path / "file" / "x.json"), str(tmp_path)):
        words = ["--bootstrap", "127.0.0.1:1", "--workloads", "topics-at-once", "--out", name]
        assert main(["bench", "run", *words]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"odradek: cannot write {tmp_path}")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.usefixtures("unsettled")
def test_results_are_written_to_another_file_if_the_output_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "TOPICS", 2)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    out = tmp_path / "out" / "found.json"
    run_module = importlib.import_module("odradek.bench.cli.run")
    real = run_module.Runner.run

    def run_and_block(runner: object) -> None:
        """Run, and then replace the directory of the results by a file."""
        real(runner)
        shutil.rmtree(out.parent)
        out.parent.touch()

    monkeypatch.setattr(run_module.Runner, "run", run_and_block)
    with Broker() as broker:
        words = ["--bootstrap", broker.bootstrap, "--workloads", "topics-at-once", "--rounds", "1"]
        assert main(["bench", "run", *words, "--out", str(out)]) == 1
    complaint = capsys.readouterr().err.strip()
    assert "cannot write" in complaint
    (kept,) = tmp_path.glob("odradek-bench-results-*/found.json")
    assert complaint.endswith(f"the results are in {kept}")
    assert len(load(kept).workloads) == 1


@pytest.mark.usefixtures("unsettled")
@pytest.mark.parametrize("when", ["while a workload is run", "between two", "while it is shown"])
def test_results_are_written_when_the_run_is_ended(
    when: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "TOPICS", 2)
    out = tmp_path / "found.json"
    run_module = importlib.import_module("odradek.bench.cli.run")

    def gone(*_: object) -> None:
        raise RuntimeError("the terminal is gone")

    if when == "while a workload is run":
        monkeypatch.setattr(TerminalProgress, "ran", gone)
    elif when == "between two":
        monkeypatch.setattr(TerminalProgress, "measured", gone)
    else:
        monkeypatch.setattr(run_module, "print_lines", gone)
    with Broker() as broker:
        words = ["--bootstrap", broker.bootstrap, "--workloads", "topics-at-once", "--rounds", "1"]
        with suppress(RuntimeError):
            main(["bench", "run", *words, "--warm-ups", "0", "--out", str(out)])
    (workload,) = load(out).workloads
    assert len(workload.peers["running-broker"].samples) == 1


@pytest.mark.usefixtures("unsettled")
def test_run_accepts_a_relative_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TOPICS", 2)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    words = ["--peers", "odradek", "--workloads", "topics-at-once", "--rounds", "1"]
    words += ["--warm-ups", "0", "--warm-memory", "0", "--directory", "data"]
    assert main(["bench", "run", *words]) == 0


@pytest.mark.usefixtures("unsettled")
def test_single_broker_of_a_cluster_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(brokers=2, proxied=False) as cluster:
        words = ["--bootstrap", cluster.address(1), "--workloads", "topics-at-once"]
        assert main(["bench", "run", *words]) == 1
    assert "is one of 2 brokers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--peers", "kafak"], "unknown peer 'kafak'; the peers are odradek, kafka"),
        (["--workloads", "laten"], "no workload matches 'laten'"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--warm-memory", "-1"], "--warm-memory: must be 0 or more GiB"),
        (["--warm-memory", "nan"], "--warm-memory: must be 0 or more GiB"),
        (
            ["--bootstrap", "127.0.0.1:1", "--peers", "kafka"],
            "--peers cannot be used with --bootstrap",
        ),
        (["--bootstrap", "somewhere"], "--bootstrap requires HOST:PORT"),
        (
            ["--bootstrap", "127.0.0.1:1,127.0.0.1:2"],
            "--bootstrap requires the address of a single broker",
        ),
    ],
)
def test_impossible_run_is_a_usage_error(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "run", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_list_shows_workloads_and_peers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list"]) == 0
    out = capsys.readouterr().out
    assert all(workload.name in out for workload in WORKLOADS)
    assert all(peer in out for peer in PEERS)
    assert main(["bench", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["workloads"]) == len(WORKLOADS)


def test_report_writes_the_performance_page(old: str, tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    assert main(["bench", "report", old, "--markdown", str(page)]) == 0
    assert page.read_text().startswith("# Performance\n")
