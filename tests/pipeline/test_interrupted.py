"""Ctrl-C while Spark works: the job ends, and nothing is said."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.interop, pytest.mark.slow]

JOB = """
import os, signal, sys, threading
from odradek.pipeline.session import open_session

def interrupt(spark):
    tracker = spark.sparkContext.statusTracker()
    while not tracker.getActiveStageIds():
        pass
    os.kill(os.getpid(), signal.SIGINT)

try:
    with open_session("interrupted", "local[1]") as spark:
        print("begun", file=sys.stderr, flush=True)
        threading.Thread(target=interrupt, args=[spark], daemon=True).start()
        spark.range(10**15).selectExpr("sum(id % 7)").collect()
except KeyboardInterrupt:
    sys.exit(130)
"""


START = """
import os, signal, sys, threading
from pyspark import SparkContext
from odradek.pipeline.session import open_session

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
def test_an_interrupted_job_says_nothing(script: str) -> None:
    """Py4J logged two tracebacks of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    if script is JOB:
        assert done.stderr.partition("begun\n")[2] == ""
