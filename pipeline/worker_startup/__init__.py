"""Spark's Python processes, with less to wait for.

Spark starts Python where it plans and where tasks run, and forks a worker of it whenever there is none that waits: a
worker that waited for a minute is ended. Each imports what it needs anew, and PySpark from a zip without compiled
modules: half a second of CPU and more, before it has done anything. Spark has a setting for the module that forks
workers of tasks (`spark.python.daemon.module`), and none for those that plan, which are most of what a small query
waits for. What all of them heed is the environment that a session gives its functions; so `sitecustomize.py`, which
Python imports first, is put on their path.

A machine without that directory has no such module, and nothing is other than it was: so it is with executors that
have this package elsewhere, or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATH = "PYTHONPATH"
HERE = str(Path(__file__).parent)


def speed_up_workers(spark: SparkSession) -> None:
    """The workers of what is registered with a session, or becomes a function of it, from now on. The session's
    Spark must not be a remote one (Spark Connect): that has an environment of its own."""
    environment = spark.sparkContext.environment
    given = environment.get(PATH)
    environment[PATH] = f"{HERE}:{given}" if given else HERE
