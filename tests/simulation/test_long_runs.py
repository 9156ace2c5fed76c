"""A stopped run resumes if the code and the arguments are the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from odradek.testing.simulation.__main__ import main
from odradek.testing.simulation.parallel_runs import EMPTY_ROW
from odradek.testing.simulation.plan import draw_plan
from odradek.testing.simulation.run import simulate
from odradek.testing.simulation.summary import MismatchedRun, Summary, load_progress, save_progress
from odradek.testing.simulation.worker import to_row

RUN = {"seeds": [0, 2], "nodes": 1, "tiered": False, "disables_tiering": False, "diskless": False}


def summary_of(*rows: dict[str, object]) -> Summary:
    made = Summary(seconds=1.5)
    for row in rows:
        made.add(row)
    return made


def test_saved_progress_is_loaded_unchanged(tmp_path: Path) -> None:
    summary = summary_of(
        to_row(simulate(draw_plan(0, nodes=1)), 0.25),
        {**EMPTY_ROW, "seed": 1, "anomalies": ["lost"]},
    )
    save_progress(tmp_path / "run", summary, **RUN)
    assert load_progress(tmp_path / "run", **RUN) == summary


def test_stopped_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run"
    save_progress(
        file, summary_of(*({**EMPTY_ROW, "seed": each, "anomalies": []} for each in (0, 1))), **RUN
    )
    words = ["--seeds", "0-2", "--nodes", "1", "--jobs", "1", "--resume", str(file)]
    monkeypatch.setattr(sys, "argv", ["simulation", *words])
    assert main() == 0
    assert "3 runs, 0 with anomalies" in capsys.readouterr().out
    summary = load_progress(file, **RUN)
    assert summary.runs == 3
    assert summary.seconds > 1.5
    assert summary.starts_cpu_ms.total() == 3
    assert summary.virtual_s == simulate(draw_plan(2, nodes=1)).virtual_s


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seeds": [0, 3]}, "is of another run"),
        ({"code": "0"}, "is of other code: remove it to start from the first seed"),
        ({"coverage": 3}, "is not a progress file"),
    ],
)
def test_progress_of_another_run_is_rejected(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    file = tmp_path / "run"
    save_progress(file, Summary(), **RUN)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(MismatchedRun, match=why):
        load_progress(file, **RUN)
