"""What ends a batch that Spark interrupts is told in words that Spark takes for that."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from odradek.pipeline import interrupts
from odradek.pipeline.errors import FilesUnavailable
from odradek.pipeline.interrupts import (
    INTERRUPTIONS,
    Interrupted,
    interruption_in_short,
    interrupts_cancel,
)

AS_SPARK_KNOWS_IT = re.compile(
    "py4j.protocol.Py4JJavaError: An error occurred while calling((.|\\r\\n|\\r|\\n)*)("
    + "|".join(INTERRUPTIONS)
    + ")"
)
TRACE = "\n\tat java.base/sun.nio.ch.FileChannelImpl.position(FileChannelImpl.java:373)" * 400


@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_an_interruption_is_told_in_short(name: str) -> None:
    of_java = OSError(f"An error occurred while calling o1.read.\n: {name}{TRACE}")
    with pytest.raises(Interrupted) as caught, interruption_in_short():
        raise FilesUnavailable("a file could not be read") from of_java
    assert AS_SPARK_KNOWS_IT.search(str(caught.value))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(FilesUnavailable, match=r"^the disk is full$"), interruption_in_short():
        raise FilesUnavailable("the disk is full")


class Spark:
    """As much of a session as is cancelled."""

    def __init__(self) -> None:
        self.sparkContext = self.streams = self
        self.cancelled = 0
        self.active: list[Any] = []

    def setLogLevel(self, level: str) -> None:  # noqa: N802 - Spark's name
        raise ValueError("all steps are taken, whatever the others do")

    def cancelAllJobs(self) -> None:  # noqa: N802
        self.cancelled += 1


@pytest.fixture
def ours() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ours")
def test_what_begins_after_a_ctrl_c_is_cancelled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, spark = [True], Spark()
    monkeypatch.setattr(interrupts, "_waits_for_spark", lambda frame: waits[0])
    deadline = time.monotonic() + 20
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - of a call that Spark answers in the end
        with interrupts_cancel(spark):  # type: ignore[arg-type]
            signal.raise_signal(signal.SIGINT)
            while spark.cancelled < 3:
                assert time.monotonic() < deadline
            waits[0] = False
            while time.monotonic() < deadline:
                pass
    assert time.monotonic() < deadline
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_ignores_it_is_not_interrupted() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_cancel(Spark()):  # type: ignore[arg-type]
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
