"""Progress output of a running job."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

import pytest

from odradek.pipeline.cli.progress_reporter import CLEAR, ProgressReporter
from odradek.pipeline.jobs.job_progress import JobProgress, report_spark_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_rate_and_remaining_time_are_of_this_run() -> None:
    progress = JobProgress(done=600, total=1000, seconds=4.0, done_before=200)
    assert (progress.percent, progress.per_second, progress.seconds_left) == (60.0, 100.0, 4.0)
    assert progress.text("offsets") == " 60.0% 600 of 1,000 offsets, 100 offsets/s, 0:04 left"
    assert JobProgress(7, 0, 0.0).text("records") == "7 records, 0 records/s"
    assert "1:02:03 left" in JobProgress(1, 3724, 1.0).text("offsets")


def test_progress_is_one_line_on_a_terminal_and_none_in_a_file() -> None:
    terminal, file, out = FakeTerminal(), io.StringIO(), io.StringIO()
    for err in (terminal, file):
        reporter = ProgressReporter("offsets", as_json=False, out=out, err=err)
        reporter.progress(JobProgress(1, 4, 1.0))
        reporter.progress(JobProgress(2, 4, 2.0))
        reporter.line("batch 0")
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith(f"{CLEAR}batch 0\n")
    assert file.getvalue() == "batch 0\n"


def test_progress_line_is_cleared_before_an_error() -> None:
    terminal = FakeTerminal()
    with (
        suppress(KeyboardInterrupt),
        ProgressReporter("tasks", as_json=False, err=terminal) as reporter,
    ):
        reporter.progress(JobProgress(1, 4, 1.0))
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith(CLEAR)


def test_json_output_has_only_rows() -> None:
    out, err = io.StringIO(), FakeTerminal()
    reporter = ProgressReporter("offsets", as_json=True, out=out, err=err)
    reporter.progress(JobProgress(1, 4, 2.0))
    reporter.line("batch 0")
    reporter.row({"batch": 0})
    reporter.result("done")
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert rows == [
        {"progress": {"done": 1, "total": 4, "percent": 25.0, "perSecond": 0.5, "seconds": 2.0}},
        {"batch": 0},
    ]
    assert err.getvalue() == ""


@pytest.mark.slow
@pytest.mark.interop
def test_progress_counts_the_tasks_of_the_query(spark: SparkSession) -> None:
    """Without tasks of earlier queries."""
    numbers = spark.range(0, 4, 1, 4)
    numbers.collect()
    reported: list[int] = []
    are_done = Event()

    def report(progress: JobProgress) -> None:
        reported.append(progress.done)
        if progress.done >= 4:
            are_done.set()

    with report_spark_tasks(spark, report, every_s=0.01):
        numbers.collect()
        assert are_done.wait(30)
    assert reported[-1] == 4
