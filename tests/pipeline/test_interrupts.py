"""A Ctrl-C cancels what Spark does, and is raised between two of its answers."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from odradek.pipeline import interrupts
from odradek.pipeline.interrupts import interrupts_cancel, interrupts_put_off


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


@pytest.mark.usefixtures("own_ctrl_c")
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


@pytest.mark.usefixtures("own_ctrl_c")
def test_who_ignores_it_is_not_interrupted() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_put_off():
        signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as PySpark does with its own
    with interrupts_cancel(Spark()):  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGINT)
