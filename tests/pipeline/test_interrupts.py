"""Ctrl-C cancels Spark's jobs and is raised between two Py4J calls."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from typing import Any

import pytest

from odradek.pipeline import interrupts
from odradek.pipeline.interrupts import cancel_jobs_on_interrupt, delay_interrupts


class FakeSpark:
    """The part of a session that is needed for cancellation."""

    def __init__(self) -> None:
        self.sparkContext = self.streams = self
        self.cancelled = 0
        self.active: list[Any] = []

    def setLogLevel(self, level: str) -> None:  # noqa: N802 - Spark's name
        raise ValueError("all steps are taken, whatever the others do")

    def cancelAllJobs(self) -> None:  # noqa: N802
        self.cancelled += 1


@pytest.mark.usefixtures("own_ctrl_c")
def test_jobs_started_after_ctrl_c_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, spark = [True], FakeSpark()
    monkeypatch.setattr(interrupts, "_waits_for_spark", lambda frame: waits[0])
    deadline = time.monotonic() + 20
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the call of Spark returns at the end
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
def test_second_ctrl_c_is_raised_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the first one was not during a Spark call, and the second one is during the clean-up."""
    waits, cleaned_up = [False], []
    monkeypatch.setattr(interrupts, "_waits_for_spark", lambda frame: waits[0])

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            waits[0] = True
            signal.raise_signal(signal.SIGINT)
            cleaned_up.append(True)

    with pytest.raises(KeyboardInterrupt), cancel_jobs_on_interrupt(FakeSpark()):  # type: ignore[arg-type]
        work()
    assert cleaned_up == []


@pytest.mark.usefixtures("own_ctrl_c")
@pytest.mark.parametrize("waits", [False, True])
def test_error_after_ctrl_c_is_replaced_by_keyboard_interrupt(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(interrupts, "_waits_for_spark", lambda frame: waits)

    def work() -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise RuntimeError("Java has gone, too")

    with pytest.raises(KeyboardInterrupt), delay_interrupts():
        work()
    with pytest.raises(KeyboardInterrupt), cancel_jobs_on_interrupt(FakeSpark()):  # type: ignore[arg-type]
        work()


@pytest.mark.usefixtures("own_ctrl_c")
def test_ignored_sigint_does_not_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with delay_interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as PySpark's handler does
    with cancel_jobs_on_interrupt(FakeSpark()):  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGINT)
