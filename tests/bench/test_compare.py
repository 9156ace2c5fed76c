"""Comparison of results: what counts as a regression."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek.bench.compare import ChangeVerdict, compare, other_machine, worse_by
from odradek.bench.results_file import Failure, Measured, Results
from tests.bench.fakes import DELAY, SPEED
from tests.bench.full_results import full_results


def verdicts(old: Results, new: Results) -> dict[str, ChangeVerdict]:
    changes = compare(old, new, peer="odradek", tolerance=0.1)
    return {each.metric.name: each.verdict for each in changes}


@pytest.mark.parametrize(
    ("speed", "delay", "speed_verdict", "delay_verdict"),
    [
        (100, 400, ChangeVerdict.SAME, ChangeVerdict.SAME),
        (91, 439, ChangeVerdict.SAME, ChangeVerdict.SAME),
        (89, 441, ChangeVerdict.NOISE, ChangeVerdict.REGRESSION),
        (83, 441, ChangeVerdict.REGRESSION, ChangeVerdict.REGRESSION),
        (111, 359, ChangeVerdict.NOISE, ChangeVerdict.IMPROVEMENT),
        (121, 359, ChangeVerdict.IMPROVEMENT, ChangeVerdict.IMPROVEMENT),
    ],
)
def test_higher_throughput_and_lower_latency_are_improvements(
    speed: float, delay: float, speed_verdict: ChangeVerdict, delay_verdict: ChangeVerdict
) -> None:
    found = verdicts(full_results(), full_results(speed, delay))
    assert found == {SPEED.name: speed_verdict, DELAY.name: delay_verdict}


@pytest.mark.parametrize("which", ["old", "new"])
def test_diagnostic_metric_is_no_regression(which: str) -> None:
    """Old results files do not mark diagnostic metrics."""
    old, new = full_results(), full_results(delay=4000)
    (workload,) = (old if which == "old" else new).workloads
    workload.metrics = (SPEED, replace(DELAY, diagnostic=True))
    assert verdicts(old, new)[DELAY.name] is ChangeVerdict.DIAGNOSTIC
    assert not ChangeVerdict.DIAGNOSTIC.is_regression
    assert not ChangeVerdict.NOISE.is_regression


def test_new_failure_is_a_regression() -> None:
    new = full_results()
    new.workloads[0].peers["odradek"] = Measured(failures=[Failure(1, "refused")])
    assert set(verdicts(full_results(), new).values()) == {ChangeVerdict.FAILED}
    assert ChangeVerdict.FAILED.is_regression


@pytest.mark.parametrize("which", ["workload", "peer"])
def test_workload_that_was_not_run_is_listed(which: str) -> None:
    new = full_results()
    if which == "workload":
        new.workloads.clear()
    else:
        del new.workloads[0].peers["odradek"]
    assert set(verdicts(full_results(), new).values()) == {ChangeVerdict.NOT_RUN}
    assert not ChangeVerdict.NOT_RUN.is_regression


def test_workload_with_other_parameters_is_not_compared() -> None:
    new = full_results(speed=1)
    new.workloads[0].parameters = {"record_bytes": 10}
    assert set(verdicts(full_results(), new).values()) == {ChangeVerdict.OTHER_PARAMETERS}
    assert not ChangeVerdict.OTHER_PARAMETERS.is_regression


def test_change_from_zero_is_compared() -> None:
    assert worse_by(DELAY, 0, 0) == 0
    assert worse_by(DELAY, 0, 1) == float("inf")
    assert worse_by(SPEED, 0, 1) == 0


def test_results_of_another_machine_are_detected() -> None:
    new = full_results()
    new.machine = {**new.machine, "processor": "slide rule"}
    assert other_machine(full_results(), full_results()) == []
    assert other_machine(full_results(), new) == ["processor: abacus before, slide rule now"]
    new.machine = full_results().machine
    new.settings = {**new.settings, "client": "librdkafka 0.1"}
    assert other_machine(full_results(), new) == ["client: ? before, librdkafka 0.1 now"]
