"""Ctrl-C while a job runs: the job ends and prints nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.interop, pytest.mark.slow]

JOB = """
import os, signal, sys, threading
from odradek.pipeline.spark_session import open_session

def interrupt(spark):
    tracker = spark.sparkContext.statusTracker()
    while not tracker.getActiveStageIds():
        pass
    os.kill(os.getpid(), signal.SIGINT)

try:
    with open_session("interrupted", "local[1]") as spark:
        print("begun", file=sys.stderr, flush=True)
        threading.Thread(target=interrupt, args=[spark], daemon=True).start()
        try:
            spark.range(10**15).selectExpr("sum(id % 7)").collect()
        finally:  # each call has its own response
            counts = []
            while len(counts) < 5:
                try:
                    counts.append(spark.range(len(counts)).count())
                except (Exception, KeyboardInterrupt):  # cancelled, too
                    pass
            print(counts, flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


START = """
import os, signal, sys, threading
from pyspark import SparkContext
from odradek.pipeline.spark_session import open_session

def interrupt():
    while SparkContext._gateway is None:
        pass
    os.kill(os.getpid(), signal.SIGINT)

try:
    threading.Thread(target=interrupt, daemon=True).start()
    with open_session("interrupted", "local[1]"):
        print("too late", file=sys.stderr, flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("script", [JOB, START], ids=["job", "start"])
def test_interrupted_job_prints_nothing(script: str) -> None:
    """Py4J would log two tracebacks, and PySpark warns of pandas during its start."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "FutureWarning" not in done.stderr
    if script is JOB:
        assert done.stderr.partition("begun\n")[2] == ""
        assert done.stdout == "[0, 1, 2, 3, 4]\n"


SLOWLY = """
import sys
from odradek.pipeline.spark_session import open_session

try:
    with open_session("interrupted", "local[1]"):
        print("too late", file=sys.stderr, flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.5])
def test_interrupted_start_leaves_no_process(after_s: float) -> None:
    """A terminal sends Ctrl-C to the whole process group, including Spark's launcher."""
    job = subprocess.Popen([sys.executable, "-c", SLOWLY], start_new_session=True)
    try:
        while len(_of_session(job.pid)) == 1:  # before Spark's launcher has started
            time.sleep(0.01)
        time.sleep(after_s)
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(60) == 130
        until = time.monotonic() + 30
        while _of_session(job.pid) and time.monotonic() < until:
            time.sleep(0.1)
        assert _of_session(job.pid) == []
    finally:
        for left in _of_session(job.pid):
            os.kill(left, signal.SIGKILL)
        job.wait()


def _of_session(leader: int) -> list[int]:
    """Return the remaining processes of the session, except for zombies."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,stat=", "-s", str(leader)], capture_output=True, text=True, check=False
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(pid) for pid, state in rows if not state.startswith("Z")]
