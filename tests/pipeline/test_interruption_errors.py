"""Errors of a batch that Spark interrupted are reported in the form that Spark recognises."""

from __future__ import annotations

import re

import pytest

from odradek.pipeline.errors import FilesUnavailable
from odradek.pipeline.jobs.export import INTERRUPTIONS, Interrupted, shorten_interruption_errors

AS_SPARK_KNOWS_IT = re.compile(
    "py4j.protocol.Py4JJavaError: An error occurred while calling((.|\\r\\n|\\r|\\n)*)("
    + "|".join(INTERRUPTIONS)
    + ")"
)
TRACE = "\n\tat java.base/sun.nio.ch.FileChannelImpl.position(FileChannelImpl.java:373)" * 400


@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_interruption_is_reported_in_sparks_form(name: str) -> None:
    message = f"{name}: s3a://history/part-1 was not read in 60 s"
    java_error = OSError(f"An error occurred while calling o1.read.\n: {message}{TRACE}")
    with pytest.raises(Interrupted) as caught, shorten_interruption_errors():
        raise FilesUnavailable("a file could not be read") from java_error
    assert AS_SPARK_KNOWS_IT.search(str(caught.value))
    assert f"{message} (a file could not be read)" in str(caught.value)
    assert len(str(caught.value)) < 500
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_other_errors_are_unchanged() -> None:
    with (
        pytest.raises(FilesUnavailable, match=r"^the disk is full$"),
        shorten_interruption_errors(),
    ):
        raise FilesUnavailable("the disk is full")
