"""Reports each failed assertion of a simulation as an anomaly: no other program runs in it."""

from __future__ import annotations

import pytest

from tests.support.anomalies import AnomalyFound, note


def pytest_exception_interact(
    node: pytest.Item | pytest.Collector, call: pytest.CallInfo[object]
) -> None:
    error = None if call.excinfo is None else call.excinfo.value
    if isinstance(error, AssertionError) and not isinstance(error, AnomalyFound):
        note(node.nodeid, error)
