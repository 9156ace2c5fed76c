"""What a user is told of what Spark says."""

from __future__ import annotations

from odradek.pipeline.errors import said_by_spark

OF_A_TASK = """[TASK_WRITE_FAILED] Task failed while writing rows to file:/out. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(X.scala:1)
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\tat org.apache.hadoop.fs.RawLocalFileSystem.write(RawLocalFileSystem.java:1)
\t... 24 more
Caused by: java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
"""
OF_A_WORKER = """Job aborted due to stage failure: Traceback (most recent call last):
  File "worker.py", line 1, in main
odradek.pipeline.errors.MissingSegment: flights-0/7.log is not in the store

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
"""


def test_a_full_disk_is_told_in_a_line() -> None:
    assert said_by_spark(RuntimeError(OF_A_TASK)) == "IOException: No space left on device"


def test_an_error_of_ours_is_told_without_what_spark_put_around_it() -> None:
    told = said_by_spark(RuntimeError(OF_A_WORKER))
    assert told == "flights-0/7.log is not in the store"


def test_what_spark_says_without_a_cause_is_told_as_it_is() -> None:
    assert (
        said_by_spark(RuntimeError("no such column: x\nin a plan"))
        == "no such column: x\nin a plan"
    )
