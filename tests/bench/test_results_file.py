"""Results files are read as written, and damaged ones are rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odradek.bench.model import Metric
from odradek.bench.results_file import (
    InvalidResults,
    Sample,
    SampleState,
    from_json,
    load,
    save,
    to_json,
)
from odradek.bench.summary import figure, remarks
from tests.bench.fakes import SPEED
from tests.bench.full_results import full_results


def test_results_survive_a_round_trip(tmp_path: Path) -> None:
    results = full_results()
    save(results, tmp_path / "deep" / "results.json")
    assert load(tmp_path / "deep" / "results.json") == results
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("not json", "is not JSON"),
        ("[]", "is not a results file"),
        ('{"schema": 99}', "another schema"),
        ('{"schema": 1}', "damaged"),
    ],
)
def test_other_file_is_rejected(text: str, complaint: str) -> None:
    with pytest.raises(InvalidResults, match=complaint):
        from_json(text, "old.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("state", "imagined"), ("values", {"mb_per_s": "fast"}), ("values", {"mb_per_s": None})],
)
def test_damaged_workload_is_rejected(field: str, value: object) -> None:
    document = json.loads(to_json(full_results()))
    document["workloads"][0]["peers"]["odradek"]["samples"][0][field] = value
    with pytest.raises(InvalidResults, match=r"x\.json is damaged"):
        from_json(json.dumps(document), "x.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("machine", "x"), ("remarks", None), ("seconds", "long"), ("peers", [])],
)
def test_damaged_run_metadata_is_rejected(field: str, value: object) -> None:
    document = {**json.loads(to_json(full_results())), field: value}
    with pytest.raises(InvalidResults, match=r"x\.json is damaged"):
        from_json(json.dumps(document), "x.json")


def test_limit_that_is_no_number_is_rejected() -> None:
    document = json.loads(to_json(full_results()))
    document["limits"][0]["samples"][0][0] = None
    with pytest.raises(InvalidResults, match=r"x\.json is damaged"):
        from_json(json.dumps(document), "x.json")


def test_binary_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidResults, match=r"x\.json is not text"):
        load(tmp_path / "x.json")


def test_skipped_rounds_are_reported() -> None:
    results = full_results()
    again = [Sample(n, {SPEED.name: 1.0}, SampleState.DISTURBED) for n in (3, 3, 4)]
    results.workloads[0].peers["odradek"].samples += again
    why = "other processes used the machine in each run of those rounds"
    assert f"produce-1k on odradek: 2 of 4 rounds do not count: {why}" in remarks(results)


def test_figure_is_the_median_of_counted_samples() -> None:
    results = full_results()
    found = figure(results, SPEED, results.workloads[0].peers["odradek"])
    assert found is not None
    assert (found.median, found.low, found.high, found.runs) == (110.0, 100.0, 120.0, 2)
    assert found.fraction == pytest.approx(0.55)


def test_figure_may_be_compared_with_a_second_figure_of_a_limit() -> None:
    results = full_results()
    rate = Metric(SPEED.name, "1/s", "higher", limit="sendfile:cpu_s")
    found = figure(results, rate, results.workloads[0].peers["odradek"])
    assert found is not None
    assert found.fraction == 110.0
    other = Metric(SPEED.name, "1/s", "higher", limit="sendfile")
    assert results.bound_of(other) is None, "it is in another unit"


def test_missing_measurements_are_reported() -> None:
    report = "\n".join(remarks(full_results()))
    for expected in (
        "nisshi is not available: no cargo",
        "produce-1k on kafka FAILED in round 1: records were refused",
        "produce-1k on mock was skipped: it keeps nothing",
        "produce-1k on odradek: the client was at its limit",
        "restarted",
    ):
        assert expected in report
