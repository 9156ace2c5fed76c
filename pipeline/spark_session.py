"""Spark sessions for jobs of the command line."""

from __future__ import annotations

import logging
import os  # noqa: TID251 - a process's edge: it is where Spark looks for the workers' interpreter
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from odradek.pipeline.interrupts import cancel_jobs_on_interrupt, delay_interrupts
from odradek.pipeline.worker_startup import speed_up_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TO_WORKERS = {"spark.python.unix.domain.socket.enabled": "true"}
"""By default Spark passes records from Python to the JVM over TCP, which takes a tenth of a full read."""

DUPLICATE_LOGGERS = ("py4j", "SQLQueryContextLogger")
"""Loggers that repeat, with tracebacks, errors that are also raised: errors in a stream's batch, and in a query."""


@contextmanager
def open_session(
    name: str, master: str, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Open a session on `master`, with further Spark settings in `conf`. The driver and local workers use this
    Python interpreter; other workers use PYSPARK_PYTHON. Spark's warnings, and its messages about Ctrl-C, are
    suppressed, because stderr is the job's.
    """
    from pyspark.sql import SparkSession

    is_local = master.startswith("local")
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        **TO_WORKERS,
    }
    if is_local:
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**settings, **(conf or {})}.items():
        builder = builder.config(key, value)
    with _suppress_duplicate_logs(), warnings.catch_warnings(), ExitStack() as stack:
        # PySpark's warnings are for developers.
        warnings.filterwarnings("ignore", module="pyspark")
        with delay_interrupts():
            session = builder.getOrCreate()
            stack.callback(session.stop)
        try:
            with cancel_jobs_on_interrupt(session):
                speed_up_workers(session)
                session.sparkContext.setLogLevel("ERROR")
                yield session
        except KeyboardInterrupt:
            session.sparkContext.setLogLevel("OFF")
            raise


@contextmanager
def _suppress_duplicate_logs() -> Iterator[None]:
    logging.getLogger().addFilter(_reject)
    levels = {logger: logger.level for logger in map(logging.getLogger, DUPLICATE_LOGGERS)}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logging.getLogger().removeFilter(_reject)
        for logger, level in levels.items():
            logger.setLevel(level)


def _reject(record: logging.LogRecord) -> bool:
    """Reject records of the root logger: Py4J logs tracebacks there when Ctrl-C interrupts a call. Records of named
    loggers do not pass this filter.
    """
    return False
