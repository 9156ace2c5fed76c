"""Anomalies: acknowledged records that are lost, duplicated, changed or out of order.

CI repeats failed tests, but a race that shows once in a hundred runs is a bug nevertheless. A test therefore reports
an anomaly with `assert_none` or `require`: the test fails, and the anomaly is appended to the file that
ODRADEK_ANOMALIES names. `.ci/run` fails if this file is not empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

FILE = "ODRADEK_ANOMALIES"


class AnomalyFound(AssertionError):
    """Anomalies of a test, one per line."""


def assert_none(found: Iterable[object]) -> None:
    """Raise AnomalyFound if there are anomalies."""
    texts = [str(each) for each in found]
    if texts:
        raise AnomalyFound("\n".join(texts))


def require(holds: object, otherwise: str) -> None:
    """Raise AnomalyFound with the text `otherwise` unless the condition holds."""
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
    """Append the anomaly to the file for `.ci/run`. Lines of concurrent processes do not mix."""
    if name := os.environ.get(FILE):
        with Path(name).open("a") as file:
            file.write(f"{test}: {error}\n")


def _in_turn(error: BaseException | None) -> Iterator[BaseException]:
    """Return the exception and the exceptions during whose handling it was raised."""
    while error is not None:
        yield error
        error = error.__context__
