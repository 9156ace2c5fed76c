"""Progress of a run on a terminal and in a file."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from odradek.bench.model import WorkloadFailed, WorkloadOutcome
from odradek.bench.progress import CLEAR_LINE, TerminalProgress
from odradek.bench.runner import Runner, RunPlan
from tests.bench.fakes import SPEED, FakePeer, FakeWatch, FakeWorkload, empty_results


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(directory: Path, err: io.StringIO, outcome: Callable[[str], WorkloadOutcome]) -> str:
    """What comes out on stdout."""
    journal: list[str] = []
    peers = [FakePeer("a", journal), FakePeer("b", journal)]
    plan = RunPlan(
        peers, [FakeWorkload("w", journal, outcome)], [], directory, rounds=2, warm_ups=0
    )
    out = io.StringIO()
    progress = TerminalProgress(out, err, plan.run_count())
    shares = iter([0.5])
    Runner(plan, empty_results(), progress, lambda _: FakeWatch(shares)).run()
    progress.clear()
    return out.getvalue()


def fails_on_b(peer: str) -> WorkloadOutcome:
    if peer == "b":
        raise WorkloadFailed("records were refused")
    return WorkloadOutcome({SPEED.name: 100.0})


def test_table_is_printed_after_each_workload(tmp_path: Path) -> None:
    out = show(tmp_path, Terminal(), fails_on_b)
    assert out.splitlines() == [
        "w: the workload w",
        "            unit  a    b",
        "  mb_per_s  MB/s  100  FAILED",
        "",
    ]


def test_terminal_shows_one_progress_line_and_failures(
    tmp_path: Path,
) -> None:
    err = Terminal()
    show(tmp_path, err, fails_on_b)
    lines = err.getvalue().split("\n")
    assert len(lines) - 1 == 3  # a disturbed run, two failures
    assert "w on a: others used 50% of a core" in lines[0]
    assert "w on b FAILED: records were refused" in lines[1]
    assert CLEAR_LINE + "[1/4, about 0 min left] w on a, round 1, repeat 1 …" in err.getvalue()
    assert err.getvalue().endswith(CLEAR_LINE)


def test_output_without_a_terminal_has_one_line_per_run(tmp_path: Path) -> None:
    err = io.StringIO()
    show(tmp_path, err, lambda peer: WorkloadOutcome({SPEED.name: 1.0}))
    lines = err.getvalue().splitlines()
    assert len(lines) == 4 + 1
    assert lines[-1].startswith("[4/4] w on b: ")
    assert "\r" not in err.getvalue()
