"""Speeds up the start of Spark's Python processes.

Spark starts Python for planning and for tasks, and forks a worker if none is idle; idle workers are ended after a
minute. Each worker imports its modules, and PySpark from a zip without compiled modules, which takes at least half
a second of CPU. Spark has a setting for the module that forks the workers of tasks (`spark.python.daemon.module`),
but none for planning, which takes most of the time of a small query. All of these processes use the environment
variables of the session, so the directory of `sitecustomize.py`, which Python imports first, is added to
PYTHONPATH.

On machines without that directory, such as executors with this package elsewhere or not at all, nothing changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATH = "PYTHONPATH"
HERE = str(Path(__file__).parent)


def speed_up_workers(spark: SparkSession) -> None:
    """Speed up workers for data sources and functions that are registered with the session from now on. The session
    must not be remote (Spark Connect), because that has its own environment.
    """
    environment = spark.sparkContext.environment
    given = environment.get(PATH)
    environment[PATH] = f"{HERE}:{given}" if given else HERE
