"""A Spark session for a job of the command line."""

from __future__ import annotations

import os  # noqa: TID251 - a process's edge: it is where Spark looks for the workers' interpreter
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def open_session(name: str, master: str) -> Iterator[SparkSession]:
    """On `master`; local workers run the interpreter that runs this. What Spark logs below errors is left
    out: stderr is for the job."""
    from pyspark.sql import SparkSession

    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.appName(name)
        .master(master)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    if master.startswith("local"):
        builder = (
            builder.config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
        )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
