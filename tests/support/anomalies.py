"""What no second run excuses: something that was acknowledged is lost, doubled, changed or out of order.

A race that shows itself once in a hundred runs is as real as one that always does. Whoever finds such a
thing in a test says so by `assert_none` or `require`; the test fails, and where ODRADEK_ANOMALIES names a file, that
gets what was found, for `.ci/run` to read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

FILE = "ODRADEK_ANOMALIES"


class AnomalyFound(AssertionError):
    """The text says what, a line each."""


def assert_none(found: Iterable[object]) -> None:
    """Raises AnomalyFound."""
    texts = [str(each) for each in found]
    if texts:
        raise AnomalyFound("\n".join(texts))


def require(holds: object, otherwise: str) -> None:
    """Raises AnomalyFound."""
    assert_none([] if holds else [otherwise])


def pytest_exception_interact(
    node: pytest.Item | pytest.Collector, call: pytest.CallInfo[object]
) -> None:
    if call.excinfo is None:
        return
    for error in _in_turn(call.excinfo.value):
        if isinstance(error, AnomalyFound):
            note(node.nodeid, error)


def note(test: str, error: BaseException) -> None:
    """For `.ci/run`, if it is that which runs the tests. Processes that do so at once do not mix."""
    if name := os.environ.get(FILE):
        with Path(name).open("a") as file:
            file.write(f"{test}: {error}\n")


def _in_turn(error: BaseException | None) -> Iterator[BaseException]:
    """What was raised, and what was on its way when it was."""
    while error is not None:
        yield error
        error = error.__context__
