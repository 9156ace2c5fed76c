"""Unexpected errors stay in the work of one subject."""

from __future__ import annotations

import logging

import pytest
import trio

from odradek.seams.containment import RESTART_SECONDS, STARTED_AGAIN, Containment


def fail(message: str = "planted") -> None:
    raise RuntimeError(message)


def test_unexpected_error_is_logged_once_with_subject_and_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    marked: list[str] = []
    containment = Containment[str](
        "retention", lambda subject, error: marked.append(f"{subject}: {error}"), consequence="x"
    )
    assert containment.call("t-0", fail) is None
    assert containment.call("t-0", fail) is None
    assert containment.call("t-1", lambda: 7) == 7
    assert marked == ["t-0: planted"] * 2
    (line,) = caplog.records
    assert line.getMessage() == "Unexpected error in retention (t-0); x"
    assert line.exc_info is not None


def test_error_is_logged_again_after_a_success_or_if_it_differs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    containment = Containment[str]("retention", consequence="x")
    containment.call("t-0", fail)
    containment.call("t-0", fail, "another")
    containment.call("t-0", lambda: None)
    containment.call("t-0", fail, "another")
    assert len(caplog.records) == 3


def test_expected_error_is_left_to_the_caller() -> None:
    with pytest.raises(RuntimeError):
        Containment[str]("retention", consequence="x", expected=(RuntimeError,)).call("t-0", fail)


def test_error_while_marking_is_contained(caplog: pytest.LogCaptureFixture) -> None:
    containment = Containment[str](
        "retention", lambda subject, error: fail("marking"), consequence="x"
    )
    containment.call("t-0", fail)
    assert [each.levelno for each in caplog.records] == [logging.ERROR] * 2


async def test_failed_task_starts_again_after_a_pause(
    autojump_clock: trio.testing.MockClock,
) -> None:
    began: list[float] = []

    async def task() -> None:
        began.append(trio.current_time())
        if len(began) < 3:
            fail()

    await Containment[str]("a task", consequence=STARTED_AGAIN).keep_running("t-0", task)
    assert [round(each - began[0]) for each in began] == [0, RESTART_SECONDS, 3 * RESTART_SECONDS]


async def test_cancellation_passes_and_other_errors_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            fail()

    async def task() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_when_cancelled)
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    with trio.move_on_after(0.01) as scope:
        await Containment[str]("a task", consequence=STARTED_AGAIN).keep_running("t-0", task)
    assert scope.cancelled_caught
    assert len(caplog.records) == 1
