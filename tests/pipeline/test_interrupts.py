"""A Ctrl-C cancels what Spark does, and is raised between two of its answers."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from typing import Any

import pytest

from odradek.pipeline import interrupts
from odradek.pipeline.interrupts import cancel_jobs_on_interrupt, delay_interrupts


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
        with cancel_jobs_on_interrupt(spark):  # type: ignore[arg-type]
            signal.raise_signal(signal.SIGINT)
            while spark.cancelled < 3:
                assert time.monotonic() < deadline
            waits[0] = False
            while time.monotonic() < deadline:
                pass
    assert time.monotonic() < deadline
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("own_ctrl_c")
def test_a_second_ctrl_c_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first one met no call of Spark, and the second one the clean-up after it, too."""
    waits, cleaned_up = [False], []
    monkeypatch.setattr(interrupts, "_waits_for_spark", lambda frame: waits[0])

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            waits[0] = True
            signal.raise_signal(signal.SIGINT)
            cleaned_up.append(True)

    with pytest.raises(KeyboardInterrupt), cancel_jobs_on_interrupt(Spark()):  # type: ignore[arg-type]
        work()
    assert cleaned_up == []


@pytest.mark.usefixtures("own_ctrl_c")
@pytest.mark.parametrize("waits", [False, True])
def test_what_fails_after_a_ctrl_c_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(interrupts, "_waits_for_spark", lambda frame: waits)

    def work() -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise RuntimeError("Java has gone, too")

    with pytest.raises(KeyboardInterrupt), delay_interrupts():
        work()
    with pytest.raises(KeyboardInterrupt), cancel_jobs_on_interrupt(Spark()):  # type: ignore[arg-type]
        work()


@pytest.mark.usefixtures("own_ctrl_c")
def test_who_ignores_it_is_not_interrupted() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with delay_interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as PySpark does with its own
    with cancel_jobs_on_interrupt(Spark()):  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGINT)
